"""The child of :mod:`aaa.tools.isolate`: one tool, one call, then gone.

It gets its job as one line of JSON on standard input, and reports on a pipe of its own, a line of
JSON each time, so that nothing that the tool prints can be taken for a result. Standard input
stays open for as long as the parent lives: its end is the parent's end, and the child's. On Linux
the kernel sees to that as well, for a tool that never lets another thread run.

``begun`` is reported before the tool's first instruction: a child that dies without it has not
run the tool.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import orjson

from aaa.clock import SYSTEM_CLOCK
from aaa.errors import NotExecuted, OutcomeUnknown, ResultRejected, ToolError
from aaa.tools.context import ToolContext
from aaa.tools.decorator import tool as make_tool
from aaa.tools.definition import Tool
from aaa.tools.isolate import INSIDE
from aaa.tools.result import encode_result

_PR_SET_PDEATHSIG: Final = 1
MAX_MESSAGE_CHARS: Final = 8_000


class Channel:
    """Reports to the parent; from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._lock = descriptor, threading.Lock()

    def send(self, frame: Mapping[str, Any]) -> None:
        data = orjson.dumps(frame) + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._descriptor, data) :]

    def progress(self, message: str, fraction: float | None) -> None:
        self.send({"progress": _clean(message), "fraction": fraction})

    def fail(self, kind: str, message: str) -> None:
        self.send({"error": kind, "message": _clean(message)[:MAX_MESSAGE_CHARS]})


def main() -> NoReturn:
    """Run the job on standard input; ends the process without running exit handlers."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(descriptor, False)
    _die_with(parent)
    faulthandler.enable()
    jobs = os.fdopen(os.dup(0), "rb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    line = jobs.readline()
    if line.endswith(b"\n"):
        threading.Thread(target=_watch, args=(jobs,), daemon=True).start()
        _run(orjson.loads(line), Channel(descriptor))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)  # threads that the tool has left behind end here


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before anybody could be told
        os._exit(1)


def _watch(jobs: Any) -> None:
    """The end of standard input is the parent's end: leave nothing of the group behind."""
    with contextlib.suppress(OSError):
        jobs.read()
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _run(job: Mapping[str, Any], channel: Channel) -> None:
    name = job["name"]
    cancellation = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: cancellation.set())
    try:
        tool = _find(job)
        arguments = tool.validate(job["arguments"])
    except BaseException as error:  # noqa: BLE001 - whatever the module raises, nothing has begun
        channel.fail("NotExecuted", f"{name} was not run: {type(error).__name__}: {error}")
        return
    ctx = _context(job, channel.progress, cancellation)
    channel.send({"begun": True})
    try:
        result = _call(tool, arguments, ctx)
        value = encode_result(result, limit_bytes=job["limit_bytes"], tool=name)
        channel.send({"result": value})
    except (OutcomeUnknown, NotExecuted, ResultRejected) as error:
        kinds = (OutcomeUnknown, NotExecuted, ResultRejected)
        channel.fail(next(k.__name__ for k in kinds if isinstance(error, k)), str(error))
    except BaseException as error:  # noqa: BLE001 - whatever it raised is its outcome (G20)
        if not isinstance(error, asyncio.CancelledError):
            traceback.print_exc()
        channel.fail(type(error).__name__, str(error))


def _find(job: Mapping[str, Any]) -> Tool[..., Any]:
    """The tool by module and name, the same as the parent's."""
    sys.path[:] = job["path"]
    os.environ.pop("PYTHONPATH", None)
    if job["pythonpath"] is not None:
        os.environ["PYTHONPATH"] = job["pythonpath"]
    found: Any = getattr(importlib.import_module(job["module"]), job["qualname"])
    os.environ.pop(INSIDE, None)
    tool: Tool[..., Any] = found if isinstance(found, Tool) else make_tool(found)
    if tool.schema_digest != job["schema_digest"]:
        raise ToolError(f"{job['module']}.{job['qualname']} is not what it was in the worker")
    return tool


def _context(
    job: Mapping[str, Any],
    on_progress: Callable[[str, float | None], None],
    cancellation: threading.Event,
) -> ToolContext:
    left = job["remaining_s"]
    return ToolContext(
        **job["context"],
        deadline=None if left is None else SYSTEM_CLOCK.boot_s() + left,
        clock=SYSTEM_CLOCK.boot_s,
        on_progress=on_progress,
        cancellation=cancellation,
    )


def _call(tool: Tool[..., Any], arguments: Mapping[str, Any], ctx: ToolContext) -> Any:
    return asyncio.run(_cancellable(tool, arguments, ctx))


async def _cancellable(tool: Tool[..., Any], arguments: Mapping[str, Any], ctx: ToolContext) -> Any:
    """As in a worker: being asked to stop cancels an async tool, and is told to another."""
    task = asyncio.ensure_future(tool.call(arguments, ctx))

    def stop() -> None:
        ctx.cancellation.set()
        if tool.is_async:
            task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    if ctx.cancel_requested:
        stop()
    return await task


def _clean(text: str) -> str:
    """Without lone surrogates, which JSON cannot hold."""
    return text.encode("utf-8", "replace").decode()


if __name__ == "__main__":
    main()
