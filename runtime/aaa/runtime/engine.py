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
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from aaa.algos import Algorithm, RunState, ToolLoop
from aaa.bus import Bus
from aaa.catalogue import Catalogue
from aaa.clock import SYSTEM_CLOCK, Clock
from aaa.cluster import Cluster
from aaa.errors import (
    AAAError,
    ConfigError,
    CorruptHistory,
)
from aaa.events import Event
from aaa.ids import check_run_id, partition_of
from aaa.lease import Heartbeat
from aaa.llm import LLMHandler
from aaa.policy import PolicyLayers
from aaa.runtime.attempt import Ended
from aaa.runtime.endings import Endings
from aaa.runtime.executor import Executor, Progress
from aaa.runtime.observe import Observer
from aaa.runtime.outcome import Outcome, Run
from aaa.runtime.owner import Owner
from aaa.runtime.submission import app_name, new_run, submitted
from aaa.runtime.visits import Visits
from aaa.store import open_store, port
from aaa.store.port import Append, Beat, Claimed, EventStore, StoreInfo
from aaa.telemetry import Telemetry, names, tell
from aaa.tools import ToolHandler

log = logging.getLogger("aaa.engine")

DEFAULT_CONCURRENCY: Final = 64
DEFAULT_WORKER_TTL_S: Final = 15.0


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
            on_term_lost=self._heartbeat.disown,
            on_timer=self._on_timer,
        )
        self._endings = Endings(
            self._bus, drives=self._owner.drives, partition_of=self._partition_of
        )
        self._visits = Visits(
            bus=self._bus,
            cluster=self._cluster,
            heartbeat=self._heartbeat,
            executor=self._executor,
            owner=self._owner,
            clock=clock,
        )
        self._running = False
        #: Said to those who look on: the pod that the process runs in.
        self.pod_uid = ""

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
        """Open the store and begin to serve.

        Raises what :meth:`EventStore.open` raises, and :class:`ConfigError` if the model's client
        lacks its key: such a request would fail its run for good.
        """
        if self._executor.model is not None:
            self._executor.model.prepare()
        self.info = await self.store.open()
        for warning in self.info.warnings if self.info.backend != "memory" else ():
            tell(log, names.LOG_STORE_RISK, "%s", warning, worker=self.worker)
        self.store.on_wake(self._on_wake)
        self._observer.watch_slots(lambda: self._executor.busy, self._executor.concurrency)
        self._running = True
        self._visits.begin()
        self._announce()
        self._heartbeat.start()

    async def stop(self, *, drain_timeout_s: float | None = None) -> None:
        """Drain: claim nothing more, let calls finish until the deadline, release, leave."""
        if not self._running:
            return
        self._running, self._owner.draining = False, True
        self._heartbeat.say(self._catalogue().encode())
        limit_s = self.drain_timeout_s if drain_timeout_s is None else drain_timeout_s
        self._visits.cease()
        await self._executor.drain(limit_s)
        try:
            await asyncio.wait_for(self._visits.give_back(), timeout=5.0)
        except (TimeoutError, AAAError) as error:
            message = "could not give everything back: %r; its leases will run out"
            tell(log, names.LOG_NOT_GIVEN_BACK, message, error, worker=self.worker)
        await self._heartbeat.stop()
        await self._end()

    async def kill(self) -> None:
        """End without a word to the store, as a crash would. For tests."""
        self._running = False
        self._visits.cease()
        self._heartbeat.abandon()
        await self._end()

    async def _end(self) -> None:
        self._observer.close()
        await self._executor.abandon()
        await self._visits.end()
        await self._owner.close()
        await self._bus.close()
        self._endings.stop()
        await self.store.close()

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
        self._executor.in_force.tools = handler

    def use_model(self, handler: LLMHandler) -> None:
        """Called by :meth:`LLMHandler.attach`."""
        self._executor.model = handler

    def serve(self, algorithm: Algorithm) -> str:
        """Take runs of this algorithm, with the tools attached; returns the app's full name."""
        tools = self._executor.tools
        app = app_name(self.app, algorithm, None if tools is None else tools.registry)
        if app not in self._owner.algorithms:
            self._owner.algorithms[app] = algorithm
            self._announce()
        return app

    def follow_policies(
        self, layers: Mapping[str, PolicyLayers], *, refused: Mapping[str, str] | None = None
    ) -> Mapping[str, str]:
        """From now on, run calls only under the policies that their runs require, if here by hash.

        Call it after the tools were attached, and again with each change. ``refused`` names
        policies that could not even be read, with the reason. Returns all that are refused: those,
        and the ones that do not fit the tools' own code.
        """
        self._executor.in_force.follow(layers, refused or {})
        self._owner.policies_changed()
        self._announce()
        return dict(self._executor.in_force.refused)

    @property
    def started(self) -> bool:
        """Whether it serves, or has served."""
        return self._running or self.draining

    @property
    def leased(self) -> bool:
        """Whether the store has renewed this worker's own lease within its TTL."""
        return self._running and self._heartbeat.leased

    @property
    def lag_s(self) -> float:
        """For how long the event loop has not come round; 0 before the start. From any thread."""
        return self._heartbeat.lag_s

    def _catalogue(self) -> Catalogue:
        in_force = self._executor.in_force
        return Catalogue(
            policies=in_force.policies,
            refused=in_force.refused,
            tools=() if in_force.tools is None else tuple(in_force.tools.layers()),
            draining=self.draining,
            pod_uid=self.pod_uid,
        )

    def _announce(self) -> None:
        self._heartbeat.say(self._catalogue().encode())
        self._heartbeat.serve(
            tuple(self._owner.algorithms), shortest_ttl_s=lambda: self._executor.patience()[0]
        )

    def _on_wake(self, partition: int) -> None:
        self._endings.hint(partition)
        self._visits.hint(partition)

    def _on_beat(self, beat: Beat) -> None:
        self._visits.beat(beat)

    def _on_free(self) -> None:
        self._visits.slot_free()

    def _on_closed(self, run_id: str, ending: Event) -> None:
        self._endings.closed(run_id, ending)

    def _on_timer(self, partition: int, after_ms: int) -> None:
        self._visits.later(partition, after_ms)

    def _partition_of(self, run_id: str) -> int:
        return partition_of(run_id, self.store.partitions)

    # ------------------------------------------------------------------------------- runs

    async def run(
        self,
        algorithm: Algorithm,
        input: Any,  # noqa: A002 - the public name
        run_id: str | None = None,
    ) -> Outcome:
        """Submit, and wait until the run has ended."""
        run_id = run_id or f"run-{self._clock.token()}"
        with self._endings.expect(run_id) as ending:  # before it can end: no look is needed then
            await self.submit(algorithm, input, run_id)
            return await self._endings.wait(run_id, ending)

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
        :class:`RunConflict`; a deleted run raises :class:`RunDeleted`. This engine serves the run,
        under the policies of its own handlers; to leave that to workers, submit it by a
        :class:`aaa.client.Client`. Raises :class:`ConfigError` if a handler is missing.
        """
        run_id = check_run_id(run_id) if run_id is not None else f"run-{self._clock.token()}"
        self._check_handlers(algorithm)
        app = self.serve(algorithm)
        create = new_run(run_id, app, algorithm, input, deadline_s=deadline_s)
        with self._observer.submitting(run_id, algorithm):
            verdict = await self._create(create)
        return submitted(run_id, verdict)

    def _check_handlers(self, algorithm: Algorithm) -> None:
        """A run that nobody here could go on with, and that is pinned to what is here, hangs."""
        if not isinstance(algorithm, ToolLoop):
            return
        tools = self._executor.tools
        missing = algorithm.missing(
            tools=None if tools is None else tools.registry,
            model=self._executor.model is not None,
        )
        if missing is not None:
            raise ConfigError(
                f"Engine: {missing}; attach it before submitting, or submit by a Client and leave "
                "the run to workers"
            )

    async def _create(self, create: port.Create) -> port.Verdict:
        app, partition = create.app, self._partition_of(create.run_id)
        if self._cluster.term(app, partition) is None and self._cluster.prefers(app, partition):
            await self._visits.own(app, partition)
        if self._cluster.term(app, partition) is not None and self._running:
            return await self._owner.create(create)
        return (await self._bus.send(partition, [create])).verdicts[0]

    async def wait(self, run_id: str) -> Outcome:
        """Wait until a run has ended, wherever it is driven.

        Raises :class:`RunNotFound`, or :class:`RunDeleted`, also when it is deleted meanwhile.
        """
        with self._endings.expect(run_id) as ending:
            return await self._endings.wait(run_id, ending)

    async def events(self, run_id: str) -> tuple[Event, ...]:
        """The run's log so far."""
        return tuple(await self.store.read(run_id))

    def follow(self, run_id: str, *, after: int = 0) -> AsyncIterator[Event]:
        """Every event of the run, as it is stored, until the run has ended."""
        return self._endings.follow(run_id, after=after)

    # ------------------------------------------------------------------- for the executor

    async def settle(self, claimed: Claimed, ended: Ended, *, fence: bool) -> None:
        """Take an attempt's outcome to the store, with the next decision if the run is ours."""
        partition = self._partition_of(claimed.run_id)
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
            self._visits.soon(partition)  # the next attempt need not wait for a beat
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
            self._visits.soon(partition)

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


def _store(store: EventStore | str | None) -> EventStore:
    if store is None:
        return open_store("memory:")
    return open_store(store) if isinstance(store, str) else store
