"""The read-only HTTP endpoint, which ``kubectl aaa`` reaches through the API server's service proxy.

``GET /v1/namespaces/{ns}/…``; every answer is one JSON object with its ``version``, of bounded size.
There is nothing to write here, and no other method is known.

Who asks is not known: the API server takes the caller's identity off before it passes the request
on. So being allowed to reach the Service is not enough: each request names, as ``uid``, an AgentRun of
the namespace that it asks about. Only those whom the API server lets read the namespace's AgentRuns
know one; uids cannot be guessed. In a cluster-wide installation this keeps tenants apart; what an
answer holds is bounded by :mod:`aaa_operator.shown`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from aaa_operator.reading import Reading, Unreadable
from aaa_operator.serving import application
from aaa_operator.shown import VERSION, Json

log = logging.getLogger("aaa.operator")

MAX_EVENTS: Final = 1_000
MAX_RUNS: Final = 500
MAX_BYTES: Final = 1_000_000
#: Questions that are answered at a time; others wait.
_AT_ONCE: Final = 8
#: Seconds for one answer; the API server's proxy itself gives up much later.
_LIMIT_S: Final = 10.0
_BASE: Final = "/v1/namespaces/{namespace}"

Answer = Callable[[web.Request, str], Awaitable[Json]]


def read_app(reading: Reading) -> web.Application:
    """The endpoint's routes."""
    app, room = application(), asyncio.Semaphore(_AT_ONCE)

    def route(path: str, answer: Answer) -> None:
        async def handle(request: web.Request) -> web.Response:
            return await _handled(request, reading, answer, room)

        app.router.add_get(f"{_BASE}{path}", handle, allow_head=False)

    async def runs(request: web.Request, namespace: str) -> Json:
        limit = _number(request, "limit", 50, high=MAX_RUNS)
        return await reading.runs(namespace, state=request.query.get("state"), limit=limit)

    async def run(request: web.Request, namespace: str) -> Json:
        return await reading.run(namespace, request.match_info["name"])

    async def events(request: web.Request, namespace: str) -> Json:
        return await reading.events(
            namespace,
            request.match_info["name"],
            after=_number(request, "after", 0, low=0, high=2**53),
            limit=_number(request, "limit", MAX_EVENTS, high=MAX_EVENTS),
            max_bytes=MAX_BYTES,
        )

    async def policy(request: web.Request, namespace: str) -> Json:
        tools = request.query.getall("tool", [])[:64]
        return await reading.policy(namespace, request.match_info["name"], tools=tools)

    async def pending(request: web.Request, namespace: str) -> Json:
        return await _calls(request, namespace, "pending")

    async def unknown(request: web.Request, namespace: str) -> Json:
        return await _calls(request, namespace, "unknown")

    async def _calls(request: web.Request, namespace: str, which: str) -> Json:
        limit = _number(request, "limit", 50, high=MAX_RUNS)
        return await reading.calls(namespace, which=which, limit=limit, max_bytes=MAX_BYTES)

    async def pools(_: web.Request, namespace: str) -> Json:
        return reading.pools(namespace)

    async def evictions(_: web.Request, namespace: str) -> Json:
        return reading.evictions(namespace)

    route("/runs", runs)
    route("/runs/{name}", run)
    route("/runs/{name}/events", events)
    route("/runs/{name}/policy", policy)
    route("/pending", pending)
    route("/unknown", unknown)
    route("/pools", pools)
    route("/evictions", evictions)
    return app


async def _handled(
    request: web.Request, reading: Reading, answer: Answer, room: asyncio.Semaphore
) -> web.Response:
    namespace = request.match_info["namespace"]
    try:
        if not reading.may_read(namespace, request.query.get("uid", "")):
            raise Unreadable(
                403,
                "UnknownUid",
                f"name as ?uid= the uid of an AgentRun in {namespace}: it shows that you may read "
                "them",
            )
        async with asyncio.timeout(_LIMIT_S), room:
            found = await answer(request, namespace)
    except Unreadable as problem:
        return _problem(problem.status, problem.reason, str(problem))
    except TimeoutError:
        return _problem(504, "Timeout", f"the store did not answer within {_LIMIT_S:g} s")
    except Exception:
        log.exception("a question could not be answered")
        return _problem(500, "Defect", "this should not have happened; see the operator's log")
    return web.json_response({"version": VERSION, **found})


def _problem(status: int, reason: str, message: str) -> web.Response:
    told = {"version": VERSION, "reason": reason, "message": message}
    return web.json_response(told, status=status)


def _number(request: web.Request, name: str, default: int, *, high: int, low: int = 1) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not text.isdigit() or not low <= int(text[:20]) <= high:
        raise Unreadable(400, "BadRequest", f"{name} must be a number from {low} to {high}")
    return int(text)
