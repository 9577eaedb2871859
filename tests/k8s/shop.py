"""A shop: a namespace on the fake API server with a real store, which operators look at and whose
pool has a real engine as its worker.

What a cluster's controllers would do (defaults of a template, a pod of a Deployment) is done here.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aaa.algos import ToolLoop
from aaa.clock import SYSTEM_CLOCK, Clock
from aaa.llm import LLMHandler
from aaa.llm.fake import FakeLLMClient, text, tool_call
from aaa.llm.messages import ModelReply, ModelRequest
from aaa.policy import PolicyLayers
from aaa.runtime import Engine
from aaa.store import open_store
from aaa.tools import Tool, ToolHandler, ToolRegistry, tool
from aaa_operator import names
from aaa_operator.admission import EXPRESSION, binding_path, policy_path
from aaa_operator.cluster import Cluster
from aaa_operator.namespace import Namespace
from aaa_operator.settings import Settings
from k8s.fake_api import FakeApi
from k8s.scene import NAMESPACE, NAMESPACE_UID, SETTINGS, defaulted, raw_pod

BOUND_S = 60
#: Kinds that no operator watches.
_UNWATCHED = ("Secret", "Event", "Lease")

DEFAULTS = Settings(pools=SETTINGS)
Model = Callable[[ModelRequest], ModelReply]


@tool(requires_approval=True)
async def refund(order_id: str, note: str = "") -> dict[str, str]:
    """Refund an order."""
    return {"refunded": order_id}


def ask_for_one(request: ModelRequest) -> ModelReply:
    """A model that wants one refund, and is then done."""
    if request.messages[-1].role == "tool":
        return text("done")
    return tool_call("refund", order_id="A-100", note="n" * 600)


class Watcher:
    """An operator's process, as far as one namespace goes: what it has heard, and its looks."""

    def __init__(
        self,
        api: FakeApi,
        *,
        name: str = "one",
        settings: Settings = DEFAULTS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._api, self._heard = api, len(api.changes)
        self.cluster = Cluster()
        self.namespace = Namespace(
            NAMESPACE,
            api=api.api(),
            cluster=self.cluster,
            settings=settings,
            canary=f"operator.{name}",
            clock=clock,
        )
        for (kind, namespace, _), raw in api.objects.items():
            self._hear(kind, namespace, raw, deleted=False)

    @property
    def behind(self) -> bool:
        """Whether something has changed that it has not heard of."""
        return self._heard < len(self._api.changes)

    async def look(self) -> None:
        """Hear what has changed, and look once."""
        new, self._heard = self._api.changes[self._heard :], len(self._api.changes)
        for kind, raw, deleted in new:
            self._hear(kind, raw["metadata"]["namespace"], raw, deleted=deleted)
        await self.namespace.look()

    def _hear(self, kind: str, namespace: str, raw: dict[str, Any], *, deleted: bool) -> None:
        if namespace == NAMESPACE and kind not in _UNWATCHED:
            self.cluster.heard(kind, raw, deleted=deleted)


class Shop:
    """The namespace, with one operator.

    It brings its store, at ``url``, unless ``settings`` name one that is shared.
    """

    def __init__(
        self, url: str, *, settings: Settings = DEFAULTS, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.api, self._settings, self._clock = FakeApi(), settings, clock
        self.api.others[f"/api/v1/namespaces/{NAMESPACE}"] = {"metadata": {"uid": NAMESPACE_UID}}
        if not settings.store_file:
            self.api.put(store_secret(url))
        self.operator = self._watcher()

    @property
    def url(self) -> str:
        """The store's as the workers have it."""
        data = self.api.get("Secret", "aaa-store")["data"]
        return base64.b64decode(data["url"]).decode()

    def _watcher(self) -> Watcher:
        return Watcher(self.api, settings=self._settings, clock=self._clock)

    async def close(self) -> None:
        await self.operator.namespace.close()

    async def restart(self) -> None:
        """Another operator process: it remembers nothing."""
        await self.close()
        self.operator = self._watcher()

    async def look(self) -> None:
        """One look, and what controllers do about it."""
        await self.operator.look()
        self.new_pools()

    def new_pools(self) -> list[str]:
        """The pools whose first pod has come up just now."""
        found = list(_without_pods(self.api))
        for raw in found:
            template = defaulted(raw["spec"]["template"])
            self.api.put({**raw, "spec": {**raw["spec"], "template": template}})
            name = raw["metadata"]["name"]
            self.api.put(raw_pod(f"{name}-0", name))
        return [raw["metadata"]["name"] for raw in found]

    def condition(self, type_: str, kind: str = "AgentRun", name: str = "refund") -> str:
        found = (self.api.get(kind, name).get("status") or {}).get("conditions") or []
        return next((f"{c['status']}/{c['reason']}" for c in found if c["type"] == type_), "")

    async def until(self, type_: str, wanted: str, **at: str) -> None:
        """Look until an object has this condition."""
        async with asyncio.timeout(BOUND_S):
            while self.condition(type_, **at) != wanted:
                await self.look()
                await asyncio.sleep(0.02)

    async def settled(self) -> None:
        """Look until nothing is written any more."""
        async with asyncio.timeout(BOUND_S):
            before = -1
            while before != len(self.api.writes) or self.operator.behind:
                before = len(self.api.writes)
                await self.look()

    def pool(self, name: str = "refund") -> str:
        """The pool of an AgentRun."""
        return str(self.api.get("AgentRun", name)["status"]["pool"]["name"])

    def engine(
        self,
        *tools: Tool[..., Any],
        pool: str = "",
        model: Model = ask_for_one,
        concurrency: int = 64,
    ) -> Engine:
        """A worker of the pool, as it would run in its pod; it has ``refund`` if nothing else."""
        pool = pool or self.pool()
        engine = Engine(
            open_store(self.url, latest=lambda: self.url),
            app=pool,
            worker=f"{pool}-0-7-abc",
            concurrency=concurrency,
        )
        registry = ToolRegistry(tools or (refund,))
        LLMHandler(FakeLLMClient(model)).attach(engine)
        ToolHandler(registry).attach(engine)
        engine.serve(ToolLoop(registry))
        data = self.api.get("ConfigMap", f"{pool}-policy")["data"]
        layers = [PolicyLayers.from_json(json.loads(text)) for text in data.values()]
        engine.follow_policies({one.hash: one for one in layers})
        return engine

    def approval(self, run: str = "refund", *, name: str = "yes") -> dict[str, Any]:
        """Ann's approval of the call that the run waits for."""
        raw = self.api.get("AgentRun", run)
        (call,) = raw["status"]["pendingApprovals"]
        return decision(
            raw,
            call,
            name=name,
            decision="Approve",
            expiresAt="2999-01-01T00:00:00Z",
        )


def decision(
    run: dict[str, Any], call: dict[str, Any], *, name: str = "yes", **spec: Any
) -> dict[str, Any]:
    """Ann's word on one call."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ToolDecision",
        "metadata": {"name": name, "generation": 1},
        "spec": {
            "runRef": {"name": run["metadata"]["name"], "uid": run["metadata"]["uid"]},
            "callId": call["callId"],
            "argsDigest": call["argsDigest"],
            "decidedBy": "ann",
            **spec,
        },
    }


def store_secret(url: str) -> dict[str, Any]:
    return {
        "kind": "Secret",
        "metadata": {"name": "aaa-store", "labels": {names.STORE: ""}},
        "data": {"url": base64.b64encode(url.encode()).decode()},
    }


def allow_decisions(api: FakeApi) -> None:
    """Install the admission policy that ties ``decidedBy`` to its user."""
    name = DEFAULTS.admission_policy
    rule = {
        "apiGroups": ["aaa.dev"],
        "apiVersions": ["v1alpha1"],
        "operations": ["CREATE"],
        "resources": ["tooldecisions"],
    }
    constraints = {"resourceRules": [rule]}
    validations = [{"expression": EXPRESSION}]
    spec = {"matchConstraints": constraints, "validations": validations}
    api.others[policy_path(name)] = {"spec": spec}
    bound = {"policyName": name, "validationActions": ["Deny"]}
    api.others[binding_path(name)] = {"spec": bound}


def all_of(api: FakeApi, kind: str) -> Sequence[dict[str, Any]]:
    return [raw for (its_kind, _, _), raw in sorted(api.objects.items()) if its_kind == kind]


def _without_pods(api: FakeApi) -> Iterator[dict[str, Any]]:
    for raw in all_of(api, "Deployment"):
        if "dnsPolicy" not in raw["spec"]["template"]["spec"]:
            yield raw
