"""A model provider on this machine: speaks the chat-completions protocol, and counts requests.

Each request takes the next of the answers that the test has put in line; without one it gets 500,
so that a hidden retry can never be served by accident. Any other path answers likewise, so that
the other providers' libraries can be made to fail here too.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

BOUND_S = 20
Chunks = list[dict[str, Any]]


@dataclass(frozen=True)
class Answer:
    """What one request gets."""

    content: str | None = None
    #: (id, name, arguments as text) of each call.
    calls: tuple[tuple[str, str, str], ...] = ()
    finish_reason: str = "stop"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    error: str = "out of order"
    #: ``"cut"``: the connection drops after the first bit; ``"early"``: the stream ends there
    #: politely; ``"silent"``: nothing ever comes.
    fault: str | None = None


class OpenAIServer:
    """``with OpenAIServer() as server:``; a thread of its own on a free port of 127.0.0.1."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._answers: list[Answer] = []
        self._release: list[Callable[[], object]] = []
        route = Route("/{path:path}", self._handle, methods=["POST"])
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._server = uvicorn.Server(
            uvicorn.Config(
                Starlette(routes=[route]),
                log_level="critical",
                lifespan="off",
                timeout_graceful_shutdown=1,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    @property
    def requests(self) -> int:
        """How many requests have reached the server."""
        return len(self.bodies)

    def answers(self, *answers: Answer) -> None:
        """Put answers in line."""
        self._answers.extend(answers)

    def forget(self) -> None:
        """As if just started: nothing received, nothing in line."""
        self.bodies.clear()
        self._answers.clear()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for release in self._release:
            release()
        self._server.should_exit = True
        self._thread.join(BOUND_S)
        assert not self._thread.is_alive()

    async def _handle(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        answer = self._answers.pop(0) if self._answers else Answer(status=500)
        if answer.fault == "silent":
            await self._wait_for_the_end()
        if answer.status != 200:
            error = {"error": {"message": answer.error, "type": "test", "code": "test"}}
            return JSONResponse(error, answer.status, answer.headers)
        if body.get("stream"):
            return StreamingResponse(_stream(answer), media_type="text/event-stream")
        if answer.fault == "cut":
            # Less body than announced: the connection ends in the middle of the answer.
            return StreamingResponse(_half(), headers={"content-length": "1000"})
        return JSONResponse(_whole(answer))

    async def _wait_for_the_end(self) -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._release.append(lambda: loop.call_soon_threadsafe(ended.set))
        await ended.wait()


def _whole(answer: Answer) -> dict[str, Any]:
    calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in answer.calls
    ]
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": answer.finish_reason}
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    return {**_head("chat.completion"), "choices": [choice], "usage": usage}


async def _half() -> AsyncIterator[bytes]:
    yield b'{"id": "chatcmpl-1", '
    raise ConnectionResetError("cut on purpose")


async def _stream(answer: Answer) -> AsyncIterator[str]:
    for place, delta in enumerate(_deltas(answer)):
        yield _event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        if place == 1 and answer.fault == "cut":
            raise ConnectionResetError("cut on purpose")
        if place == 1 and answer.fault == "early":
            return
    yield _event({"choices": [{"index": 0, "delta": {}, "finish_reason": answer.finish_reason}]})
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    yield _event({"choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def _deltas(answer: Answer) -> Chunks:
    deltas: Chunks = [{"role": "assistant"}]
    half = len(answer.content or "") // 2
    if answer.content:
        deltas += [{"content": answer.content[:half]}, {"content": answer.content[half:]}]
    for index, (call_id, name, arguments) in enumerate(answer.calls):
        function = {"name": name, "arguments": ""}
        deltas.append(
            {
                "tool_calls": [
                    {"index": index, "id": call_id, "type": "function", "function": function}
                ]
            }
        )
        deltas.extend(
            {"tool_calls": [{"index": index, "function": {"arguments": bit}}]}
            for bit in (arguments[:5], arguments[5:])
        )
    return deltas


def _head(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1_700_000_000, "model": "test-model"}


def _event(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps({**_head('chat.completion.chunk'), **chunk})}\n\n"
