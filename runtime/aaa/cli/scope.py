"""The scope of a single run: what the name of its app begins with, and so who may serve it.

``run.<run id>``, and behind a ``+`` the policies in force, if there are any. A process that has
other policies, or none, computes another scope and so never takes a call of the run (L11): what
protects a run does not depend on which command happens to serve it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aaa.errors import ConfigError
from aaa.policy import PolicyLayers, ToolPolicyRules

RUN: Final = "run."
HASH_DIGITS: Final = 12


def scope_of(run_id: str, policies: Sequence[ToolPolicyRules]) -> str:
    """Where one run stands under these policies: ``run.refund-a-100+0f3c…``."""
    return f"{RUN}{run_id}{_mark(policies)}"


def split(scope: str) -> tuple[str, str]:
    """The scope without its policies, and their mark, which is empty where there are none."""
    name, plus, digits = scope.partition("+")  # a run id has no plus
    return (name, f"{plus}{digits}") if scope.startswith(RUN) else (scope, "")


def served(scope: str, files: Sequence[Path]) -> tuple[str, tuple[ToolPolicyRules, ...]]:
    """The scope that a worker serves, with the policies of its ``--policy`` files.

    Files that hold the run's own manifest bind it as ``aaa run`` does: with the policies that
    select it. Raises :class:`ConfigError` for a scope that names other policies than the files.
    """
    from aaa.cli.explain import policies_in
    from aaa.cli.manifests import bound, read, run_id_of
    from aaa.manifest import AgentRun

    found = policies_in(files)
    rules = tuple(policy.rules() for policy in found)
    name, mark = split(scope)
    if not scope.startswith(RUN):
        return scope, rules
    for manifest in (each for file in files for each in read(file)):
        if isinstance(manifest, AgentRun) and f"{RUN}{run_id_of(manifest)}" == name:
            rules = bound(manifest, found)
    own = _mark(rules)
    if mark not in ("", own):
        raise ConfigError(
            f"--scope {scope} names the policies {mark[1:]}, and those of --policy are "
            f"{own[1:] or 'none'}; give the files that the run was begun with"
        )
    return f"{name}{own}", rules


def _mark(policies: Sequence[ToolPolicyRules]) -> str:
    return f"+{PolicyLayers(policies=policies).hash[:HASH_DIGITS]}" if policies else ""
