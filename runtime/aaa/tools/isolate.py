"""Runs a tool in a child process, so that it can be stopped whatever it does (G9).

The child is this interpreter with the parent's ``sys.path``; it imports the tool by name and gets
its arguments as JSON (:mod:`aaa.tools.child`). Nothing is pickled and no shell is involved. What
the tool prints goes to the log ``aaa.tool.output``, bounded; results travel apart from it.

Guaranteed: cancelling :func:`run_isolated` ends the child and its process group, by SIGTERM, then
after ``grace_s`` by SIGKILL; an outcome that it still reports in that time is returned. The child
dies with its parent. Not guaranteed: that processes started by the tool die with a *killed*
parent (on an ordinary cancellation they do), or that the effect of a killed tool did not happen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, Final

import orjson

from aaa.errors import NotExecuted, OutcomeError, OutcomeUnknown, ResultRejected, ToolError
from aaa.telemetry import names, tell
from aaa.tools.context import ToolContext
from aaa.tools.definition import Tool
from aaa.tools.result import DEFAULT_LIMIT_BYTES

log = logging.getLogger("aaa.tool.output")

#: How much of what one attempt prints is kept in the log.
MAX_OUTPUT_BYTES: Final = 65_536
#: Beside its result, the largest frame holds a message.
FRAME_SLACK_BYTES: Final = 65_536
#: A child that has reported, or has died, has so long to be gone and to have its pipes read.
REAP_S: Final = 1.0
#: What was printed last is waited for so long.
OUTPUT_S: Final = 0.2
#: Set in a child: a tool's module that runs an engine when imported must not start children.
INSIDE: Final = "AAA_ISOLATED_TOOL"

_CLASSES: Final[Mapping[str, type[OutcomeError]]] = {
    "NotExecuted": NotExecuted,
    "OutcomeUnknown": OutcomeUnknown,
    "ResultRejected": ResultRejected,
}


class ProcessLost(Exception):
    """The child ended without a word after the tool had begun: a lost attempt, not a failure."""


class RaisedInChild(ToolError):
    """What the tool raised; the class of each carries the original's name."""


async def run_isolated(
    tool: Tool[..., Any],
    arguments: Mapping[str, Any],
    ctx: ToolContext,
    *,
    grace_s: float = 2.5,
    limit_bytes: int = DEFAULT_LIMIT_BYTES,
) -> Any:
    """Run the tool once in a child; its result as plain JSON.

    ``arguments`` are the call's own, as JSON: the child checks them again. Raises what the tool
    raised, :class:`NotExecuted` if it did not begin, and :class:`ProcessLost` if the child died.
    """
    job = _job(tool, arguments, ctx, limit_bytes)
    child = await _Child.start(tool.name, ctx, limit_bytes)
    try:
        return await child.outcome(job)
    except asyncio.CancelledError:
        child.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                return await child.outcome(None)
        except (TimeoutError, ProcessLost, NotExecuted):
            raise asyncio.CancelledError from None
    finally:
        await child.end()


def _job(
    tool: Tool[..., Any], arguments: Mapping[str, Any], ctx: ToolContext, limit_bytes: int
) -> bytes:
    function = tool.function
    job = {
        "arguments": arguments,
        "context": {
            "attempt": ctx.attempt,
            "attempts_before": ctx.attempts_before,
            "call_id": ctx.call_id,
            "idempotency_key": ctx.idempotency_key,
            "run_id": ctx.run_id,
        },
        "limit_bytes": limit_bytes,
        "module": function.__module__,
        "name": tool.name,
        "path": _search_path(),
        "pythonpath": os.environ.get("PYTHONPATH"),
        "qualname": function.__qualname__,
        "remaining_s": ctx.remaining_s(),
        "schema_digest": tool.schema_digest,
    }
    return orjson.dumps(job) + b"\n"


async def _spawn(descriptor: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", "-m", "aaa.tools.child", str(descriptor), str(os.getpid())),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={
            **os.environ,
            INSIDE: "1",
            # For the import of AAA itself; the child takes it back before it imports the tool.
            "PYTHONPATH": os.pathsep.join(p for p in _search_path() if os.pathsep not in p),
        },
        pass_fds=(descriptor,),
        start_new_session=True,  # a group of its own, which no Ctrl-C reaches
    )


def _search_path() -> list[str]:
    return [os.path.abspath(entry) for entry in sys.path]


