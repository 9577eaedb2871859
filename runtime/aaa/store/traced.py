"""A store that tells what passes through its port: every call of every backend, wrapped once.

It guarantees that the wrapped store sees exactly the calls that it would have seen, with the same
replies and errors, and no call more. What happened is told by operations and verdicts alone, so
it is told once, by whoever made it happen: a request by the worker whose decision opened it, a
claim and a settlement by the worker that holds the call, the end of a run by its owner.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from aaa.clock import Clock
from aaa.errors import StoreUnavailable
from aaa.events import Event
from aaa.store import port
from aaa.store.port import (
    Beat,
    Committed,
    EventStore,
    Members,
    Operation,
    Pulse,
    Renewer,
    RunInfo,
    StoreInfo,
    Verdict,
    Wake,
)
from aaa.store.told import Told
from aaa.telemetry import RunTraces, Telemetry, names

#: Of so many runs the beginning is remembered, for the span that a run gets at its end.
MAX_BEGINNINGS: Final = 4_096
MAX_LINKS: Final = 32


def traced(store: EventStore, telemetry: Telemetry, clock: Clock) -> EventStore:
    """The store, wrapped if spans or measurements go anywhere, else as it is."""
    if not (telemetry.tracing or telemetry.measuring):
        return store
    return TracedStore(store, telemetry, clock)


class TracedStore:
    """An EventStore around another. ``traces`` is how others start spans in its runs' traces."""

    def __init__(self, inner: EventStore, telemetry: Telemetry, clock: Clock) -> None:
        self.inner = inner
        self.traces = RunTraces(telemetry.tracer) if telemetry.tracer is not None else None
        self._telemetry, self._clock = telemetry, clock
        self._backend = ""
        self._beginnings: OrderedDict[str, int] = OrderedDict()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)  # what a backend has beyond the port

    @property
    def partitions(self) -> int:
        return self.inner.partitions

    def on_wake(self, wake: Wake) -> None:
        self.inner.on_wake(wake)

    def renewer(self) -> Renewer:
        return _TracedRenewer(self.inner.renewer(), self)

    async def open(self) -> StoreInfo:
        with self.call(names.STORE_OPEN, "open", {}):
            info = await self.inner.open()
        self._backend = info.backend
        if self.traces is not None:
            self.traces.identity = info.identity
        return info

    async def close(self) -> None:
        await self.inner.close()

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Event]:
        with self.call(names.STORE_READ, "read", {names.RUN_ID: run_id}, run_id=run_id):
            events = await self.inner.read(run_id, after=after, limit=limit)
        if events and events[0].seq == 1:
            self._began(events[0])
        return events

    async def run(self, run_id: str) -> RunInfo | None:
        with self.call(names.STORE_RUN, "run", {names.RUN_ID: run_id}, run_id=run_id):
            return await self.inner.run(run_id)

    async def runs(
        self, *, status: str | None = None, app: str | None = None, limit: int = 1_000
    ) -> list[RunInfo]:
        with self.call(names.STORE_RUNS, "runs", {}):
            return await self.inner.runs(status=status, app=app, limit=limit)

    async def members(self) -> Members:
        return await self.inner.members()

    async def commit(
        self, partition: int, operations: Sequence[Operation], *, seen: int = 0
    ) -> Committed:
        run_ids = _runs_of(operations)
        # A batch for one run belongs to its trace; one for several is linked to each.
        only = run_ids[0] if len(run_ids) == 1 and _each_has_a_run(operations) else None
        about = {} if self.traces is None else _about_batch(partition, operations, only)
        begun_ms = self._clock.now_ms()
        links = () if only is not None else run_ids[:MAX_LINKS]
        with self.call(names.STORE_COMMIT, "commit", about, run_id=only, links=links) as span:
            done = await self.inner.commit(partition, operations, seen=seen)
        self._telemetry.record(names.COMMIT_SIZE, len(operations))
        self._tell(partition, operations, done.verdicts, span, begun_ms)
        return done

    @contextmanager
    def call(
        self,
        name: names.SpanName,
        operation: str,
        about: dict[str, Any],
        *,
        run_id: str | None = None,
        links: Sequence[str] = (),
        metric: names.MetricName = names.STORE_DURATION,
    ) -> Iterator[Any]:
        """A span and a measurement around one port call; what it raises passes through."""
        begun_s, error_type, span = self._clock.boot_s(), None, None
        traces = self.traces
        if traces is not None:
            basics = {names.OPERATION: operation, names.BACKEND: self._backend or None, **about}
            linked = [traces.context(each) for each in links]
            span = traces.start(name, basics, run_id=run_id, links=linked)
        try:
            if traces is None or span is None:
                yield None
            else:
                with traces.entered(span):
                    yield span
        except BaseException as error:
            error_type = type(error).__name__
            if isinstance(error, StoreUnavailable):
                self._telemetry.count(names.STORE_UNAVAILABLE, {names.OPERATION: operation})
            raise
        finally:
            taken_s = self._clock.boot_s() - begun_s
            point: dict[str, Any] = {names.ERROR_TYPE: error_type}
            if metric is names.STORE_DURATION:
                point[names.OPERATION] = operation
            self._telemetry.record(metric, taken_s, point)

    def _tell(
        self,
        partition: int,
        operations: Sequence[Operation],
        verdicts: Sequence[Verdict],
        commit: Any,
        begun_ms: int,
    ) -> None:
        told = Told(self._telemetry, self.traces, partition, commit, begun_ms, self._clock.now_ms())
        try:
            for operation, verdict in zip(operations, verdicts, strict=False):
                if isinstance(operation, port.Create) and isinstance(verdict, port.Appended):
                    self._began(verdict.events[0])
                told.tell(operation, verdict, self._beginnings)
        except Exception as error:  # noqa: BLE001 - the batch is stored: nothing may hide that
            if self.traces is not None:
                self.traces.broke(error)

    def _began(self, root: Event) -> None:
        if self.traces is None:
            return
        self._beginnings[root.run_id] = root.time
        self._beginnings.move_to_end(root.run_id)
        while len(self._beginnings) > MAX_BEGINNINGS:
            self._beginnings.popitem(last=False)


class _TracedRenewer:
    """The heartbeat's connection; called from its thread."""

    def __init__(self, inner: Renewer, store: TracedStore) -> None:
        self._inner, self._store = inner, store

    def pulse(self, pulse: Pulse) -> Beat:
        held = sum(len(calls) for calls in pulse.calls.values())
        about = {names.WORKER: pulse.worker, names.HELD: held}
        with self._store.call(names.STORE_PULSE, "pulse", about, metric=names.RENEW_DURATION):
            beat = self._inner.pulse(pulse)
        if beat.lost_calls:
            self._store._telemetry.count(names.LEASES_LOST, value=len(beat.lost_calls))
        return beat

    def leave(self, worker: str) -> None:
        self._inner.leave(worker)

    def close(self) -> None:
        self._inner.close()


def _runs_of(operations: Sequence[Operation]) -> list[str]:
    found = dict.fromkeys(getattr(operation, "run_id", None) for operation in operations)
    return [run_id for run_id in found if run_id is not None]


def _each_has_a_run(operations: Sequence[Operation]) -> bool:
    return all(hasattr(operation, "run_id") for operation in operations)


def _about_batch(
    partition: int, operations: Sequence[Operation], run_id: str | None
) -> dict[str, Any]:
    kinds = sorted({type(operation).__name__.lower() for operation in operations})
    return {
        names.PARTITION: partition,
        names.BATCH: len(operations),
        names.OPERATIONS: kinds,
        names.RUN_ID: run_id,
    }
