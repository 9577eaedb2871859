"""The executor: bounded slots in which claimed calls run.

It never runs a call that it has not claimed, nor one attempt twice: what was claimed is started
once, by (run, request, attempt), however often the store repeats its reply (G2).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

from aaa import events as ev
from aaa import ids
from aaa.algos import RunState
from aaa.clock import Clock
from aaa.errors import ModelError
from aaa.events import Event
from aaa.lease import Heartbeat, Lease
from aaa.llm import Conversation, LLMHandler, ModelRequest, ToolSpec
from aaa.policy import Delivery, GuardConfig, ToolSettings
from aaa.runtime.attempt import Attempt, Ended
from aaa.runtime.inforce import InForce
from aaa.runtime.observe import Observer
from aaa.store import port
from aaa.store.port import Claimed, HeldCall, ToolTerms
from aaa.telemetry import names, tell
from aaa.tools import ToolHandler

log = logging.getLogger("aaa.executor")

#: What holds where no tool says otherwise.
DEFAULT_GUARD: Final = GuardConfig()
#: How often a draining worker looks whether its last offers have been answered.
_OFFER_POLL_S = 0.01
#: Run id, call id, message, and how far: 0 to 1, or ``None``. Called in the tool's thread.
Progress = Callable[[str, str, str, float | None], None]


class Deliver(Protocol):
    """Takes the outcome of an attempt to the store."""

    async def settle(self, claimed: Claimed, ended: Ended, *, fence: bool) -> None: ...

    async def conversation(self, claimed: Claimed) -> tuple[RunState, str | None]:
        """The run's state at a model request, and the system prompt."""
        ...