class _Child:
    """One child process and what it has said so far."""

    def __init__(
        self,
        tool_name: str,
        ctx: ToolContext,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        transport: asyncio.BaseTransport,
    ) -> None:
        self._name, self._ctx, self._process = tool_name, ctx, process
        self._reader, self._transport = reader, transport
        self._begun = self._stopping = False
        self._frames = asyncio.create_task(self._read_frames())
        self._exit = asyncio.create_task(process.wait())
        self._output = asyncio.create_task(self._read_output())

    @classmethod
    async def start(cls, tool_name: str, ctx: ToolContext, limit_bytes: int) -> _Child:
        if INSIDE in os.environ:
            raise NotExecuted(
                f"{tool_name} was not run: its module runs an engine when it is imported; "
                "put that under `if __name__ == '__main__':`"
            )
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=limit_bytes + FRAME_SLACK_BYTES, loop=loop)
        ours, theirs = os.pipe()
        try:
            transport, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader, loop=loop), os.fdopen(ours, "rb", 0)
            )
            try:
                process = await _spawn(theirs)
            except BaseException:
                transport.close()
                raise
        except OSError as error:
            raise NotExecuted(
                f"{tool_name} was not run: no child process could be started ({error.strerror})"
            ) from error
        finally:
            os.close(theirs)
        return cls(tool_name, ctx, process, reader, transport)

    async def outcome(self, job: bytes | None) -> Any:
        """Hand the job over, unless that is done, and wait for the tool's outcome."""
        if job is not None and self._process.stdin is not None:
            with contextlib.suppress(ConnectionError):  # it died first: seen below
                self._process.stdin.write(job)
                await self._process.stdin.drain()
        await asyncio.wait({self._frames, self._exit}, return_when=asyncio.FIRST_COMPLETED)
        # A process that the tool left behind may hold the pipe open: no waiting for its end.
        await asyncio.wait({self._frames}, timeout=REAP_S)
        frame = self._frames.result() if self._frames.done() else None
        if frame is None:
            await asyncio.wait({self._exit}, timeout=REAP_S)
            how = _how(self._process.returncode)
            if not self._begun and self._exit.done():
                raise NotExecuted(f"{self._name} was not run: its process {how} before it began")
            raise ProcessLost(f"the process of {self._name} {how} without a result")
        return _unwrap(frame)

    def signal(self, number: int) -> None:
        """Signal the whole group, which outlives its first process if others are in it."""
        self._stopping = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def end(self) -> None:
        """See to it that the process is gone, even if this is cancelled."""
        try:
            if self._reported():
                await asyncio.wait({self._exit}, timeout=REAP_S)
            if self._stopping or not self._reported() or not self._exit.done():
                self.signal(signal.SIGKILL)
                await asyncio.wait({self._exit}, timeout=REAP_S)
            await asyncio.wait({self._output}, timeout=OUTPUT_S)
        finally:
            if not self._exit.done():
                self.signal(signal.SIGKILL)
            for task in (self._frames, self._output):
                task.cancel()
            self._transport.close()
            if self._process.stdin is not None:
                self._process.stdin.close()

    def _reported(self) -> bool:
        frames = self._frames
        ended = frames.done() and not frames.cancelled() and frames.exception() is None
        return ended and frames.result() is not None

    async def _read_frames(self) -> dict[str, Any] | None:
        """Pass progress on; return the frame that ends the call, ``None`` if there is none."""
        while True:
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                return None
            except asyncio.LimitOverrunError:
                return {"error": "ResultRejected", "message": _too_long(self._name)}
            try:
                frame: dict[str, Any] = orjson.loads(line)
            except ValueError:  # the tool wrote into a pipe that is not its own
                return None
            if "begun" in frame:
                self._begun = True
            elif "progress" in frame:
                self._ctx.progress(frame["progress"], fraction=frame["fraction"])
            else:
                return frame

    async def _read_output(self) -> None:
        """Keep the pipe flowing, and the first of it for the log."""
        stream, kept = self._process.stdout, 0
        if stream is None:
            return
        while chunk := await stream.read(8_192):
            part = chunk[: max(0, MAX_OUTPUT_BYTES - kept)]
            kept += len(part)
            for line in part.decode("utf-8", "replace").splitlines():
                self._tell(f"{self._name}: {line}")
            if part and kept >= MAX_OUTPUT_BYTES:
                self._tell("further output dropped")

    def _tell(self, text: str) -> None:
        run_id, call_id = self._ctx.run_id, self._ctx.call_id
        event = names.LOG_TOOL_OUTPUT
        tell(log, event, "%s %s %s", run_id, call_id, text, run_id=run_id, call_id=call_id)


def _unwrap(frame: Mapping[str, Any]) -> Any:
    if "error" not in frame:
        return frame["result"]
    kind, message = frame["error"], frame["message"]
    if kind == "CancelledError":
        raise asyncio.CancelledError
    if kind in _CLASSES:
        raise _CLASSES[kind](message)
    raise type(kind, (RaisedInChild,), {})(message)


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"
    return "cannot be heard any more" if code is None else f"exited with {code}"


def _too_long(name: str) -> str:
    return f"{name} did run, but what it returned is over the limit and was not recorded"
