"""Which ToolPolicies bind a run, and the ConfigMap through which workers learn what they say.

The selector is the only thing that binds. The merge with the layers of a tool's own code happens
in the worker, by the same :mod:`aaa.policy`; what two policies say against each other is found
here already, before anything reaches a worker. Bindings only grow while a run lives: what a
started run was bound to stays in force, also after the policy's deletion, from the layers that the
pool's ConfigMap still holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aaa.errors import AAAError, ConfigError, PolicyConflict
from aaa.policy import PolicyLayers, ToolPolicyRules, compile_settings
from aaa_operator.observe import PolicySeen, PoolCode, Problem, Raw, RunSeen

#: A ConfigMap holds at most 1 MiB; the rest is for its metadata.
MAX_CONFIG_BYTES: Final = 900 * 1024
#: A tool's name that no entry of any policy names: it shows what is said about all others.
_ANY_TOOL: Final = "aaa-unlisted-tool"
#: The reason where a policy does not fit the tools' own code.
MERGE_REFUSED: Final = "MergeRefused"
_MAX_MERGED: Final = 1_024
#: By the hash of layers and the digest of a pool's code: thousands of runs ask the same.
_MERGED: Final[dict[tuple[str, str], Problem | None]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """The policies of one run. ``layers`` is meaningless while ``problem`` stands."""

    layers: PolicyLayers
    problem: Problem | None = None

    @property
    def hash(self) -> str:
        return self.layers.hash

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(policy.name for policy in self.layers.policies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The policies of an active run, by name, and what its pool's workers make of them."""

    policies: tuple[str, ...]
    pool: str
    acknowledged: bool


def bind(
    run: RunSeen, policies: Sequence[PolicySeen], *, previous: PolicyLayers | None = None
) -> Binding:
    """The policies that bind ``run``; ``previous`` are those that bound it so far, if any.

    Fails closed: a policy that selects the run and cannot be accepted, or one that ``policyRefs``
    names and that does not select it, keeps the run from starting.
    """
    bound: dict[str, ToolPolicyRules] = {}
    if previous is not None:
        bound = {rules.name: rules for rules in previous.policies}
    broken: list[PolicySeen] = []
    for policy in sorted(policies, key=lambda one: one.meta.name):
        if policy.rules is None or policy.manifest is None:
            # What a started run was bound to stays in force as it last was.
            if policy.meta.name not in bound and _may_select(policy, run.meta.labels):
                broken.append(policy)
        elif policy.manifest.spec.selector.matches(run.meta.labels) or policy.meta.name in bound:
            bound[policy.meta.name] = policy.rules
    layers, contradiction = _JUDGED.of(bound)
    problem = _broken(broken) or _missing(run, policies, bound) or contradiction
    return Binding(layers=layers, problem=problem)


def conflict(layers: PolicyLayers) -> Problem | None:
    """What two of the policies say against each other, whatever the tools' own code says."""
    said = {entry.name for policy in layers.policies for entry in policy.tools}
    tools = sorted({name.rstrip("*") or _ANY_TOOL for name in said} | {_ANY_TOOL})
    for tool in tools:
        try:
            compile_settings(tool, policies=layers.policies)
        except PolicyConflict as error:
            return Problem("PolicyConflict", f"{error}; change one of them")
    return None


def against(layers: PolicyLayers, code: PoolCode) -> Problem | None:
    """What the policies say that does not fit what the tools' own code says.

    The message names the layers' hash: the verdict holds for these and for no others.
    """
    key = (layers.hash, code.digest)
    if key not in _MERGED:
        if len(_MERGED) >= _MAX_MERGED:
            _MERGED.clear()
        _MERGED[key] = _merged(layers, code)
    return _MERGED[key]


