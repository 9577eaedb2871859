"""A small cluster to type ``kubectl aaa`` at: an API server on a socket with the operator's endpoint
behind its service proxy, a namespace that is looked at again and again, and a worker.

Everything lives on an event loop in a thread of its own, as the command has one of its own.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import uvicorn
import yaml
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aaa.algos import ToolLoop
from aaa.llm import LLMHandler
from aaa.llm.fake import FakeLLMClient, text, tool_call
from aaa.llm.messages import ModelReply, ModelRequest
from aaa.policy import PolicyLayers
from aaa.runtime import Engine
from aaa.tools import ToolHandler, ToolRegistry, tool
from aaa_kubectl import program
from aaa_operator import names
from aaa_operator.admission import EXPRESSION, binding_path, policy_path
from aaa_operator.cluster import Cluster
from aaa_operator.namespace import Namespace
from aaa_operator.observe import Problem, RunSeen
from aaa_operator.read import read_app
from aaa_operator.reading import Reading
from aaa_operator.serving import serve
from aaa_operator.settings import Settings
from k8s.fake_api import FakeApi
from k8s.scene import SETTINGS, defaulted, raw_pod, raw_run

BOUND_S = 30
ANN = "ann@example.com"
_T = TypeVar("_T")


@tool(requires_approval=True)
async def refund(order_id: str, note: str = "") -> dict[str, str]:
    """Refund an order."""
    return {"refunded": order_id}


def model(request: ModelRequest) -> ModelReply:
    if request.messages[-1].role == "tool":
        return text("done")
    return tool_call("refund", order_id="A-100", note="n" * 600)


class Town:
    """The cluster. ``folder`` holds the kubeconfig."""

    def __init__(self, store_url: str, folder: Path) -> None:
        self.api, self.cluster, self.url = FakeApi(), Cluster(), store_url
        self.folder, self.port, self.proxied = folder, 0, 0
        self.loop = asyncio.new_event_loop()
        self.api.others["/api/v1/namespaces/shop"] = {"metadata": {"uid": "ns-uid"}}
        self.api.others["/version"] = {"gitVersion": "v1.34.0"}
        self.api.others["/apis/aaa.dev/v1alpha1"] = {"kind": "APIResourceList"}
        service = {"metadata": {"namespace": "aaa", "name": "aaa-operator"}}
        self.api.others["/api/v1/namespaces/shop/services"] = {"items": []}
        self.api.others["/api/v1/namespaces/other/services"] = {"items": []}
        self.api.others["/api/v1/services"] = {"items": [service]}
        proxy = "/api/v1/namespaces/aaa/services/http:aaa-operator:read/proxy/{rest:path}"
        self.api.app.router.routes[:0] = [
            Route(proxy, self._proxy),
            Route(_REVIEW, self._review, methods=["POST"]),
            Route(_ACCESS, self._access, methods=["POST"]),
        ]
        self.namespace = Namespace(
            "shop",
            api=self.api.api(),
            cluster=self.cluster,
            settings=Settings(pools=SETTINGS),
            canary="operator.one",
        )
        self.reading = Reading(self.cluster, self._store_url)
        self.allowed = True
        self._admission()
        secret = {
            "kind": "Secret",
            "metadata": {"name": "aaa-store", "labels": {names.STORE: ""}},
            "data": {"url": base64.b64encode(store_url.encode()).decode()},
        }
        self.api.put(secret)

    # ------------------------------------------------------------------------------ typing

    def type(self, *arguments: str) -> Typed:
        """Run ``kubectl aaa`` in this process."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = program.run([*arguments, "--kubeconfig", str(self.kubeconfig())])
        return Typed(code, out.getvalue(), err.getvalue())

    def kubeconfig(self, **user: Any) -> Path:
        file = self.folder / "kubeconfig"
        context = {"cluster": "town", "user": "ann", "namespace": "shop"}
        written = {
            "current-context": "town",
            "clusters": [{"name": "town", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "contexts": [{"name": "town", "context": context}],
            "users": [{"name": "ann", "user": user}],
        }
        file.write_text(yaml.safe_dump(written))
        return file

    def until(self, type_: str, wanted: str, name: str = "refund") -> None:
        """Wait for a condition of an AgentRun."""

        async def wait() -> None:
            async with asyncio.timeout(BOUND_S):
                while self.condition(type_, name) != wanted:
                    await asyncio.sleep(0.02)

        self.do(wait())

    @property
    def call(self) -> str:
        """The id of the call that waits for an approval."""
        (waiting,) = self.api.get("AgentRun", "refund")["status"]["pendingApprovals"]
        return str(waiting["callId"])

    def condition(self, type_: str, name: str) -> str:
        found = (self.api.get("AgentRun", name).get("status") or {}).get("conditions") or []
        return next((f"{c['status']}/{c['reason']}" for c in found if c["type"] == type_), "")

    def do(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the town's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(BOUND_S)

    # ------------------------------------------------------------------------------- living

    async def live(self, ready: threading.Event, end: asyncio.Event) -> None:
        async with AsyncExitStack() as stack:
            (self.proxied,) = await serve(stack, [(0, read_app(self.reading))], host="127.0.0.1")
            listening = socket.create_server(("127.0.0.1", 0))
            self.port = listening.getsockname()[1]
            server = uvicorn.Server(uvicorn.Config(self.api.app, log_level="warning"))
            serving = asyncio.ensure_future(server.serve(sockets=[listening]))
            looking = asyncio.ensure_future(self._look_for_ever(stack))
            ready.set()
            await end.wait()
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking
            server.should_exit = True
            await serving
            await self.reading.close()
            await self.namespace.close()

    async def _look_for_ever(self, stack: AsyncExitStack) -> None:
        worker = False
        while True:
            for kind, raw, deleted in self.api.changes:
                watched = raw["metadata"]["namespace"] == "shop"
                if watched and kind not in ("Secret", "Event", "Lease"):
                    self.cluster.heard(kind, raw, deleted=deleted)
            self.api.changes.clear()
            await self.namespace.look()
            for (kind, _, name), raw in list(self.api.objects.items()):
                if kind == "Deployment" and "dnsPolicy" not in raw["spec"]["template"]["spec"]:
                    template = defaulted(raw["spec"]["template"])
                    self.api.put({**raw, "spec": {**raw["spec"], "template": template}})
                    self.api.put(raw_pod(f"{name}-0", name))
                    if not worker:
                        worker = True
                        await stack.enter_async_context(self._engine(name))
            await asyncio.sleep(0.02)

    def _engine(self, pool: str) -> Engine:
        engine = Engine(self.url, app=pool, worker=f"{pool}-0-7-abc")
        registry = ToolRegistry([refund])
        LLMHandler(FakeLLMClient(model)).attach(engine)
        ToolHandler(registry).attach(engine)
        engine.serve(ToolLoop(registry))
        data = self.api.get("ConfigMap", f"{pool}-policy")["data"]
        layers = [PolicyLayers.from_json(json.loads(text)) for text in data.values()]
        engine.follow_policies({one.hash: one for one in layers})
        return engine

    async def _store_url(self, namespace: str, runs: list[RunSeen]) -> str | Problem:
        assert namespace == "shop"
        return await self.namespace.store_url(runs)

    async def _proxy(self, request: Request) -> Response:
        url = f"http://127.0.0.1:{self.proxied}/{request.path_params['rest']}"
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, params=list(request.query_params.multi_items())) as reply,
        ):
            return Response(await reply.read(), reply.status, media_type="application/json")

    async def _review(self, _: Request) -> Response:
        return JSONResponse({"status": {"userInfo": {"username": ANN}}}, status_code=201)

    async def _access(self, _: Request) -> Response:
        return JSONResponse({"status": {"allowed": self.allowed}}, status_code=201)

    def _admission(self) -> None:
        name = Settings(pools=SETTINGS).admission_policy
        rule = {
            "apiGroups": ["aaa.dev"],
            "apiVersions": ["v1alpha1"],
            "operations": ["CREATE"],
            "resources": ["tooldecisions"],
        }
        constraints = {"resourceRules": [rule]}
        validations = [{"expression": EXPRESSION}]
        spec = {"matchConstraints": constraints, "validations": validations}
        self.api.others[policy_path(name)] = {"spec": spec}
        bound = {"policyName": name, "validationActions": ["Deny"]}
        self.api.others[binding_path(name)] = {"spec": bound}


class Typed:
    """How a command ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    def __repr__(self) -> str:
        return f"exit {self.code}\n{self.out}\n--\n{self.err}"


@contextmanager
def town(store_url: str, folder: Path, *, runs: tuple[str, ...] = ("refund",)) -> Iterator[Town]:
    """A living town with these AgentRuns."""
    made = Town(store_url, folder)
    for name in runs:
        made.api.put(raw_run(name))
    ready, end = threading.Event(), asyncio.Event()
    thread = threading.Thread(
        target=made.loop.run_until_complete, args=(made.live(ready, end),), daemon=True
    )
    thread.start()
    assert ready.wait(BOUND_S)
    try:
        yield made
    finally:
        made.loop.call_soon_threadsafe(end.set)
        thread.join(BOUND_S)
        made.loop.close()


_REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
