"""Policies that bind nothing: a misspelt tool or label must not read as safety.

One that asks for a protection (an approval, at most one attempt) is refused where it is misspelt:
whoever wrote it believes that something is protected. Any other is a warning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from aaa.errors import ConfigError
from aaa.policy import Delivery, ToolEntry, ToolPolicyRules, unmatched_tools

if TYPE_CHECKING:
    from aaa.app import App
    from aaa.manifest import AgentRun, ToolPolicy

#: How much a label has to be like another, of 1, to be taken for a slip of the pen.
ALIKE: Final = 0.85


def warnings(policies: Sequence[ToolPolicyRules], app: App, *, name: str) -> list[str]:
    """A sentence for each policy with entries that no tool of the app ``name`` matches.

    Raises :class:`ConfigError` for the first that protects.
    """
    from aaa.manifest.problems import did_you_mean

    known = [tool.name for tool in app.tools.registry] if app.tools is not None else []
    found = unmatched_tools(policies, known)
    for policy in policies:
        for entry in policy.tools:
            if entry.name in found.get(policy.name, ()) and _protects(entry):
                hint = did_you_mean(entry.name.rstrip("*"), known) or "; it has no tools"
                raise ConfigError(
                    f"policy {policy.name} protects {entry.name}, and {name} has no such tool{hint}"
                )
    tools = ", ".join(known) or "none"
    return [
        f"policy {policy} speaks of {', '.join(entries)}, and {name} has no such tool "
        f"(its tools are {tools})"
        for policy, entries in found.items()
    ]


def binding_none(policies: Sequence[ToolPolicy], runs: Sequence[AgentRun]) -> list[str]:
    """A sentence for each policy that selects none of the runs that stand beside it."""
    return [_binds_none(policy, runs) for policy in policies if _is_idle(policy, runs)]


def check_bound(policies: Sequence[ToolPolicy], runs: Sequence[AgentRun]) -> None:
    """Raises :class:`ManifestError` for a policy that would protect, but for a misspelt label."""
    for policy in policies:
        protects = any(_protects(entry) for entry in policy.rules().tools)
        if protects and _is_idle(policy, runs) and any(_nearly(policy, run) for run in runs):
            raise policy.problem(
                f"{_binds_none(policy, runs)}; mend the label or the selector",
                at=("spec", "selector"),
            )


def _nearly(policy: ToolPolicy, run: AgentRun) -> bool:
    """Whether each label that the policy wants has one on the run that looks the same."""
    has = [f"{key}={value}" for key, value in run.metadata.labels.items()]
    wanted = [f"{key}={value}" for key, value in policy.spec.selector.match_labels.items()]
    return bool(wanted) and all(get_close_matches(each, has, cutoff=ALIKE) for each in wanted)


def _is_idle(policy: ToolPolicy, runs: Sequence[AgentRun]) -> bool:
    return bool(runs) and not any(policy.selects(run) for run in runs)


def _binds_none(policy: ToolPolicy, runs: Sequence[AgentRun]) -> str:
    run, wanted = runs[0], policy.spec.selector.match_labels
    return (
        f"policy {policy.metadata.name} binds no run here: it selects {_labels(wanted) or 'others'}, "
        f"and run {run.metadata.name} has {_labels(run.metadata.labels) or 'no labels'}"
    )


def _labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())


def _protects(entry: ToolEntry) -> bool:
    said = entry.settings
    protection = said.get("requires_approval") is True or said.get("delivery") is (
        Delivery.AT_MOST_ONCE
    )
    return protection and entry.name != "*"  # every tool there is, even if there is none
