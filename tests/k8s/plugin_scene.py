"""A small cluster to type ``kubectl aaa`` at: an API server on a socket with the operator's endpoint
behind its service proxy, a namespace that is looked at again and again, and a worker.

Everything lives on an event loop in a thread of its own, as the command has one of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
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

from aaa_kubectl import program
from aaa_operator.observe import Problem, RunSeen
from aaa_operator.read import read_app
from aaa_operator.reading import Reading
from aaa_operator.serving import serve
from cli.desk import Done
from k8s.scene import raw_run
from k8s.shop import Shop, allow_decisions

BOUND_S = 30
ANN = "ann@example.com"
_T = TypeVar("_T")


class Town:
    """The cluster. ``folder`` holds the kubeconfig."""

    def __init__(self, store_url: str, folder: Path) -> None:
        self.shop = Shop(store_url)
        self.api = self.shop.api
        self.folder, self.port, self.proxied = folder, 0, 0
        self.loop = asyncio.new_event_loop()
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
        self.reading = Reading(self.shop.operator.cluster, self._store_url)
        self.allowed = True
        allow_decisions(self.api)

    # ------------------------------------------------------------------------------ typing

    def type(self, *arguments: str) -> Done:
        """Run ``kubectl aaa`` in this process."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = program.run([*arguments, "--kubeconfig", str(self.kubeconfig())])
        return Done(code, out.getvalue(), err.getvalue())

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
                while self.shop.condition(type_, name=name) != wanted:
                    await asyncio.sleep(0.02)

        self.do(wait())

    @property
    def call(self) -> str:
        """The id of the call that waits for an approval."""
        (waiting,) = self.api.get("AgentRun", "refund")["status"]["pendingApprovals"]
        return str(waiting["callId"])

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
            await self.shop.close()

    async def _look_for_ever(self, stack: AsyncExitStack) -> None:
        worker = False
        while True:
            await self.shop.operator.look()
            for pool in self.shop.new_pools():
                if not worker:
                    worker = True
                    await stack.enter_async_context(self.shop.engine(pool=pool))
            await asyncio.sleep(0.02)

    async def _store_url(self, namespace: str, runs: list[RunSeen]) -> str | Problem:
        assert namespace == "shop"
        return await self.shop.operator.namespace.store_url(runs)

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
