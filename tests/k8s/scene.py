"""A namespace to plan for: raw objects as an API server would hand them out, and a small world in
which actions take effect, so that a plan can be followed until there is nothing left to do.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aaa.client import ToolLayers, input_digest
from aaa_operator import actions as act
from aaa_operator import names
from aaa_operator.cluster import is_part
from aaa_operator.observe import (
    Pool,
    PoolCode,
    Problem,
    Progress,
    Snapshot,
    StoreSeen,
    decision_of,
    meta_of,
    pod_of,
    policy_of,
    run_of,
)
from aaa_operator.plan import Plan, plan
from aaa_operator.settings import PoolSettings

NOW_MS = 1_800_000_000_000
NAMESPACE, NAMESPACE_UID = "shop", "ns-uid"
STORE = "store-1"
SETTINGS = PoolSettings(image="registry.example/aaa-worker:1")
ENOUGH = 40
COST = names.DELETION_COST


def raw_run(name: str = "refund", **changes: Any) -> dict[str, Any]:
    """An AgentRun; ``spec``, ``status`` and ``metadata`` are merged over the defaults."""
    raw: dict[str, Any] = {
        "apiVersion": names.API_VERSION,
        "kind": "AgentRun",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "generation": 1,
            "labels": {"team": "payments"},
        },
        "spec": {"agent": {"app": "shop.agent:app"}, "input": {"task": "refund A-100"}},
    }
    for key, value in changes.items():
        raw[key] = {**raw.get(key, {}), **value}
    return raw


def raw_policy(name: str = "payments", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ToolPolicy",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "generation": 1,
        },
        "spec": {"selector": {"matchLabels": {"team": "payments"}}, **spec},
    }


def raw_decision(decision: str = "Approve", **spec: Any) -> dict[str, Any]:
    extra = {"expiresAt": "2027-12-01T00:00:00Z"} if decision == "Approve" else {"reason": "no"}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ToolDecision",
        "metadata": {
            "name": "decided",
            "namespace": NAMESPACE,
            "uid": "uid-decided",
            "resourceVersion": "1",
            "generation": 1,
        },
        "spec": {
            "runRef": {"name": "refund", "uid": "uid-refund"},
            "callId": "c2-0",
            "argsDigest": "0123456789abcdef",
            "decision": decision,
            "decidedBy": "ann",
            **extra,
            **spec,
        },
    }


def raw_pod(
    name: str, pool: str, *, ready: bool = True, started: str | None = None, **more: Any
) -> dict[str, Any]:
    state = {"running": {"startedAt": started or "2027-01-15T07:00:00Z"}}
    worker = {"name": "worker", "ready": ready, "imageID": "sha256:one", "state": state, **more}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "labels": {names.POOL: pool},
        },
        "status": {"phase": "Running", "containerStatuses": [worker]},
    }


class StoppedClock:
    """Goes on only by hand, or while somebody waits."""

    def __init__(self) -> None:
        self.wall_ms, self.boot = NOW_MS, 1_000.0

    def now_ms(self) -> int:
        return self.wall_ms

    def boot_s(self) -> float:
        return self.boot

    async def sleep(self, seconds: float) -> None:
        self.boot += seconds

    def token(self) -> str:
        return "0" * 16


@dataclass
class World:
    """Objects by (kind, name), and the runs of the store."""

    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    store: StoreSeen = field(default_factory=lambda: StoreSeen(identity=STORE))
    now_ms: int = NOW_MS
    written_ms: dict[str, int] = field(default_factory=dict)
    terminating: bool = False
    barred: Problem | None = None
    accounts: frozenset[str] = frozenset()
    secrets: frozenset[str] = frozenset()
    quarantined: dict[str, Problem] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    log: list[act.Action] = field(default_factory=list)
    versions: int = 1

    @classmethod
    def of(cls, *raws: dict[str, Any]) -> World:
        world = cls()
        for raw in raws:
            world.put(raw)
        return world

    def put(self, raw: Mapping[str, Any]) -> None:
        self.versions += 1
        stored = copy.deepcopy(dict(raw))
        stored["metadata"].setdefault("uid", f"uid-{raw['kind']}-{raw['metadata']['name']}")
        stored["metadata"]["resourceVersion"] = str(self.versions)
        self.objects[raw["kind"], raw["metadata"]["name"]] = stored

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return self.objects[kind, name]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [raw for (found, _), raw in sorted(self.objects.items()) if found == kind]

    def status(self, name: str = "refund", kind: str = "AgentRun") -> dict[str, Any]:
        status: dict[str, Any] = self.get(kind, name).get("status", {})
        return status

    def condition(self, type_: str, name: str = "refund", kind: str = "AgentRun") -> str:
        found = {c["type"]: c for c in self.status(name, kind).get("conditions", ())}
        return f"{found[type_]['status']}/{found[type_]['reason']}"

    def message(self, type_: str, name: str = "refund", kind: str = "AgentRun") -> str:
        found = {c["type"]: c for c in self.status(name, kind)["conditions"]}
        return str(found[type_]["message"])

    def progress(self, name: str = "refund", **changes: Any) -> None:
        """The run goes on in the store."""
        run_id = self.status(name)["runId"]
        known = self.store.runs[run_id]
        runs = {**self.store.runs, run_id: replace(known, **changes)}
        self.store = replace(self.store, runs=runs)

    def snapshot(self) -> Snapshot:
        return Snapshot(
            namespace=NAMESPACE,
            namespace_uid=NAMESPACE_UID,
            now_ms=self.now_ms,
            terminating=self.terminating,
            runs=tuple(run_of(raw) for raw in self.of_kind("AgentRun")),
            policies=tuple(policy_of(raw) for raw in self.of_kind("ToolPolicy")),
            decisions=tuple(decision_of(raw) for raw in self.of_kind("ToolDecision")),
            pools=self._pools(),
            config_maps={
                raw["metadata"]["name"]: raw
                for raw in self.of_kind("ConfigMap")
                if names.POOL not in meta_of(raw).labels
            },
            worker_accounts=self.accounts,
            store_secrets=self.secrets,
            store=self.store,
            written_ms=dict(self.written_ms),
            quarantined=self.quarantined,
            decisions_barred=self.barred,
        )

    def _pools(self) -> dict[str, Pool]:
        parts: dict[str, dict[str, Any]] = {}
        kinds = {
            "Deployment": "deployment",
            "ConfigMap": "config",
            "PodDisruptionBudget": "budget",
            "ControllerRevision": "revision",
        }
        for (kind, _), raw in self.objects.items():
            pool = meta_of(raw).labels.get(names.POOL)
            if pool and kind in kinds and is_part(raw, kind, pool):
                parts.setdefault(pool, {})[kinds[kind]] = raw
            elif pool and kind == "Pod":
                parts.setdefault(pool, {}).setdefault("pods", []).append(pod_of(raw))
        return {
            name: Pool(name=name, **{**found, "pods": tuple(found.get("pods", ()))})
            for name, found in parts.items()
        }

    def plan(self) -> Plan:
        return plan(self.snapshot(), SETTINGS)

    def settle(self) -> list[act.Action]:
        """Carry plans out until one is empty; every action taken, in order."""
        taken: list[act.Action] = []
        todo: list[act.Action] = []
        for _ in range(ENOUGH):
            todo = self.plan().actions
            if not todo:
                return taken
            for action in todo:
                self.carry_out(action)
            taken += todo
        raise AssertionError(f"still not settled: {todo}")

    def carry_out(self, action: act.Action) -> None:
        self.log.append(action)
        match action:
            case act.Apply():
                self._apply(dict(action.object))
            case act.Delete():
                self.objects.pop((action.kind, action.name))
            case act.WriteStatus():
                raw = self.get(action.kind, action.name)
                self.put({**raw, "status": dict(action.status)})
                self.written_ms[action.uid] = self.now_ms
            case act.SetFinalizers():
                raw = self.get("AgentRun", action.name)
                metadata = {**raw["metadata"], "finalizers": list(action.finalizers)}
                if metadata.get("deletionTimestamp") and not action.finalizers:
                    self.objects.pop(("AgentRun", action.name))
                else:
                    self.put({**raw, "metadata": metadata})
            case act.Annotate():
                self._annotate(action)
            case act.PutBack():
                raw = copy.deepcopy(self.get("Deployment", action.name))
                raw["spec"]["template"] = defaulted(action.template)
                self.put(raw)
                live = {names.LIVE_TEMPLATE: _digest(raw["spec"]["template"])}
                self._annotate(
                    act.Annotate(
                        kind="ControllerRevision", name=action.name, annotations=live, reason=""
                    )
                )
            case act.Scale():
                raw = copy.deepcopy(self.get("Deployment", action.pool))
                raw["spec"]["replicas"] = action.replicas
                self.put(raw)
                self._pods(action.pool, action.replicas)
            case act.Submit():
                self.created.append(action.run_id)
                found = Progress(
                    app=action.app,
                    digest=input_digest(action.input),
                    created_ms=self.now_ms,
                    policy=action.policy,
                )
                self.store = replace(self.store, runs={**self.store.runs, action.run_id: found})
            case act.Require():
                known = replace(self.store.runs[action.run_id], policy=action.policy)
                self.store = replace(self.store, runs={**self.store.runs, action.run_id: known})
            case act.Control():
                changes = {
                    "cancel": {"cancelling": True},
                    "suspend": {"suspended": True},
                    "resume": {"suspended": False},
                }[action.verb]
                known = replace(self.store.runs[action.run_id], **changes)  # type: ignore[arg-type]
                self.store = replace(self.store, runs={**self.store.runs, action.run_id: known})
            case _:
                raise AssertionError(f"not in this world: {action}")

    def _apply(self, wanted: dict[str, Any]) -> None:
        live = self.objects.get((wanted["kind"], wanted["metadata"]["name"]), {})
        merged = _merge(live, wanted)
        if wanted["kind"] == "ConfigMap":
            merged["data"] = wanted.get("data", {})  # one owner: a key that it drops goes
        if wanted["kind"] == "Deployment":
            merged["spec"]["template"] = defaulted(merged["spec"]["template"])
            merged["spec"].setdefault("replicas", 1)
        self.put(merged)
        if wanted["kind"] == "Deployment":
            self._pods(wanted["metadata"]["name"], merged["spec"]["replicas"])

    def _annotate(self, action: act.Annotate) -> None:
        raw = copy.deepcopy(self.get(action.kind, action.name))
        annotations = {**(raw["metadata"].get("annotations") or {}), **action.annotations}
        kept = {key: value for key, value in annotations.items() if value is not None}
        raw["metadata"]["annotations"] = kept
        self.put(raw)

    def _pods(self, pool: str, replicas: int) -> None:
        """Pods come ready at once, serve the app, and have read every policy that stands."""
        there = [raw for raw in self.of_kind("Pod") if meta_of(raw).labels.get(names.POOL) == pool]
        for index in range(replicas if len(there) < replicas else 0):
            if ("Pod", f"{pool}-{index}") not in self.objects:
                self.put(raw_pod(f"{pool}-{index}", pool))
        cheapest = sorted(there, key=lambda raw: int(meta_of(raw).annotations.get(COST, "0")))
        for raw in cheapest[: max(0, len(there) - replicas)]:
            self.objects.pop(("Pod", raw["metadata"]["name"]))

    def workers_speak(self, pool: str) -> None:
        """The pool's workers say what they serve and which policies they have read."""
        data = self.get("ConfigMap", f"{pool}-policy")["data"]
        hashes = frozenset(key.removesuffix(".json") for key in data)
        self.store = replace(
            self.store,
            apps={**self.store.apps, pool: f"{pool}/loop@1/none"},
            acknowledged={**self.store.acknowledged, pool: hashes},
        )

    def code_is(self, pool: str, *tools: ToolLayers) -> None:
        """The pool's workers say which tools their image has."""
        said = PoolCode(digest=repr(tools), tools=tools)
        self.store = replace(self.store, code={**self.store.code, pool: said})

    def record(self, name: str = "refund") -> str:
        """Go on until the run has its id, and no further. Its pool."""
        self.settle()
        pool = str(self.status(name)["pool"]["name"])
        self.workers_speak(pool)
        while "runId" not in self.status(name):
            self.carry_out(self.plan().actions[0])
        return pool

    def begin(self, name: str = "refund") -> str:
        """Settle, let the workers speak, settle: the run is in the store. Its pool."""
        self.settle()
        pool = str(self.status(name)["pool"]["name"])
        self.workers_speak(pool)
        self.settle()
        assert self.status(name)["startTime"]
        return pool


def defaulted(template: Mapping[str, Any]) -> dict[str, Any]:
    """A template with what an API server adds of its own."""
    found = copy.deepcopy(dict(template))
    found["spec"]["dnsPolicy"] = "ClusterFirst"
    found["spec"]["restartPolicy"] = "Always"
    found["spec"]["containers"][0]["terminationMessagePath"] = "/dev/termination-log"
    return found


def _digest(value: object) -> str:
    from aaa_operator.render import digest

    return digest(value)


def _merge(live: Any, wanted: Any) -> Any:
    if isinstance(live, dict) and isinstance(wanted, dict):
        return {**live, **{key: _merge(live.get(key), value) for key, value in wanted.items()}}
    return copy.deepcopy(wanted)
