"""What ``aaa run FILE.yaml`` is to do: each AgentRun of the file, with the policies that bind it.

A run's id on a laptop is its ``runKey``, or its name. Its policies are those of the file whose
selector matches its labels; a policy that ``policyRefs`` names must be among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aaa import ids
from aaa.cli.unmatched import check_bound
from aaa.errors import ConfigError, ManifestError
from aaa.manifest import AgentRun, Manifest, ToolDecision, ToolPolicy, load_manifests
from aaa.policy import ToolPolicyRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run to begin or to go on with."""

    manifest: AgentRun
    run_id: str
    app: str
    input: Any
    policies: tuple[ToolPolicyRules, ...]
    file: Path

    @property
    def folder(self) -> Path:
        """Where the app is looked for first."""
        return self.file.parent.resolve()

    @property
    def deadline_s(self) -> float | None:
        """Seconds from the run's beginning after which it is cancelled."""
        seconds = self.manifest.spec.active_deadline_seconds
        return None if seconds is None else float(seconds)

    @property
    def digest(self) -> str:
        """As the store keeps it for the run's input."""
        return ids.digest_of(ids.canonical(self.input))


def read(file: Path) -> list[Manifest]:
    """The file's manifests. Raises :class:`ManifestError`, also if it cannot be read."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise ManifestError(
            f"cannot be read: {(error.strerror or str(error)).lower()}", file=str(file)
        ) from None
    return load_manifests(text, file=str(file))


def split(manifests: Sequence[Manifest]) -> tuple[list[AgentRun], list[ToolPolicy]]:
    """The runs, and the policies."""
    runs = [each for each in manifests if isinstance(each, AgentRun)]
    return runs, [each for each in manifests if isinstance(each, ToolPolicy)]


def plans(
    manifests: Sequence[Manifest], *, file: Path, app: str | None, given: Any | None
) -> list[Plan]:
    """What the file asks for. ``app`` and ``given`` (an input) stand in for the manifest's own."""
    for manifest in manifests:
        if isinstance(manifest, ToolDecision):
            raise manifest.problem(
                "a ToolDecision is for a cluster; here use aaa approve, reject or resolve",
                at=("kind",),
            )
    runs, policies = split(manifests)
    if not runs:
        raise ManifestError("holds no AgentRun, so there is nothing to run", file=str(file))
    if given is not None and len(runs) > 1:
        raise ConfigError(f"--input fits one run, and {file} holds {len(runs)}")
    check_bound(policies, runs)
    return [_plan(each, policies, app=app, given=given, file=file) for each in runs]


def bound(run: AgentRun, policies: Sequence[ToolPolicy]) -> tuple[ToolPolicyRules, ...]:
    """The policies that bind the run. Raises :class:`ManifestError` if one it names does not."""
    binding = [policy for policy in policies if policy.selects(run)]
    for index, ref in enumerate(run.spec.policy_refs):
        if any(policy.metadata.name == ref.name for policy in binding):
            continue
        there = any(policy.metadata.name == ref.name for policy in policies)
        why = "is here, but its selector does not select this run" if there else "is not here"
        raise run.problem(
            f"ToolPolicy {ref.name!r} {why}", at=("spec", "policyRefs", index, "name")
        )
    return tuple(policy.rules() for policy in binding)


def run_id_of(run: AgentRun) -> str:
    """The run's id on a laptop. Raises :class:`ManifestError` if it cannot be one."""
    key = run.spec.run_key or run.metadata.name
    if ":" in key:  # allowed in a key, but not in a run id: kept apart by a digest
        key = f"{key.replace(':', '-')}-{ids.digest_of(key.encode())[:8]}"
    try:
        return ids.check_run_id(key)
    except ConfigError as error:
        at = ("spec", "runKey") if run.spec.run_key else ("metadata", "name")
        raise run.problem(str(error), at=at) from None


def _plan(
    run: AgentRun,
    policies: Sequence[ToolPolicy],
    *,
    app: str | None,
    given: Any | None,
    file: Path,
) -> Plan:
    if given is None and run.spec.input.config_map_ref is not None:
        raise run.problem(
            "a ConfigMap is only in a cluster; write the input here or give it with --input",
            at=("spec", "input", "configMapRef"),
        )
    return Plan(
        manifest=run,
        run_id=run_id_of(run),
        app=app or run.spec.agent.app,
        input=run.spec.input.inline if given is None else given,
        policies=bound(run, policies),
        file=file,
    )
