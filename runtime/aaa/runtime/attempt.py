"""One attempt of one tool call: run the tool while the lease can be trusted, then say how it ended.

What may end an attempt, besides the tool itself: its timeout, a lost lease, the run's
cancellation, the worker's drain. What each means for the outcome depends on the delivery:

=================  ============================================  ===============================
ended by           ``at_least_once``                             ``at_most_once``
=================  ============================================  ===============================
the tool           its result or error                           its result or error
timeout            ``ToolTimeout``, effect unknown               ``verify=``, else OutcomeUnknown
run cancelled      ``Cancelled``, effect unknown                 ``verify=``, else OutcomeUnknown
drain's deadline   lease released: another attempt follows       ``verify=``, else OutcomeUnknown
lost lease         ``aaa.tool.fenced``, or finished (G9)         the same
its process died   lease released: another attempt follows       ``verify=``, else OutcomeUnknown
=================  ============================================  ===============================

A process that dies (``isolation="process"``: a crash, the kernel's memory killer) is a lost
attempt like a lost worker's: the tool has raised nothing, and its effect is unknown.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Final

from aaa import events as ev
from aaa import ids
from aaa.clock import Clock
from aaa.errors import NotExecuted, OutcomeError, OutcomeUnknown, ResultRejected
from aaa.events import Event
from aaa.lease import Lease
from aaa.policy import Delivery, OnLostLease, ToolSettings
from aaa.store.claims import UNKNOWN_TEXT
from aaa.store.port import Claimed
from aaa.telemetry import names, tell
from aaa.tools import Done, NotDone, Tool, ToolContext, encode_result
from aaa.tools.isolate import ProcessLost, run_isolated

log = logging.getLogger("aaa.attempt")

#: Share of the time to stop after which a tool's process is killed instead of asked.
POLITE_SHARE: Final = 0.5
#: How long ``verify=`` may take, where the tool has no timeout of its own.
VERIFY_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended.

    ``outcome`` is the event to settle with; ``None`` with ``fenced`` (lost lease, nothing to
    record but that) or without (released: the attempt counts as lost). ``stopped`` is false when
    the tool could not be stopped and may still be running.
    """

    outcome: Event | None
    unknown: bool = False
    fenced: bool = False
    stopped: bool = True


