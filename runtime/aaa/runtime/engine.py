"""The Engine: one worker incarnation on one store.

It puts the parts together: the bus to the store, the heartbeat, the owner that folds and decides,
the executor that runs what was claimed. It visits a partition when there is a reason to: a hint
from the store, a beat that says that something waits there, a lease that may have ended, a free
slot. Nothing on the way of a call polls.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

from aaa import events as ev
from aaa import ids
from aaa.algos import Algorithm, RunState, ToolLoop
from aaa.bus import Bus, Receipt
from aaa.clock import SYSTEM_CLOCK, Clock
from aaa.cluster import Cluster
from aaa.errors import (
    AAAError,
    ConfigError,
    CorruptHistory,
    RunConflict,
    RunDeleted,
    RunNotFound,
    StoreUnavailable,
    StoreWentBack,
)
from aaa.events import Event
from aaa.ids import check_run_id, partition_of
from aaa.lease import Heartbeat
from aaa.llm import LLMHandler
from aaa.runtime.attempt import Ended
from aaa.runtime.decide import MAX_TIMER_MS, approval_requested
from aaa.runtime.executor import Executor, Progress
from aaa.runtime.observe import Observer
from aaa.runtime.outcome import Outcome, Run, outcome_of
from aaa.runtime.owner import Owner
from aaa.store import open_store, port
from aaa.store.port import Append, Beat, Claimed, EventStore, Offer, StoreInfo, Why
from aaa.telemetry import Telemetry, names, tell
from aaa.tools import ToolHandler

log = logging.getLogger("aaa.engine")

DEFAULT_CONCURRENCY: Final = 64
DEFAULT_WORKER_TTL_S: Final = 15.0
#: Dirty runs and due timers taken in one visit; more follow in the next.
TAKE_LIMIT: Final = 100
FOLLOW_POLL_S: Final = 0.5
#: A worker without a free slot looks after what it owns so soon after a hint.
BUSY_VISIT_MS: Final = 100


class Engine:
    """Runs agents on a store.

    ``store`` is an :class:`EventStore` or a URL; the default keeps nothing after the process.
    ``worker`` names this incarnation; a restarted process needs another name, and gets one by
    default. ``concurrency`` bounds the calls in flight. ``worker_ttl_s`` is the TTL of the
    worker's own lease and of its partitions. ``telemetry`` is by default what the process has set
    up. Attach handlers before runs are submitted.
    """

    def __init__(
        self,
        store: EventStore | str | None = None,
        *,
        worker: str | None = None,
        app: str = port.DEFAULT_APP,
        concurrency: int = DEFAULT_CONCURRENCY,
        worker_ttl_s: float = DEFAULT_WORKER_TTL_S,
        drain_timeout_s: float = 30.0,
        loop_block_limit_s: float = 60.0,
        on_blocked: Callable[[float], None] | None = None,
        on_progress: Progress | None = None,
        telemetry: Telemetry | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if not 1 <= concurrency <= 100_000:
            raise ConfigError(f"Engine: concurrency must be 1 to 100000, not {concurrency}")
        self.worker = worker or f"{socket.gethostname()}-{os.getpid()}-{clock.token()[:8]}"
        self._observer = Observer(
            telemetry or Telemetry.current(), _store(store), worker=self.worker, clock=clock
        )
        self.store = self._observer.store
        self.app = app
        self.drain_timeout_s = drain_timeout_s
        self.info: StoreInfo | None = None
        self._clock = clock
        self._bus = Bus(self.store, clock)
        self._cluster = Cluster(self.worker)
        self._heartbeat = Heartbeat(
            self.store,
            worker=self.worker,
            clock=clock,
            ttl_s=worker_ttl_s,
            on_beat=self._on_beat,
            loop_block_limit_s=loop_block_limit_s,
            on_blocked=on_blocked,
            on_tick=self._observer.on_tick,
        )
        self._executor = Executor(
            concurrency=concurrency,
            heartbeat=self._heartbeat,
            clock=clock,
            deliver=self,
            observer=self._observer,
            on_free=self._on_free,
            on_progress=on_progress,
        )
        self._owner = Owner(
            store=self.store,
            bus=self._bus,
            cluster=self._cluster,
            executor=self._executor,
            clock=clock,
            observer=self._observer,
            on_closed=self._on_closed,
            on_term_lost=lambda app, partition: self._heartbeat.disown(partition, app),
            on_timer=self._visit_in,
        )
        self._visits: dict[int, asyncio.Task[None]] = {}
        self._again: set[int] = set()
        self._backlog: set[int] = set()
        self._due: dict[int, asyncio.TimerHandle] = {}
        #: Who waits for the end of a run, by run id.
        self._endings: dict[str, set[asyncio.Future[Event]]] = {}
        self._wakes: set[asyncio.Event] = set()
        self._running = False
        self._wait_poll_s = 0.5

    # -------------------------------------------------------------------- starting, stopping

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open the store and begin to serve. Raises what :meth:`EventStore.open` raises."""
        self.info = await self.store.open()
        for warning in self.info.warnings if self.info.backend != "memory" else ():
            tell(log, names.LOG_STORE_RISK, "%s", warning, worker=self.worker)
        self.store.on_wake(self._on_wake)
        self._observer.watch_slots(lambda: self._executor.busy, self._executor.concurrency)
        self._running = True
        self._announce()
        self._heartbeat.start()

    async def stop(self, *, drain_timeout_s: float | None = None) -> None:
        """Drain: claim nothing more, let calls finish until the deadline, release, leave."""
        if not self._running:
            return
        self._running, self._owner.draining = False, True
        limit_s = self.drain_timeout_s if drain_timeout_s is None else drain_timeout_s
        for handle in self._due.values():
            handle.cancel()
        await self._executor.drain(limit_s)
        try:
            await asyncio.wait_for(self._give_back(), timeout=5.0)
        except (TimeoutError, AAAError) as error:
            message = "could not give everything back: %r; its leases will run out"
            tell(log, names.LOG_NOT_GIVEN_BACK, message, error, worker=self.worker)
        await self._heartbeat.stop()
        await self._end()

    async def kill(self) -> None:
        """End without a word to the store, as a crash would. For tests."""
        self._running = False
        for handle in self._due.values():
            handle.cancel()
        self._heartbeat.abandon()
        await self._end()

    async def _end(self) -> None:
        self._observer.close()
        await self._executor.abandon()
        for task in list(self._visits.values()):
            task.cancel()
        await asyncio.gather(*self._visits.values(), return_exceptions=True)
        await self._owner.close()
        await self._bus.close()
        for ending in [each for waiting in self._endings.values() for each in waiting]:
            if not ending.done():
                ending.set_exception(StoreUnavailable("the engine has stopped; the run goes on"))
                ending.exception()  # seen: nobody may be waiting
        await self.store.close()

    async def _give_back(self) -> None:
        await self._owner.quiet()
        gone = []
        for app, partition in self._cluster.owned():
            self._heartbeat.disown(partition, app)
            gone.append(self._bus.send(partition, [port.Disown(app=app, worker=self.worker)]))
        await asyncio.gather(*gone)

    @property
    def draining(self) -> bool:
        """Claims nothing more."""
        return self._owner.draining

    @property
    def unstoppable(self) -> list[str]:
        """Tools that could not be stopped: this worker must be replaced (G9)."""
        return self._executor.unstoppable

    # ------------------------------------------------------------------------ capabilities

    def use_tools(self, handler: ToolHandler) -> None:
        """Called by :meth:`ToolHandler.attach`."""
        self._executor.tools = handler

    def use_model(self, handler: LLMHandler) -> None:
        """Called by :meth:`LLMHandler.attach`."""
        self._executor.model = handler

    def serve(self, algorithm: Algorithm) -> str:
        """Take runs of this algorithm, with the tools attached; returns the app's full name."""
        tools = self._executor.tools
        digest = tools.registry.digest[:12] if tools is not None else "none"
        app = f"{self.app}/{algorithm.name}@{algorithm.version}/{digest}"
        if app not in self._owner.algorithms:
            self._owner.algorithms[app] = algorithm
            self._announce()
        return app

    def _announce(self) -> None:
        ttl_s, self._wait_poll_s = self._executor.patience()
        self._heartbeat.serve(tuple(self._owner.algorithms), shortest_ttl_s=ttl_s)

    # ------------------------------------------------------------------------------- runs

    async def run(
        self,
        algorithm: Algorithm,
        input: Any,  # noqa: A002 - the public name
        run_id: str | None = None,
    ) -> Outcome:
        """Submit, and wait until the run has ended."""
        run_id = run_id or f"run-{self._clock.token()}"
        with self._closing(run_id) as closing:  # before it can end: its end costs no look then
            await self.submit(algorithm, input, run_id)
            return await self._wait(run_id, closing)

    async def submit(
        self,
        algorithm: Algorithm,
        input: Any,  # noqa: A002
        run_id: str | None = None,
        *,
        deadline_s: float | None = None,
    ) -> Run:
        """Begin a run; durable once this returns.

        The same run id with the same input is the same run; with other input it raises
        :class:`RunConflict`; a deleted run raises :class:`RunDeleted`.
        """
        run_id = check_run_id(run_id) if run_id is not None else f"run-{self._clock.token()}"
        app = self.serve(algorithm)
        create = new_run(run_id, app, algorithm, input, deadline_s=deadline_s)
        with self._observer.submitting(run_id, algorithm):
            verdict = await self._create(create)
        return _submitted(run_id, verdict)

    async def _create(self, create: port.Create) -> port.Verdict:
        app, partition = create.app, partition_of(create.run_id, self.store.partitions)
        if self._cluster.term(app, partition) is None and self._cluster.prefers(app, partition):
            await self._own(app, partition)
        if self._cluster.term(app, partition) is not None and self._running:
            return await self._owner.create(create)
        return (await self._bus.send(partition, [create])).verdicts[0]

    async def wait(self, run_id: str) -> Outcome:
        """Wait until a run has ended, wherever it is driven.

        Raises :class:`RunNotFound`, or :class:`RunDeleted`, also when it is deleted meanwhile.
        """
        with self._closing(run_id) as closing:
            return await self._wait(run_id, closing)

    async def _wait(self, run_id: str, closing: asyncio.Future[Event]) -> Outcome:
        wake = asyncio.Event()
        self._wakes.add(wake)
        try:
            happened = True
            while not closing.done():
                wake.clear()
                # It may be deleted, or moved, without a word to its driver: look now and then.
                ask = not happened or not self._owner.drives(run_id)
                if ask and (ending := await self._ending(run_id)):
                    self._on_closed(run_id, ending)
                    break
                happened = await self._until(wake, closing)
        finally:
            self._wakes.discard(wake)
        return outcome_of(await closing)

    async def _ending(self, run_id: str) -> Event | None:
        info = await self._bus.run(run_id)
        if info is None:
            raise RunNotFound(f"run {run_id} is not in the store")
        if info.deleted:
            raise RunDeleted(f"run {run_id} was deleted")
        if info.status == "open":
            return None
        events = await self._bus.read(run_id)
        return next((event for event in events if event.type in ev.ENDINGS), None)

    async def events(self, run_id: str) -> tuple[Event, ...]:
        """The run's log so far."""
        return tuple(await self.store.read(run_id))

    async def follow(self, run_id: str, *, after: int = 0) -> AsyncIterator[Event]:
        """Every event of the run, as it is stored, until the run has ended."""
        wake, ended = asyncio.Event(), False
        self._wakes.add(wake)
        try:
            with self._closing(run_id) as closing:
                while not ended:
                    wake.clear()
                    for event in await self._bus.read(run_id, after=after):
                        after = event.seq
                        ended = ended or event.type in ev.ENDINGS
                        yield event
                    info = await self._bus.run(run_id)
                    if info is None or info.deleted:
                        return
                    if not ended:
                        await self._until(wake, closing)
        finally:
            self._wakes.discard(wake)

    async def _until(self, wake: asyncio.Event, closing: asyncio.Future[Event]) -> bool:
        """Whether something has happened before it was time to look."""
        waiting = asyncio.ensure_future(wake.wait())
        either: set[asyncio.Future[Any]] = {waiting, closing}
        try:
            done, _ = await asyncio.wait(
                either, timeout=FOLLOW_POLL_S, return_when=asyncio.FIRST_COMPLETED
            )
            return bool(done)
        finally:
            waiting.cancel()

    @contextmanager
    def _closing(self, run_id: str) -> Iterator[asyncio.Future[Event]]:
        """The run's last event, once this worker hears of it."""
        closing: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self._endings.setdefault(run_id, set()).add(closing)
        try:
            yield closing
        finally:
            waiting = self._endings.get(run_id, set())
            waiting.discard(closing)
            if not waiting:
                self._endings.pop(run_id, None)

    def _on_closed(self, run_id: str, ending: Event) -> None:
        for closing in self._endings.pop(run_id, ()):
            if not closing.done():
                closing.set_result(ending)

    # ---------------------------------------------------------------------------- visiting

    def _on_wake(self, partition: int) -> None:
        for wake in self._wakes:
            wake.set()
        if self._executor.free:
            self._visit_soon(partition)
        else:
            self._backlog.add(partition)  # visited as soon as a slot is free
            if any(self._cluster.term(app, partition) for app in self._owner.algorithms):
                # The owner has more to do than to claim: a cancellation waits for no slot.
                self._visit_in(partition, BUSY_VISIT_MS)

    def _on_beat(self, beat: Beat) -> None:
        self._cluster.heard(dict(beat.workers))
        for partition, app in beat.lost_owned:
            self._lost(app, partition)
        for app, partition in self._cluster.strays():
            self._spawn(self._disown(app, partition))
        for partition in beat.hot:
            self._visit_soon(partition)
        for partition, after_ms in beat.next_expiry_ms.items():
            self._look_in(partition, after_ms)

    def _on_free(self) -> None:
        backlog, self._backlog = self._backlog, set()
        for partition in backlog:
            self._visit_soon(partition)

    def _look_in(self, partition: int, after_ms: int) -> None:
        """Look at busy calls again when a lease can have ended (G14).

        The worker that should own the partition looks at once, each other one at its own moment
        within ``wait_poll_s``, so that they do not all ask for the same call.
        """
        late_ms = 0.0
        if not all(self._cluster.prefers(app, partition) for app in self._owner.algorithms):
            late_ms = self._wait_poll_s * 1000 * self._cluster.place(partition)
        self._visit_in(partition, after_ms + round(late_ms))

    def _visit_in(self, partition: int, after_ms: int) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time() + after_ms / 1000 + 0.001
        known = self._due.get(partition)
        if known is not None and known.when() <= at and not known.cancelled():
            return
        if known is not None:
            known.cancel()
        self._due[partition] = loop.call_at(at, self._expired, partition)

    def _expired(self, partition: int) -> None:
        self._due.pop(partition, None)
        self._visit_soon(partition)

    def _visit_soon(self, partition: int) -> None:
        if not self._running or not self._owner.algorithms:
            return
        if partition in self._visits:
            self._again.add(partition)
            return
        self._visits[partition] = asyncio.create_task(self._visit(partition))

    async def _visit(self, partition: int) -> None:
        try:
            while self._running:
                self._again.discard(partition)
                for app in list(self._owner.algorithms):
                    await self._visit_app(partition, app)
                if partition not in self._again:
                    return
        except AAAError as error:
            self._tell(names.LOG_VISIT_FAILED, partition, "partition %d: %s", partition, error)
        finally:
            self._visits.pop(partition, None)

    async def _visit_app(self, partition: int, app: str) -> None:
        operations: list[port.Operation] = []
        term = self._cluster.term(app, partition)
        if term is None and self._cluster.prefers(app, partition):
            operations.append(self._own_op(app))
        if term is not None or operations:
            operations.append(
                port.Take(app=app, worker=self.worker, term=term or 0, limit=TAKE_LIMIT)
            )
        # Decisions claim what they open; a visit only gathers what was left, so it takes a share.
        slots = self._executor.reserve(max(1, self._executor.free // 4))
        offer = Offer(
            worker=self.worker,
            nonce=self._clock.token(),
            limit=slots,
            queues=self._executor.queues(),
        )
        operations.append(port.Claim(app=app, offer=offer))
        try:
            receipt = await self._bus.send(partition, operations)
            for verdict in receipt.verdicts:
                self._visited(partition, app, verdict, receipt)
        finally:
            self._executor.unreserve(slots)

    def _visited(self, partition: int, app: str, verdict: port.Verdict, receipt: Receipt) -> None:
        match verdict:
            case port.Owned(term):
                self._won(app, partition, term)
            case port.Busy(_, for_ms):
                self._visit_in(partition, for_ms)
            case port.Taken():
                for run_id, head in verdict.runs:
                    self._owner.poke(run_id, app, head)
                if verdict.more:
                    self._again.add(partition)
                if verdict.next_timer_ms is not None:
                    self._visit_in(partition, verdict.next_timer_ms)
            case port.Claims():
                self._claimed(partition, app, verdict, receipt)
            case port.Refused(why=Why.TERM):
                self._lost(app, partition)
            case port.Refused(why=Why.BEHIND):
                error = StoreWentBack(_went_back(partition))
                self._tell(names.LOG_STORE_WENT_BACK, partition, "%s", error)

    def _claimed(self, partition: int, app: str, claims: port.Claims, receipt: Receipt) -> None:
        for claimed in claims.claimed:
            self._executor.start(claimed, partition=partition, sent_s=receipt.sent_s)
        for held in claims.held:
            self._spawn(self._hold(partition, held))
        if claims.more:
            self._backlog.add(partition)
        if claims.next_expiry_ms is not None:
            self._look_in(partition, claims.next_expiry_ms)
        if self._cluster.term(app, partition) is not None:
            for run_id in {*claims.settled_runs, *(each.run_id for each in claims.claimed)}:
                self._owner.poke(run_id, app)

    async def _hold(self, partition: int, held: Claimed) -> None:
        """A ready call may not start without a (new) approval: ask a person."""
        asked = await self._bus.read(held.run_id)
        request = held.request
        again = sum(e.type == ev.APPROVAL_REQUESTED and e.parent == request.id for e in asked)
        digest = ids.digest_of(
            ids.canonical({"arguments": request.data["arguments"], "name": request.data["name"]})
        )
        question = approval_requested(
            request, digest, reason="expired" if again else "requires_approval", again=again
        )
        entry = port.Entry(question, port.Hold(request.id))
        await self._bus.send(partition, [Append(run_id=held.run_id, entries=(entry,))])

    def _tell(self, event: names.LogEvent, partition: int, message: str, *args: object) -> None:
        tell(log, event, message, *args, partition=partition, worker=self.worker)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(_log_failure)

    # --------------------------------------------------------------------------- ownership

    def _own_op(self, app: str) -> port.Own:
        return port.Own(app=app, worker=self.worker, ttl_ms=round(self._heartbeat.ttl_s * 1000))

    async def _own(self, app: str, partition: int) -> None:
        receipt = await self._bus.send(partition, [self._own_op(app)])
        if isinstance(receipt.verdicts[0], port.Owned):
            self._won(app, partition, receipt.verdicts[0].term)
            self._visit_soon(partition)  # it may have come with unfinished runs

    def _won(self, app: str, partition: int, term: int) -> None:
        if self._cluster.term(app, partition) != term:
            self._owner.forget(app, partition)
        self._cluster.won(app, partition, term)
        self._heartbeat.own(partition, app)

    def _lost(self, app: str, partition: int) -> None:
        self._cluster.lost(app, partition)
        self._heartbeat.disown(partition, app)
        self._owner.forget(app, partition)

    async def _disown(self, app: str, partition: int) -> None:
        """Another worker should have it: stop deciding, then give it back."""
        self._lost(app, partition)
        await self._bus.send(partition, [port.Disown(app=app, worker=self.worker)])

    # ------------------------------------------------------------------- for the executor

    async def settle(self, claimed: Claimed, ended: Ended, *, fence: bool) -> None:
        """Take an attempt's outcome to the store, with the next decision if the run is ours."""
        partition = partition_of(claimed.run_id, self.store.partitions)
        if ended.outcome is None and not ended.stopped:
            return  # it may still be acting here: its lease is left to run out
        if ended.outcome is None:
            release = port.Release(
                run_id=claimed.run_id,
                request_id=claimed.request.id,
                attempt=claimed.attempt,
                worker=self.worker,
            )
            await self._bus.send(partition, [release])
            self._visit_soon(partition)  # the next attempt need not wait for a beat
            return
        if ended.fenced:
            entry = port.Entry(ended.outcome)
            await self._bus.send(partition, [Append(run_id=claimed.run_id, entries=(entry,))])
            return
        settle = port.Settle(
            run_id=claimed.run_id,
            request_id=claimed.request.id,
            attempt=claimed.attempt,
            worker=self.worker,
            outcome=ended.outcome,
            fence=fence,
            unknown=ended.unknown,
        )
        app = await self._app_of(claimed.run_id, partition)
        if app is not None:
            await self._owner.settle(settle, app)
        else:
            await self._bus.send(partition, [settle])
            self._visit_soon(partition)

    async def _app_of(self, run_id: str, partition: int) -> str | None:
        """The app of a run, if this worker owns its partition; every claim is of one it serves."""
        owned = [app for app in self._owner.algorithms if self._cluster.term(app, partition)]
        if len(owned) == len(self._owner.algorithms) == 1:
            return owned[0]
        info = await self._bus.run(run_id) if owned else None
        return info.app if info is not None and info.app in owned else None

    async def conversation(self, claimed: Claimed) -> tuple[RunState, str | None]:
        """The run folded to a model request, from memory if it is here, else from the log."""
        request = claimed.request
        state = self._owner.state_of(claimed.run_id, request.seq)
        if state is None or state.turn is None or state.turn.request.id != request.id:
            state = RunState(claimed.run_id)
            for event in await self._bus.read(claimed.run_id, limit=request.seq):
                state.fold(event)
        if state.root is None:
            raise CorruptHistory(f"run {claimed.run_id} has no beginning")
        return state, self._system(state.root)

    def _system(self, root: Event) -> str | None:
        algorithm = self._owner.algorithms.get(root.data["app"])
        return algorithm.system if isinstance(algorithm, ToolLoop) else None


def new_run(
    run_id: str,
    app: str,
    algorithm: Algorithm,
    input: Any,  # noqa: A002
    *,
    deadline_s: float | None = None,
) -> port.Create:
    """The operation that begins a run, with everything that it is pinned to (L11)."""
    try:
        digest = ids.digest_of(ids.canonical(input))
    except ValueError as error:
        raise ConfigError(f"the input of run {run_id} is {error}") from None
    data = {
        "algorithm": algorithm.name,
        "app": app,
        "input": input,
        "version": algorithm.version,
    }
    root = ev.run_requested(run_id, data)
    entries = [port.Entry(root)]
    if deadline_s is not None:
        if not 0 <= deadline_s * 1000 <= MAX_TIMER_MS:
            raise ConfigError(f"run {run_id}: deadline_s must be 0 to 100 years, not {deadline_s}")
        timer = root.caused(
            ev.TIMER_SET, {"after_ms": round(deadline_s * 1000), "name": "aaa.deadline"}
        )
        effect = port.StartTimer(ids.json_text("aaa.deadline"), round(deadline_s * 1000))
        entries.append(port.Entry(timer, effect))
    return port.Create(run_id=run_id, app=app, digest=digest, entries=tuple(entries))


def _submitted(run_id: str, verdict: port.Verdict) -> Run:
    match verdict:
        case port.Appended():
            return Run(run_id, dup=verdict.dups[0])
        case port.Refused(why=Why.DELETED):
            raise RunDeleted(f"run {run_id} was deleted; submit it under another run id")
        case port.Refused(why=Why.EXISTS):
            raise RunConflict(
                f"run {run_id} exists with other input; use the same input or another run id"
            )
    raise AssertionError(f"unexpected verdict {verdict!r}")


def _store(store: EventStore | str | None) -> EventStore:
    if store is None:
        return open_store("memory:")
    return open_store(store) if isinstance(store, str) else store


def _went_back(partition: int) -> str:
    return (
        f"the store has gone back in time (partition {partition}): it holds less than this worker "
        "has seen; nothing is claimed until 'aaa doctor --accept-loss' (see docs/operations.md)"
    )


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        tell(log, names.LOG_TASK_FAILED, "%s", error)
