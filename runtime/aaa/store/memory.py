"""The store in memory: the reference model, and what the simulator runs on. Nothing survives.

Several engines in one process may share one instance. A lock makes each operation atomic against
the heartbeat threads.
"""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from threading import RLock

from aaa.clock import SYSTEM_CLOCK, Clock
from aaa.events import SCHEMA, Event
from aaa.ids import partition_of
from aaa.store import logic, port, renewal
from aaa.store.guard import Call, State
from aaa.store.index import run_info, select
from aaa.store.port import Committed, Operation, RunInfo, StoreInfo, Wake
from aaa.store.rows import Meta, Owner, Run, Timer

CallKey = tuple[str, str]
_Place = tuple[int, int, CallKey]


class _Partition:
    """One partition's rows, with the indexes that its queries need."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._meta = Meta(0, 0)
        self.runs: dict[str, Run] = {}
        self.events: dict[str, list[Event]] = {}
        self._by_id: dict[tuple[str, str], Event] = {}
        self._calls: dict[str, dict[str, Call]] = {}
        self._owners: dict[str, Owner] = {}
        self._timers: dict[str, list[tuple[int, str, Timer]]] = {}
        self._offers: dict[str, tuple[str, list[CallKey]]] = {}
        # Indexes: what is ready by (app, queue), in order; where each ready call stands there.
        self._ready: dict[tuple[str, str], list[_Place]] = {}
        self._places: dict[CallKey, tuple[tuple[str, str], _Place]] = {}
        self._dirty: dict[str, dict[str, None]] = {}
        self._leases: dict[str, list[tuple[int, CallKey]]] = {}

    def now_ms(self) -> int:
        return int(self._clock.boot_s() * 1000)

    def wall_ms(self) -> int:
        return self._clock.now_ms()

    def meta(self) -> Meta:
        return self._meta

    def save_meta(self, meta: Meta) -> None:
        self._meta = meta

    def hot(self) -> bool:
        """Whether anything is left for a visit after a batch: unfolded runs, ready calls."""
        return any(self._dirty.values()) or any(self._ready.values())

    def run(self, run_id: str) -> Run | None:
        return self.runs.get(run_id)

    def save_run(self, run: Run) -> None:
        self.runs[run.run_id] = run
        dirty = self._dirty.setdefault(run.app, {})
        if run.dirty and run.status == "open":
            dirty.setdefault(run.run_id)
        else:
            dirty.pop(run.run_id, None)

    def erase_run(self, run: Run) -> None:
        for event in self.events.pop(run.run_id, ()):
            del self._by_id[run.run_id, event.id]
        for call in self._calls.pop(run.run_id, {}).values():
            self._unplace(call)
        timers = self._timers.get(run.app, [])
        timers[:] = [entry for entry in timers if entry[2].run_id != run.run_id]
        heapq.heapify(timers)

    def dirty(self, app: str, limit: int) -> list[Run]:
        waiting = self._dirty.get(app, {})
        return [self.runs[run_id] for run_id, _ in zip(waiting, range(limit), strict=False)]

    def event(self, run_id: str, event_id: str) -> Event | None:
        return self._by_id.get((run_id, event_id))

    def add_event(self, event: Event) -> None:
        self.events.setdefault(event.run_id, []).append(event)
        self._by_id[event.run_id, event.id] = event

    def call(self, run_id: str, request_id: str) -> Call | None:
        calls = self._calls.get(run_id)
        return calls.get(request_id) if calls else None

    def ready_of(self, run_id: str) -> list[Call]:
        return [call for call in self._calls.get(run_id, {}).values() if call.state is State.READY]

    def open_calls_of(self, run_id: str) -> list[Call]:
        calls = self._calls.get(run_id, {}).values()
        return [call for call in calls if call.state is not State.SETTLED]

    def save_call(self, call: Call) -> None:
        key = (call.run_id, call.request_id)
        self._calls.setdefault(call.run_id, {})[call.request_id] = call
        self._unplace(call)
        if call.state is State.READY and not call.shelved:
            of, place = (call.app, call.queue), (call.due_ms, call.seq, key)
            self._places[key] = (of, place)
            insort(self._ready.setdefault(of, []), place)
        if call.state in (State.LEASED, State.VERIFYING):
            heapq.heappush(self._leases.setdefault(call.app, []), (call.due_ms, key))

    def _unplace(self, call: Call) -> None:
        stood = self._places.pop((call.run_id, call.request_id), None)
        if stood is not None:
            queue = self._ready[stood[0]]  # not the call's own queue if that has changed
            del queue[bisect_left(queue, stood[1])]

    def ready(self, app: str, queue: str, limit: int) -> list[Call]:
        waiting = self._ready.get((app, queue), [])[:limit]
        return [self._calls[run_id][request_id] for _, _, (run_id, request_id) in waiting]

    def any_ready(self, app: str) -> bool:
        return any(calls for (of, _), calls in self._ready.items() if of == app)

    def expired(self, app: str, limit: int) -> list[Call]:
        leases, now = self._live_leases(app), self.now_ms()
        found: list[Call] = []
        # The heap's order is only needed for its head; a lease that has ended is seldom seen.
        if leases and leases[0][0] <= now:
            due = sorted({entry for entry in leases if entry[0] <= now})
            found = [self._calls[r][q] for at, (r, q) in due if self._leased_until(r, q) == at]
        return found[:limit]

    def next_expiry(self, app: str) -> int | None:
        now = self.now_ms()
        leases = self._live_leases(app)
        if leases and leases[0][0] > now:
            return leases[0][0]
        later = (at for at, (r, q) in leases if at > now and self._leased_until(r, q) == at)
        return min(later, default=None)

    def _live_leases(self, app: str) -> list[tuple[int, CallKey]]:
        """The heap, without the entries at its head that a renewal or a settle has outdated."""
        leases = self._leases.setdefault(app, [])
        while leases and self._leased_until(*leases[0][1]) != leases[0][0]:
            heapq.heappop(leases)
        return leases

    def _leased_until(self, run_id: str, request_id: str) -> int | None:
        call = self.call(run_id, request_id)
        if call is None or call.state not in (State.LEASED, State.VERIFYING):
            return None
        return call.due_ms

    def open_calls(self) -> Iterable[Call]:
        for calls in self._calls.values():
            for call in calls.values():
                if call.state is not State.SETTLED:
                    yield call

    def owner(self, app: str) -> Owner | None:
        return self._owners.get(app)

    def save_owner(self, app: str, owner: Owner) -> None:
        self._owners[app] = owner

    def add_timer(self, timer: Timer) -> None:
        entry = (timer.due_ms, timer.set_id, timer)
        heapq.heappush(self._timers.setdefault(timer.app, []), entry)

    def due_timers(self, app: str, limit: int) -> list[Timer]:
        now = self.wall_ms()
        return [timer for due, _, timer in sorted(self._timers.get(app, []))[:limit] if due <= now]

    def drop_timer(self, timer: Timer) -> None:
        timers = self._timers[timer.app]
        timers.remove((timer.due_ms, timer.set_id, timer))
        heapq.heapify(timers)

    def next_timer(self, app: str) -> int | None:
        timers = self._timers.get(app)
        return timers[0][0] if timers else None

    def last_offer(self, worker: str) -> tuple[str, list[CallKey]] | None:
        return self._offers.get(worker)

    def save_offer(self, worker: str, nonce: str, got: list[CallKey]) -> None:
        self._offers[worker] = (nonce, got)


class MemoryEventStore:
    """An :class:`aaa.store.port.EventStore` that lives as long as the process."""

    def __init__(
        self, *, partitions: int = port.DEFAULT_PARTITIONS, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._clock = clock
        self._partitions = [_Partition(clock) for _ in range(partitions)]
        self._identity = clock.token()
        self._workers: dict[str, tuple[int, port.Member]] = {}
        self._wakes: list[tuple[asyncio.AbstractEventLoop, Wake]] = []
        self._lock = RLock()

    @property
    def partitions(self) -> int:
        return len(self._partitions)

    async def open(self) -> StoreInfo:
        return StoreInfo(
            backend="memory",
            identity=self._identity,
            partitions=self.partitions,
            schema=SCHEMA,
            warnings=("The memory store keeps nothing after the process ends.",),
        )

    async def close(self) -> None:
        """Nothing to free: other engines may still be at work on the same instance."""

    async def commit(
        self, partition: int, operations: Sequence[Operation], *, seen: int = 0
    ) -> Committed:
        rows = self._partitions[partition]
        with self._lock:
            logic.check_mark(rows, seen)
            verdicts = tuple(logic.apply(rows, operation) for operation in operations)
            mark = rows.meta().mark
            hot = rows.hot() and any(map(port.stirs, operations, verdicts))
        if hot:
            self._wake(partition)
        return Committed(verdicts, mark, hot)

    def _wake(self, partition: int) -> None:
        for loop, wake in self._wakes:
            if not loop.is_closed():
                loop.call_soon_threadsafe(wake, partition)

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Event]:
        events = self._of(run_id).events.get(run_id, [])
        return events[after : None if limit is None else after + limit]

    async def run(self, run_id: str) -> RunInfo | None:
        row = self._of(run_id).run(run_id)
        return None if row is None else run_info(row)

    async def runs(
        self, *, status: str | None = None, app: str | None = None, limit: int = 1_000
    ) -> list[RunInfo]:
        rows = (row for partition in self._partitions for row in partition.runs.values())
        return select(map(run_info, rows), status=status, app=app, limit=limit)

    async def members(self) -> port.Members:
        with self._lock:
            now = int(self._clock.boot_s() * 1000)
            live = [member for until, member in self._workers.values() if until > now]
        found = sorted(live, key=lambda member: member.worker)
        return port.Members(now_ms=now, server="memory", members=tuple(found))

    def on_wake(self, wake: Wake) -> None:
        self._wakes = [each for each in self._wakes if not each[0].is_closed()]
        self._wakes.append((asyncio.get_running_loop(), wake))

    def renewer(self) -> _MemoryRenewer:
        return _MemoryRenewer(self)

    def _of(self, run_id: str) -> _Partition:
        return self._partitions[partition_of(run_id, self.partitions)]

    def _pulse(self, pulse: port.Pulse) -> port.Beat:
        with self._lock:
            now = int(self._clock.boot_s() * 1000)
            info = pulse.info
            if info is None:
                known = self._workers.get(pulse.worker)
                info = b"{}" if known is None else known[1].info
            member = port.Member(worker=pulse.worker, apps=pulse.apps, info=info)
            self._workers[pulse.worker] = (now + pulse.ttl_ms, member)
            beats = {
                number: renewal.renew(rows, pulse, number)
                for number, rows in enumerate(self._partitions)
            }
            live = [member for until, member in self._workers.values() if until > now]
        workers = {
            app: tuple(sorted(one.worker for one in live if app in one.apps)) for app in pulse.apps
        }
        return renewal.merge(beats, workers)


class _MemoryRenewer:
    def __init__(self, store: MemoryEventStore) -> None:
        self._store = store

    def pulse(self, pulse: port.Pulse) -> port.Beat:
        return self._store._pulse(pulse)

    def leave(self, worker: str) -> None:
        with self._store._lock:
            self._store._workers.pop(worker, None)

    def close(self) -> None:
        pass