@dataclass(slots=True, kw_only=True)
class Attempt:
    """What one attempt needs. :meth:`run` runs the tool; :meth:`verify` asks about a lost one."""

    claimed: Claimed
    tool: Tool[..., Any]
    settings: ToolSettings
    lease: Lease
    clock: Clock
    threads: Executor
    result_limit_bytes: int
    cancel_grace_s: float
    on_progress: Callable[[str, float | None], None] | None = None
    #: Told while an exception of the tool is being handled.
    on_raised: Callable[[Claimed], None] = lambda _: None

    async def run(self) -> Ended:
        """Run the tool once. Never raises, except for a cancellation of the caller itself."""
        data = self.claimed.request.data
        cancellation = threading.Event()
        timeout_s = self.settings.timeout_s
        deadline_s = None if timeout_s is None else self.clock.boot_s() + timeout_s
        ctx = self._context(cancellation, deadline_s)
        try:
            arguments = self.tool.validate(data["arguments"])
        except Exception as error:  # noqa: BLE001 - the tool's schema changed since it was admitted
            return self._failed("NotExecuted", f"{self.tool.name} was not run: {error}")
        task = asyncio.create_task(self._call(arguments, ctx))
        try:
            reason = await self._watch(task, deadline_s)
            if reason == "done":
                return await self._ended(task, arguments, ctx)
            cancellation.set()
            stopped = await self._stop(task)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if reason != "lost" and _finished(task):
            return self._outcome(task)  # what was obtained after all is settled (G6)
        return await self._interrupted(reason, arguments, ctx, stopped=stopped)

    async def verify(self) -> Ended:
        """Ask ``verify=`` what became of the lost attempt (G4)."""
        abandoned = self.claimed.delivery != Delivery.AT_MOST_ONCE
        try:
            arguments = self.tool.validate(self.claimed.request.data["arguments"])
        except Exception as error:  # noqa: BLE001 - the tool's schema changed since it was admitted
            return self._unanswered(abandoned, f"It could not be looked up: {error}.")
        return await self._ask(arguments, self._context(threading.Event(), None), abandoned)

    async def _call(self, arguments: dict[str, Any], ctx: ToolContext) -> Any:
        if self.tool.isolation != "process":
            return await self.tool.call(arguments, ctx, executor=self.threads)
        return await run_isolated(
            self.tool,
            self.claimed.request.data["arguments"],
            ctx,
            grace_s=self.cancel_grace_s * POLITE_SHARE,
            limit_bytes=self.result_limit_bytes,
        )

    # -------------------------------------------------------------------- watching

    async def _watch(self, task: asyncio.Task[Any], deadline_s: float | None) -> str:
        """Wait for the tool, or for the first reason to stop it (G10)."""
        guarded = self.settings.guard.enabled
        finish = self.settings.guard.on_lost_lease is OnLostLease.FINISH
        while True:
            now_s, limits = self.clock.boot_s(), []
            if deadline_s is not None:
                limits.append(deadline_s)
            if guarded:
                limits.append(self.lease.trust_until_s)
            wait_s = max(0.0, min(limits) - now_s) if limits else None
            await asyncio.wait(
                {task, self.lease.stop}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
            )
            if task.done():
                return "done"
            now_s = self.clock.boot_s()
            if self.lease.stop.done():
                reason = self.lease.stop.result()
            elif deadline_s is not None and now_s >= deadline_s:
                return "timeout"
            elif guarded and now_s >= self.lease.trust_until_s:
                reason = "lost"
            else:
                continue
            if reason != "lost" or not (finish or not guarded):
                return reason
            # Let it finish; whether its outcome counts is the store's to judge (G7).
            await asyncio.wait({task}, timeout=self._left(deadline_s))
            return "done" if task.done() else "timeout"

    def _left(self, deadline_s: float | None) -> float | None:
        return None if deadline_s is None else max(0.0, deadline_s - self.clock.boot_s())

    async def _stop(self, task: asyncio.Task[Any]) -> bool:
        """Cancel the tool; whether it really ended. A thread can only be asked (G9)."""
        if self.tool.is_async or self.tool.isolation == "process":
            task.cancel()
        await asyncio.wait({task}, timeout=self.cancel_grace_s)
        if not task.done():
            task.add_done_callback(_swallow)
        return task.done()

    # -------------------------------------------------------------------- outcomes

    async def _ended(
        self, task: asyncio.Task[Any], arguments: dict[str, Any], ctx: ToolContext
    ) -> Ended:
        error = None if task.cancelled() else task.exception()
        if not isinstance(error, ProcessLost):
            return self._outcome(task)
        tell(
            log,
            names.LOG_PROCESS_LOST,
            "run %s, call %s: %s",
            ctx.run_id,
            ctx.call_id,
            error,
            run_id=ctx.run_id,
            call_id=ctx.call_id,
            attempt=ctx.attempt,
        )
        if self.claimed.delivery == Delivery.AT_MOST_ONCE:
            return await self._ask(arguments, ctx, abandoned=False)
        if self.settings.guard.enabled:
            return Ended(None)
        # Nobody counts the attempts of an unguarded call: it could end its process for ever.
        return self._failed("ExecutionAbandoned", f"{error}. It may have acted.", effect="unknown")

    def _outcome(self, task: asyncio.Task[Any]) -> Ended:
        try:
            value = self._encoded(task.result())
        except OutcomeUnknown as error:
            return self._failed("OutcomeUnknown", f"{error} {UNKNOWN_TEXT}", effect="unknown")
        except NotExecuted as error:
            return self._failed("NotExecuted", str(error))
        except ResultRejected as error:
            return self._failed("ResultRejected", str(error))
        except asyncio.CancelledError:
            return self._failed("ToolError", f"{self.tool.name} cancelled itself")
        except BaseException as error:  # noqa: BLE001 - whatever it raised is its outcome (G20)
            self.on_raised(self.claimed)
            return self._failed("ToolError", f"{type(error).__name__}: {error}")
        return self._completed(value)

    async def _interrupted(
        self, reason: str, arguments: dict[str, Any], ctx: ToolContext, *, stopped: bool
    ) -> Ended:
        if reason == "lost":
            return Ended(self._fenced(stopped=stopped), fenced=True, stopped=stopped)
        name = self.tool.name
        if self.claimed.delivery == Delivery.AT_MOST_ONCE:
            ended = await self._ask(arguments, ctx, abandoned=False)
        elif reason == "drain":
            ended = Ended(None)
        elif reason == "timeout":
            text = f"{name} did not finish within {self.settings.timeout_s:g} s. It may have acted."
            ended = self._failed("ToolTimeout", text, effect="unknown")
        else:
            text = f"{name} was cancelled with its run while it was in flight. It may have acted."
            ended = self._failed("Cancelled", text, effect="unknown")
        return Ended(ended.outcome, unknown=ended.unknown, stopped=stopped)

    async def _ask(self, arguments: dict[str, Any], ctx: ToolContext, abandoned: bool) -> Ended:
        if self.tool.verify is None:
            return self._unanswered(abandoned)
        timeout_s = self.settings.timeout_s or VERIFY_TIMEOUT_S
        try:
            verdict = await asyncio.wait_for(self.tool.ask(arguments, ctx), timeout_s)
        except Exception as failure:  # noqa: BLE001 - as good as Unknown
            seen = f"Looking it up failed ({type(failure).__name__}: {failure})."
        else:
            if isinstance(verdict, Done):
                try:
                    value = self._encoded(verdict.result)
                except ResultRejected as failure:
                    return self._failed("ResultRejected", str(failure))
                return self._completed(value, verified=True)
            seen = (
                "When it was looked up, the effect had not been seen yet; it may still come."
                if isinstance(verdict, NotDone)
                else f"Looking it up gave no answer ({verdict.reason or 'no reason given'})."
            )
        return self._unanswered(abandoned, seen)

    def _unanswered(self, abandoned: bool, seen: str = "") -> Ended:
        """Nobody knows what became of the effect."""
        error = "ExecutionAbandoned" if abandoned else "OutcomeUnknown"
        return self._failed(error, f"{UNKNOWN_TEXT} {seen}".rstrip(), effect="unknown")

    def _encoded(self, value: Any) -> Any:
        return encode_result(value, limit_bytes=self.result_limit_bytes, tool=self.tool.name)

    def _completed(self, value: Any, **more: Any) -> Ended:
        request = self.claimed.request
        data = {**self._about(), "result": value, **more}
        return Ended(request.named(ids.result_id(request.id), ev.TOOL_COMPLETED, data))

    def _failed(self, error: str, message: str, **more: Any) -> Ended:
        claimed = self.claimed
        failed = ev.tool_failed(claimed.request, error, message, attempt=claimed.attempt, **more)
        return Ended(failed, unknown=more.get("effect") == "unknown")

    def _fenced(self, *, stopped: bool) -> Event:
        request = self.claimed.request
        id_ = f"{ids.attempt_id(request.id, self.claimed.attempt)}:fenced"
        return request.named(id_, ev.TOOL_FENCED, {**self._about(), "stopped": stopped})

    def _about(self) -> dict[str, Any]:
        data = self.claimed.request.data
        return {
            "attempt": self.claimed.attempt,
            "call_id": data["call_id"],
            "name": data["name"],
        }

    def _context(self, cancellation: threading.Event, deadline_s: float | None) -> ToolContext:
        data = self.claimed.request.data
        return ToolContext(
            run_id=self.claimed.run_id,
            call_id=data["call_id"],
            idempotency_key=data["idempotency_key"],
            attempt=self.claimed.attempt,
            attempts_before=data.get("attempts_before", 0),
            deadline=deadline_s,
            clock=self.clock.boot_s,
            on_progress=self.on_progress,
            cancellation=cancellation,
        )


def _finished(task: asyncio.Task[Any]) -> bool:
    """Whether a tool that was asked to stop has said how it ended.

    An exception of another kind may be what became of the cancellation itself: it says nothing.
    """
    if not task.done() or task.cancelled():
        return False
    return task.exception() is None or isinstance(task.exception(), OutcomeError)


def _swallow(task: asyncio.Task[Any]) -> None:
    """A tool that outlived its attempt has nobody left to report to."""
    if not task.cancelled():
        task.exception()
