"""One namespace with an operator, from end to end: the API server alone is not real."""

from __future__ import annotations

import asyncio
import base64
import json

from aaa.algos import ToolLoop
from aaa.clock import SYSTEM_CLOCK, Clock
from aaa.llm import LLMHandler
from aaa.llm.fake import FakeLLMClient, text, tool_call
from aaa.llm.messages import ModelReply, ModelRequest
from aaa.policy import PolicyLayers
from aaa.runtime import Engine
from aaa.store import open_store
from aaa.tools import ToolHandler, ToolRegistry, tool
from aaa_operator import names
from aaa_operator.cluster import Cluster
from aaa_operator.namespace import Namespace
from aaa_operator.settings import Settings
from k8s.fake_api import FakeApi
from k8s.scene import SETTINGS, defaulted, raw_pod

BOUND_S = 20


@tool(requires_approval=True)
async def refund(order_id: str) -> dict[str, str]:
    """Refund an order."""
    return {"refunded": order_id}


def model(request: ModelRequest) -> ModelReply:
    if request.messages[-1].role == "tool":
        return text("done")
    return tool_call("refund", order_id="A-100")


class Shop:
    """A namespace on a fake API server, with a real Redis and a real engine as its worker.

    It brings its store, at ``url``, unless ``settings`` name one that is shared.
    """

    def __init__(
        self, url: str, *, settings: Settings | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.api, self.cluster = FakeApi(), Cluster()
        self.settings, self.clock = settings or Settings(pools=SETTINGS), clock
        self.namespace = self._operator()
        self.api.others["/api/v1/namespaces/shop"] = {"metadata": {"uid": "ns-uid"}}
        if not self.settings.store_file:
            self.api.put(
                {
                    "kind": "Secret",
                    "metadata": {"name": "aaa-store", "labels": {names.STORE: ""}},
                    "data": {"url": base64.b64encode(url.encode()).decode()},
                }
            )

    @property
    def url(self) -> str:
        """The store's as the workers have it."""
        data = self.api.get("Secret", "aaa-store")["data"]
        return base64.b64decode(data["url"]).decode()

    def _operator(self) -> Namespace:
        return Namespace(
            "shop",
            api=self.api.api(),
            cluster=self.cluster,
            settings=self.settings,
            canary="operator.one",
            clock=self.clock,
        )

    async def restart(self) -> None:
        """Another operator process: it remembers nothing."""
        await self.namespace.close()
        self.cluster = Cluster()
        for (kind, _, _), raw in self.api.objects.items():
            self.api.changes.append((kind, raw, False))
        self.namespace = self._operator()

    async def look(self) -> None:
        """Deliver what the watch has, and what controllers would have done; then look once."""
        for kind, raw, deleted in self.api.changes:
            if kind not in ("Secret", "Event", "Lease"):
                self.cluster.heard(kind, raw, deleted=deleted)
        self.api.changes.clear()
        await self.namespace.look()
        for (kind, _, name), raw in list(self.api.objects.items()):
            if kind == "Deployment" and "dnsPolicy" not in raw["spec"]["template"]["spec"]:
                template = defaulted(raw["spec"]["template"])
                self.api.put({**raw, "spec": {**raw["spec"], "template": template}})
                self.api.put(raw_pod(f"{name}-0", name))

    def condition(self, type_: str, kind: str = "AgentRun", name: str = "refund") -> str:
        found = (self.api.get(kind, name).get("status") or {}).get("conditions") or []
        return next((f"{c['status']}/{c['reason']}" for c in found if c["type"] == type_), "")

    async def until(self, type_: str, wanted: str, **at: str) -> None:
        async with asyncio.timeout(BOUND_S):
            while self.condition(type_, **at) != wanted:
                await self.look()
                await asyncio.sleep(0.02)

    async def settled(self) -> None:
        """Look until nothing is written any more."""
        async with asyncio.timeout(BOUND_S):
            before = -1
            while before != len(self.api.writes) or self.api.changes:
                before = len(self.api.writes)
                await self.look()

    def engine(self) -> Engine:
        """A worker of the pool, as it would run in its pod."""
        pool = self.api.get("AgentRun", "refund")["status"]["pool"]["name"]
        engine = Engine(
            open_store(self.url, latest=lambda: self.url), app=pool, worker=f"{pool}-0-7-abc"
        )
        registry = ToolRegistry([refund])
        LLMHandler(FakeLLMClient(model)).attach(engine)
        ToolHandler(registry).attach(engine)
        engine.serve(ToolLoop(registry))
        data = self.api.get("ConfigMap", f"{pool}-policy")["data"]
        layers = [PolicyLayers.from_json(json.loads(text)) for text in data.values()]
        engine.follow_policies({one.hash: one for one in layers})
        return engine