class Executor:
    """Runs claimed calls in at most ``concurrency`` slots."""

    def __init__(
        self,
        *,
        concurrency: int,
        heartbeat: Heartbeat,
        clock: Clock,
        deliver: Deliver,
        observer: Observer,
        on_free: Callable[[], None],
        on_progress: Progress | None = None,
    ) -> None:
        self.concurrency = concurrency
        #: The tools, under each policy that runs may require.
        self.in_force = InForce()
        self.model: LLMHandler | None = None
        #: Calls that could not be stopped; a worker with one must be replaced (G9).
        self.unstoppable: list[str] = []
        self._heartbeat, self._clock, self._deliver = heartbeat, clock, deliver
        self._observer = observer
        self._on_free, self._on_progress = on_free, on_progress
        self._running: dict[tuple[str, str, int, str], asyncio.Task[None]] = {}
        self._leases: dict[tuple[str, str, int, str], Lease] = {}
        self._specs_of: tuple[ToolHandler, tuple[ToolSpec, ...]] | None = None
        self._busy = 0
        self._reserved = 0
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="aaa-tool")

    # ------------------------------------------------------------------------ slots

    @property
    def free(self) -> int:
        """Slots that are neither running nor promised to an offer on its way.

        A call that has ended and is being settled takes no slot: its settle may claim the next.
        """
        if self.unstoppable:
            return 0  # a worker in which a tool cannot be stopped claims nothing more (G9)
        return max(0, self.concurrency - self._busy - self._reserved)

    @property
    def busy(self) -> int:
        """Slots in which a call is running."""
        return self._busy

    def reserve(self, wanted: int) -> int:
        """Promise up to ``wanted`` slots to an offer; give them back with :meth:`unreserve`."""
        got = min(wanted, self.free)
        self._reserved += got
        return got

    def unreserve(self, count: int) -> None:
        """The offer's reply is here; what it claimed has been started."""
        self._reserved -= count
        if count and self.free:
            self._on_free()

    @property
    def tools(self) -> ToolHandler | None:
        """The tools as the code has them."""
        return self.in_force.tools

    def queues(self, policy: str | None = None) -> dict[str, ToolTerms]:
        """What this worker offers to run now; of tools, only what runs that require ``policy`` need."""
        offered: dict[str, ToolTerms] = {}
        if self.model is not None:
            offered[port.MODEL_QUEUE] = ToolTerms(
                delivery="at_least_once",
                max_attempts=self.model.max_attempts,
                lease_ttl_ms=round(self.model.lease_ttl_s * 1000),
            )
        return offered | self.in_force.offers(policy)

    def patience(self) -> tuple[float, float]:
        """The shortest TTL and the shortest ``wait_poll_s`` of what this worker runs, in seconds."""
        ttls = [] if self.model is None else [self.model.lease_ttl_s]
        polls: list[float] = []
        for tools in self.in_force.handlers():
            guards = [tools.config_for(tool) for tool in tools.registry]
            ttls += [guard.lease_ttl_s for guard in guards]
            polls += [guard.wait_poll_s for guard in guards]
        ttl_s = min(ttls, default=DEFAULT_GUARD.lease_ttl_s)
        return ttl_s, min(polls, default=DEFAULT_GUARD.wait_poll_s)

    # ---------------------------------------------------------------------- running

    def start(self, claimed: Claimed, *, partition: int, sent_s: float) -> None:
        """Run what was claimed. The lease is trusted from ``sent_s`` on, and renewed at once."""
        key = (claimed.run_id, claimed.request.id, claimed.attempt, claimed.job)
        if key in self._running:
            return
        held = HeldCall(claimed.run_id, claimed.request.id, claimed.attempt, claimed.lease_ttl_ms)
        lease = Lease(partition, held, sent_s=sent_s, every_s=self._every_s(claimed))
        self._heartbeat.hold(lease)
        if claimed.attempt > 1 or claimed.job == "verify":
            self._tell_taken(claimed)
        self._leases[key] = lease
        self._busy += 1
        task = asyncio.create_task(self._run(claimed, lease))
        self._running[key] = task
        task.add_done_callback(lambda done: self._done(key, claimed, lease, done))

    def stop_run(self, run_id: str) -> None:
        """Tell the running calls of a run that it is being cancelled."""
        for key, lease in self._leases.items():
            if key[0] == run_id:
                lease.tell("cancelled")

    async def drain(self, timeout_s: float) -> None:
        """Let running calls finish; at the deadline, end each by its delivery policy."""
        until_s = self._clock.boot_s() + timeout_s
        # What an offer on its way brings back has begun, and is waited for as well.
        while (self._running or self._reserved) and self._clock.boot_s() < until_s:
            left_s = until_s - self._clock.boot_s()
            if self._running:
                await asyncio.wait(list(self._running.values()), timeout=left_s)
            else:
                await asyncio.sleep(min(left_s, _OFFER_POLL_S))
        for lease in list(self._leases.values()):
            lease.tell("drain")
        if self._running:
            grace_s = 1.0 + (self.tools.cancel_grace_s if self.tools else 0.0)
            await asyncio.wait(list(self._running.values()), timeout=grace_s)

    async def abandon(self) -> None:
        """End everything now, recording nothing: as if the process had died."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _done(
        self,
        key: tuple[str, str, int, str],
        claimed: Claimed,
        lease: Lease,
        task: asyncio.Task[None],
    ) -> None:
        self._running.pop(key, None)
        self._leases.pop(key, None)
        self._heartbeat.release(lease)
        if not task.cancelled() and (error := task.exception()) is not None:
            message = "call %s of run %s: %r"
            tell(
                log,
                names.LOG_CALL_BROKE,
                message,
                key[1],
                key[0],
                error,
                run_id=claimed.run_id,
                call_id=claimed.request.data.get("call_id"),
                attempt=claimed.attempt,
                worker=self._heartbeat.worker,
            )
        self._on_free()

    async def _run(self, claimed: Claimed, lease: Lease) -> None:
        try:
            if not await lease.trusted(self._clock):
                ended, fence = _not_begun(claimed), True
            else:
                with self._observer.attempting(claimed, self.model) as step:
                    if claimed.request.type == ev.LLM_REQUESTED:
                        asked = self._ask_model(claimed)
                        ended, fence = await self._until_stopped(asked, lease), True
                    else:
                        ended, fence = await self._run_tool(claimed, lease)
                    step.ended(ended)
        finally:
            self._busy -= 1
        self._tell_ended(claimed, ended)
        if not ended.stopped:
            self.unstoppable.append(claimed.request.data["name"])
        await self._deliver.settle(claimed, ended, fence=fence)

    async def _run_tool(self, claimed: Claimed, lease: Lease) -> tuple[Ended, bool]:
        name, handler = claimed.request.data["name"], self.in_force.of_call(claimed)
        tool = handler.registry.get(name) if handler is not None else None
        if handler is None or tool is None:
            raise LookupError(f"tool {name} was claimed but is not here")
        settings = handler.settings_for(name)
        if not settings.allowed and claimed.job == "run":
            return _not_allowed(claimed, settings), True
        attempt = Attempt(
            claimed=claimed,
            tool=tool,
            settings=settings,
            lease=lease,
            clock=self._clock,
            threads=self._threads,
            result_limit_bytes=handler.result_limit_bytes,
            cancel_grace_s=handler.cancel_grace_s,
            on_progress=self._progress(claimed),
            on_raised=self._tell_raised,
        )
        fence = settings.guard.enabled and settings.guard.fence_results
        if claimed.job == "verify":
            return await attempt.verify(), fence
        return await attempt.run(), fence

    async def _until_stopped(self, work: Awaitable[Ended], lease: Lease) -> Ended:
        """A model's answer, unless the lease goes first: then another worker asks again."""
        task = asyncio.ensure_future(work)
        either: set[asyncio.Future[Any]] = {task, lease.stop}
        try:
            while not task.done():
                wait_s = max(0.0, lease.trust_until_s - self._clock.boot_s())
                await asyncio.wait(either, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                lapsed = self._clock.boot_s() >= lease.trust_until_s
                if not task.done() and (lease.stop.done() or lapsed):
                    return Ended(None)
            return task.result()
        finally:
            task.cancel()

    async def _ask_model(self, claimed: Claimed) -> Ended:
        if self.model is None:
            raise LookupError("a model request was claimed but there is no model here")
        request = claimed.request
        state, system = await self._deliver.conversation(claimed)
        messages = Conversation(state.messages, state.asked_through, system=system)
        asked = ModelRequest(messages, self._specs())
        id_ = ids.result_id(request.id)
        turn = {"call_id": request.data["call_id"], "turn": request.data["turn"]}
        try:
            reply = await self.model.ask(asked, sleep=self._clock.sleep)
            completed = request.named(id_, ev.LLM_COMPLETED, {**turn, "message": reply.to_json()})
            return Ended(completed)
        except ModelError as error:
            self._tell_raised(claimed)
            kind, message = type(error).__name__, str(error)
        except Exception as error:  # noqa: BLE001 - a client's own error is the model's failure
            self._tell_raised(claimed)
            kind, message = "ModelError", f"{type(error).__name__}: {error}"
        return Ended(_model_failed(request, id_, turn, kind, message))

    def _specs(self) -> tuple[ToolSpec, ...]:
        if self.tools is None:
            return ()
        if self._specs_of is None or self._specs_of[0] is not self.tools:
            specs = tuple(ToolSpec.from_json(spec) for spec in self.tools.registry.specs())
            self._specs_of = (self.tools, specs)
        return self._specs_of[1]

    def _every_s(self, claimed: Claimed) -> float:
        ttl_s = claimed.lease_ttl_ms / 1000
        tools = self.in_force.of_call(claimed)
        if tools is None or claimed.request.type == ev.LLM_REQUESTED:
            return ttl_s / 3
        guard = tools.settings_for(claimed.request.data["name"]).guard
        return min(guard.renew_every_s, ttl_s / 2)

    def _progress(self, claimed: Claimed) -> Callable[[str, float | None], None] | None:
        watch = self._on_progress
        if watch is None:
            return None
        call_id = claimed.request.data["call_id"]
        return lambda message, share: watch(claimed.run_id, call_id, message, share)

    # -------------------------------------------------------------------- what is told

    def _tell_taken(self, claimed: Claimed) -> None:
        how = "asking what became of it" if claimed.job == "verify" else "running it again"
        message = "%s was lost: %s, attempt %d"
        self._tell(names.LOG_TAKEN_OVER, claimed, message, _name(claimed), how, claimed.attempt)

    def _tell_ended(self, claimed: Claimed, ended: Ended) -> None:
        if ended.fenced:
            message = "%s lost its lease in attempt %d, and was stopped"
            self._tell(names.LOG_LEASE_LOST, claimed, message, _name(claimed), claimed.attempt)
        elif ended.unknown:
            message = "run %s: %s may have acted: aaa show %s"
            about = (claimed.run_id, _name(claimed), claimed.run_id)
            self._tell(names.LOG_CALL_UNKNOWN, claimed, message, *about)

    def _tell_raised(self, claimed: Claimed) -> None:
        self._tell(names.LOG_CALL_RAISED, claimed, "%s raised", _name(claimed), exc_info=True)

    def _tell(
        self,
        event: names.LogEvent,
        claimed: Claimed,
        message: str,
        *args: object,
        exc_info: bool = False,
    ) -> None:
        about: dict[str, object] = {
            "run_id": claimed.run_id,
            "call_id": claimed.request.data.get("call_id"),
            "attempt": claimed.attempt,
            "worker": self._heartbeat.worker,
        }
        named = {key: value for key, value in about.items() if key in event.fields}
        tell(log, event, message, *args, exc_info=exc_info, **named)


def _name(claimed: Claimed) -> str:
    """What runs: a tool by its name, or the model."""
    return str(claimed.request.data.get("name", "the model"))


def _not_begun(claimed: Claimed) -> Ended:
    """The lease was gone before the attempt began: give it back, or say that nothing was done."""
    request = claimed.request
    once = claimed.delivery == Delivery.AT_MOST_ONCE and claimed.job == "run"
    if request.type == ev.LLM_REQUESTED or not once:
        return Ended(None)
    message = f"{request.data['name']} was not run: its lease had ended before it could begin."
    return Ended(ev.tool_failed(request, "NotExecuted", message, attempt=claimed.attempt))


def _not_allowed(claimed: Claimed, settings: ToolSettings) -> Ended:
    """A policy that came after the request does not let its tool be called any more."""
    request, name = claimed.request, claimed.request.data["name"]
    why = f"a policy does not allow {name} ({settings.origins['allowed']})"
    if claimed.attempt == 1:
        message = f"{name} was not run: {why}."
        return Ended(ev.tool_failed(request, "NotExecuted", message, attempt=1))
    message = f"{name} was not run again: {why}. An attempt before may have acted."
    more = {"attempt": claimed.attempt, "effect": "unknown"}
    return Ended(ev.tool_failed(request, "ExecutionAbandoned", message, **more), unknown=True)


def _model_failed(request: Event, id_: str, turn: dict[str, Any], kind: str, message: str) -> Event:
    data = {**turn, "error": kind, "message": ev.recordable(message)}
    return request.named(id_, ev.LLM_FAILED, data)