def judged_before(run: RunSeen, layers: PolicyLayers) -> Problem | None:
    """The verdict of :func:`against` that the run's status holds, if it is about these layers.

    A pool that is not to be used goes, and with it the word of its workers.
    """
    for found in run.status.get("conditions") or ():
        if found.get("type") == "PolicyResolved" and found.get("reason") == MERGE_REFUSED:
            message = str(found.get("message", ""))
            return Problem(MERGE_REFUSED, message) if layers.hash[:12] in message else None
    return None


def _merged(layers: PolicyLayers, code: PoolCode) -> Problem | None:
    for tool in code.tools:
        try:
            tool.settings(layers.policies)
        except AAAError as error:
            return Problem(
                MERGE_REFUSED,
                f"{error}; change the policy (this is said of policy hash {layers.hash[:12]})",
            )
    return None


# ------------------------------------------------------------------------------- the ConfigMap


def key_of(hash_: str) -> str:
    """The ConfigMap's key of one policy hash."""
    return f"{hash_}.json"


def config_data(layers: Iterable[PolicyLayers]) -> dict[str, str]:
    """The ConfigMap's data: one key a hash. Raises :class:`ConfigError` beyond 900 KiB."""
    data = {
        key_of(one.hash): json.dumps(one.to_json(), sort_keys=True, separators=(",", ":"))
        for one in layers
    }
    size = sum(len(key) + len(text.encode()) for key, text in data.items())
    if size > MAX_CONFIG_BYTES:
        raise ConfigError(
            f"the pool's policies have {size} bytes; at most {MAX_CONFIG_BYTES} fit its ConfigMap: "
            "use fewer or smaller ToolPolicies, or isolation: Dedicated"
        )
    return dict(sorted(data.items()))


def layers_in(config: Raw | None, hash_: str | None) -> PolicyLayers | None:
    """The layers that a pool's ConfigMap holds under a hash, checked against it."""
    text = ((config or {}).get("data") or {}).get(key_of(hash_ or ""))
    if text is None:
        return None
    try:
        layers = PolicyLayers.from_json(json.loads(text))
    except (ValueError, ConfigError):
        return None  # edited by hand: it says nothing
    return layers if layers.hash == hash_ else None


# ------------------------------------------------------------------------------------- inside


class _Judged:
    """Sets of policies that were judged lately: thousands of runs are bound by the same few."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._known: dict[tuple[str, ...], tuple[PolicyLayers, Problem | None]] = {}

    def of(self, bound: Mapping[str, ToolPolicyRules]) -> tuple[PolicyLayers, Problem | None]:
        """The layers, with one hash computed once, and what they say against each other."""
        key = tuple(sorted(rules.digest for rules in bound.values()))
        if key not in self._known:
            if len(self._known) >= self._limit:
                self._known.clear()
            layers = PolicyLayers(policies=list(bound.values()))
            self._known[key] = (layers, conflict(layers))
        return self._known[key]


_JUDGED: Final = _Judged(limit=1_024)


def _may_select(policy: PolicySeen, labels: Mapping[str, str]) -> bool:
    """Whether a policy that cannot be accepted may have been meant for a run with these labels.

    Unless its ``matchLabels``, as far as they can be read, exclude the run, it may.
    """
    return all(labels.get(key) == value for key, value in policy.match_labels.items())


def _broken(broken: Sequence[PolicySeen]) -> Problem | None:
    if not broken:
        return None
    first = broken[0]
    why = first.problem.message if first.problem else "it cannot be read"
    return Problem(
        "PolicyNotAccepted",
        f"ToolPolicy {first.meta.name!r} may be meant for this run and is not accepted: {why}",
    )


def _missing(
    run: RunSeen, policies: Sequence[PolicySeen], bound: Mapping[str, ToolPolicyRules]
) -> Problem | None:
    for ref in run.manifest.spec.policy_refs if run.manifest else ():
        if ref.name in bound:
            continue
        there = any(policy.meta.name == ref.name for policy in policies)
        why = "is there, but its selector does not select this run" if there else "does not exist"
        return Problem("PolicyMissing", f"spec.policyRefs: ToolPolicy {ref.name!r} {why}")
    return None
