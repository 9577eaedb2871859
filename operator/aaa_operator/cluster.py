"""What the watch has delivered, by namespace: parsed once, when it comes, and kept small."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from aaa_operator import names
from aaa_operator.observe import (
    DecisionSeen,
    PodSeen,
    PolicySeen,
    Pool,
    Problem,
    Raw,
    RunSeen,
    Snapshot,
    StoreSeen,
    decision_of,
    meta_of,
    pod_of,
    policy_of,
    run_of,
)
from aaa_operator.pod import config_name

_T = TypeVar("_T")
_PARTS: Final = {
    "Deployment": "deployment",
    "ConfigMap": "config",
    "PodDisruptionBudget": "budget",
    "ControllerRevision": "revision",
}


@dataclass(slots=True)
class _Namespace:
    """The objects of one namespace, by name."""

    runs: dict[str, RunSeen] = field(default_factory=dict)
    policies: dict[str, PolicySeen] = field(default_factory=dict)
    decisions: dict[str, DecisionSeen] = field(default_factory=dict)
    pods: dict[str, PodSeen] = field(default_factory=dict)
    parts: dict[tuple[str, str], Raw] = field(default_factory=dict)
    written_ms: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What a pass has asked for beside the watch."""

    namespace_uid: str
    terminating: bool = False
    config_maps: Mapping[str, Raw] = field(default_factory=dict)
    worker_accounts: frozenset[str] = frozenset()
    store_secrets: frozenset[str] = frozenset()
    decisions_barred: Problem | None = None
    quarantined: Mapping[str, Problem] = field(default_factory=dict)
    hindered: Mapping[str, Problem] = field(default_factory=dict)
    unread: Problem | None = None
    orphans: frozenset[str] = frozenset()
    nothing_goes: bool = False


class Cluster:
    """Filled by the watch, read by each pass."""

    def __init__(self) -> None:
        self._namespaces: dict[str, _Namespace] = {}

    def heard(self, kind: str, raw: Mapping[str, Any], *, deleted: bool) -> str:
        """Take in one object as the watch delivers it; the namespace to look at."""
        metadata = raw["metadata"]
        namespace, name = str(metadata["namespace"]), str(metadata["name"])
        seen = self._namespaces.setdefault(namespace, _Namespace())
        if kind in _PARTS:
            if deleted:
                seen.parts.pop((kind, name), None)
            else:
                seen.parts[kind, name] = _small(raw, kind)
            return namespace
        small = _small(raw, kind)
        match kind:
            case "AgentRun":
                _keep(seen.runs, name, None if deleted else run_of(small))
            case "ToolPolicy":
                _keep(seen.policies, name, None if deleted else policy_of(small))
            case "ToolDecision":
                _keep(seen.decisions, name, None if deleted else decision_of(small))
            case "Pod":
                _keep(seen.pods, name, None if deleted else pod_of(small))
        if deleted:
            seen.written_ms.pop(str(metadata.get("uid")), None)
        return namespace

    def wrote(self, namespace: str, uid: str, *, now_ms: int) -> None:
        """A status was written."""
        self._namespaces.setdefault(namespace, _Namespace()).written_ms[uid] = now_ms

    def namespaces(self) -> list[str]:
        return sorted(self._namespaces)

    def runs(self, namespace: str) -> list[RunSeen]:
        return list(self._namespaces.get(namespace, _Namespace()).runs.values())

    def pods(self, namespace: str) -> tuple[PodSeen, ...]:
        return tuple(self._namespaces.get(namespace, _Namespace()).pods.values())

    def pools(self, namespace: str) -> dict[str, Pool]:
        """The pools by name, as far as their objects are there."""
        return _pools(self._namespaces.get(namespace, _Namespace()))

    def config_map(self, namespace: str, name: str) -> Raw | None:
        """A ConfigMap that the watch has delivered."""
        return self._namespaces.get(namespace, _Namespace()).parts.get(("ConfigMap", name))

    def undecided(self, namespace: str) -> bool:
        """Whether a decision may still have to be taken."""
        found = self._namespaces.get(namespace, _Namespace()).decisions.values()
        return any(not _judged(one) for one in found)

    def runs_to_decide(self, namespace: str) -> set[str]:
        """The names of the AgentRuns about which a decision may still have to be taken, or was
        taken and is not seen in their status yet.
        """
        seen = self._namespaces.get(namespace, _Namespace())
        open_calls = {
            (run.meta.name, call.get("callId"))
            for run in seen.runs.values()
            for call in run.status.get("unknownOutcomes") or ()
        }
        specs = [
            (one.manifest.spec, _judged(one))
            for one in seen.decisions.values()
            if one.manifest is not None
        ]
        return {
            spec.run_ref.name
            for spec, judged in specs
            if not judged or (spec.run_ref.name, spec.call_id) in open_calls
        }

    def snapshot(
        self, namespace: str, *, store: StoreSeen, around: Around, now_ms: int
    ) -> Snapshot:
        """The namespace at this moment."""
        seen = self._namespaces.get(namespace, _Namespace())
        own = {
            name: raw
            for (kind, name), raw in seen.parts.items()
            if kind == "ConfigMap" and names.POOL not in meta_of(raw).labels
        }
        return Snapshot(
            namespace=namespace,
            namespace_uid=around.namespace_uid,
            now_ms=now_ms,
            terminating=around.terminating,
            runs=tuple(seen.runs[name] for name in sorted(seen.runs)),
            policies=tuple(seen.policies[name] for name in sorted(seen.policies)),
            decisions=tuple(seen.decisions[name] for name in sorted(seen.decisions)),
            pools=_pools(seen),
            config_maps={**own, **around.config_maps},
            worker_accounts=around.worker_accounts,
            store_secrets=around.store_secrets,
            store=store,
            written_ms=dict(seen.written_ms),
            quarantined=around.quarantined,
            hindered=around.hindered,
            unread=around.unread,
            decisions_barred=around.decisions_barred,
            orphans=around.orphans,
            nothing_goes=around.nothing_goes,
        )


def is_part(raw: Raw, kind: str, pool: str) -> bool:
    """Whether it is the pool's own, and not somebody's object that carries its label."""
    meta = meta_of(raw)
    name = config_name(pool) if kind == "ConfigMap" else pool
    return meta.name == name and meta.labels.get(names.MANAGED_BY) == names.MANAGER


def _pools(seen: _Namespace) -> dict[str, Pool]:
    parts: dict[str, dict[str, Any]] = {}
    for (kind, _), raw in seen.parts.items():
        pool = meta_of(raw).labels.get(names.POOL)
        if pool and is_part(raw, kind, pool):
            parts.setdefault(pool, {})[_PARTS[kind]] = raw
    pods: dict[str, list[PodSeen]] = {}
    for pod in seen.pods.values():
        if pod.pool:
            pods.setdefault(pod.pool, []).append(pod)
            parts.setdefault(pod.pool, {})
    return {
        name: Pool(name=name, pods=tuple(pods.get(name, ())), **found)
        for name, found in parts.items()
    }


def _keep(found: dict[str, _T], name: str, one: _T | None) -> None:
    if one is None:
        found.pop(name, None)
    else:
        found[name] = one


def _judged(decision: DecisionSeen) -> bool:
    return any(
        each.get("type") == "Accepted" and each.get("status") in ("True", "False")
        for each in decision.status.get("conditions") or ()
    )


def _small(raw: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Without who set which field, which is half of an object's size, and with its kind."""
    metadata = {key: value for key, value in raw["metadata"].items() if key != "managedFields"}
    return {**raw, "kind": kind, "metadata": metadata}
