"""Leases as a worker sees them: one thread renews everything that it holds, in one pulse.

The thread has a connection of its own, so a tool that blocks the event loop loses nothing (G12).
A renewal that fails is tried again soon (G11); it ends neither the heartbeat nor a tool. How long
a lease may be trusted is counted from the moment the last successful renewal was *sent*, on a
clock that runs while the machine sleeps, less a margin (G10); whoever runs the call watches
:attr:`Lease.trust_until_s` and stops before the lease can have ended at the store.

A loop that has been blocked beyond ``loop_block_limit_s`` is taken for hung: the thread stops
renewing and calls ``on_blocked``, which ends a worker process. A machine that slept, or a process
that was stopped, is not taken for that: its loop ticks soon after it wakes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable
from typing import Any, Final

from aaa.clock import Clock
from aaa.errors import AAAError
from aaa.store.port import Beat, EventStore, HeldCall, Pulse, Renewer
from aaa.telemetry import names, tell

log = logging.getLogger("aaa.lease")

#: Share of the TTL that is not trusted, for the time between a check and what follows it.
MARGIN: Final = 0.1
MAX_MARGIN_S: Final = 1.0
#: A failed pulse is repeated after this share of the period.
RETRY_SHARE: Final = 0.2
#: What a worker says of itself is said again after so many seconds, whatever happens.
SAY_AGAIN_S: Final = 60.0


class Lease:
    """One held call. ``stop`` is set, once, with the reason why its holder should stop."""

    __slots__ = (
        "_awaited",
        "_fresh",
        "_loop",
        "every_s",
        "held",
        "partition",
        "stop",
        "trust_until_s",
        "ttl_s",
    )

    def __init__(self, partition: int, held: HeldCall, *, sent_s: float, every_s: float) -> None:
        self.partition, self.held, self.every_s = partition, held, every_s
        self.ttl_s = held.lease_ttl_ms / 1000
        self._loop = asyncio.get_running_loop()
        #: ``lost``: another may hold it; ``cancelled``: the run is being cancelled;
        #: ``drain``: the worker must end.
        self.stop: asyncio.Future[str] = self._loop.create_future()
        self.trust_until_s = 0.0
        self._fresh = asyncio.Event()
        self._awaited = False
        self.renewed(sent_s)

    def renewed(self, sent_s: float) -> None:
        """The store renewed it on a request sent at ``sent_s``. Called from the thread."""
        until_s = sent_s + self.ttl_s - min(MARGIN * self.ttl_s, MAX_MARGIN_S)
        self.trust_until_s = max(self.trust_until_s, until_s)
        if self._awaited and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._fresh.set)

    async def trusted(self, clock: Clock) -> bool:
        """Whether it may be trusted now, after waiting for a renewal if need be.

        A claim whose reply was lost may be answered when its lease has nearly ended (G10).
        """
        while clock.boot_s() >= self.trust_until_s and not self.stop.done():
            self._fresh.clear()
            self._awaited = True
            if clock.boot_s() < self.trust_until_s:
                break  # renewed in between, by a thread that did not know of us
            renewed = asyncio.ensure_future(self._fresh.wait())
            either: set[asyncio.Future[Any]] = {renewed, self.stop}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                renewed.cancel()
        return not self.stop.done()

    def tell(self, reason: str) -> None:
        """Ask the holder to stop; the first reason counts."""
        if not self.stop.done():
            self.stop.set_result(reason)


class Heartbeat:
    """The renewing thread of one worker incarnation."""

    def __init__(
        self,
        store: EventStore,
        *,
        worker: str,
        clock: Clock,
        ttl_s: float,
        on_beat: Callable[[Beat], None],
        loop_block_limit_s: float = 60.0,
        on_blocked: Callable[[float], None] | None = None,
        on_tick: Callable[[float], None] | None = None,
    ) -> None:
        self.worker, self.ttl_s = worker, ttl_s
        self._store, self._clock = store, clock
        self._on_beat, self._on_blocked, self._on_tick = on_beat, on_blocked, on_tick
        self._block_limit_s = loop_block_limit_s
        self._suspected_s: float | None = None
        self._leases: dict[tuple[str, str], Lease] = {}
        self._owned: dict[int, set[str]] = {}
        self._apps: tuple[str, ...] = ()
        #: What the worker says of itself; what it last said successfully, and when.
        self._info = b"{}"
        self._told_info: bytes | None = None
        self._told_s = self._pulsed_s = -math.inf
        #: When the thread looks again by itself (``boot_s``).
        self._next_s = math.inf
        self._shortest_ttl_s: Callable[[], float] = lambda: ttl_s
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ending = False
        self._leave = True
        self._ticked_s = clock.boot_s()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ticker: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ the loop's side

    def start(self) -> None:
        """Begin to renew; call from the event loop."""
        self._loop = asyncio.get_running_loop()
        self._ticked_s = self._clock.boot_s()
        self._ticker = asyncio.create_task(self._tick())
        self._thread = threading.Thread(target=self._beat, name="aaa-heartbeat", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End the thread and leave the membership."""
        self._ending = True
        self._wake.set()
        if self._ticker is not None:
            self._ticker.cancel()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    @property
    def leased(self) -> bool:
        """Whether the worker's own lease cannot have ended: a pulse was answered within its TTL."""
        return self._thread is not None and self._clock.boot_s() - self._pulsed_s < self.ttl_s

    @property
    def lag_s(self) -> float:
        """For how long the loop has not ticked; from any thread."""
        return 0.0 if self._thread is None else self._clock.boot_s() - self._ticked_s

    def abandon(self) -> None:
        """End the thread without a word to the store, as a crash would."""
        self._leave = False
        self._ending = True
        self._wake.set()
        if self._ticker is not None:
            self._ticker.cancel()

    def hold(self, lease: Lease) -> None:
        """Renew this lease from now on, and no older one on the same call."""
        key = (lease.held.run_id, lease.held.request_id)
        with self._lock:
            older = self._leases.get(key)
            self._leases[key] = lease
        if older is not None:
            older.tell("lost")  # the store has given the call out again; no pulse will say so
        now_s = self._clock.boot_s()
        if now_s + lease.every_s < self._next_s or now_s >= lease.trust_until_s:
            self._wake.set()  # the thread would sleep for longer than this one can wait

    def release(self, lease: Lease) -> None:
        """Renew it no more."""
        with self._lock:
            key = (lease.held.run_id, lease.held.request_id)
            if self._leases.get(key) is lease:
                del self._leases[key]

    def own(self, app: str, partition: int) -> None:
        """Renew the ownership of (app, partition) from now on."""
        with self._lock:
            self._owned.setdefault(partition, set()).add(app)

    def disown(self, app: str, partition: int) -> None:
        """Renew it no more."""
        with self._lock:
            self._owned.get(partition, set()).discard(app)

    def serve(self, apps: tuple[str, ...], *, shortest_ttl_s: Callable[[], float]) -> None:
        """Tell the membership which apps this worker serves; known from the next pulse on.

        A pulse also looks for others' leases. It comes twice in the shortest TTL of a call, so
        that each lease is known before it can end, and is looked at when it does (G14).
        """
        self._apps, self._shortest_ttl_s = apps, shortest_ttl_s
        self._wake.set()

    def say(self, info: bytes) -> None:
        """What the worker says of itself to those who look on; known from the next pulse on."""
        if info != self._info:
            self._info = info
            self._wake.set()

    async def _tick(self) -> None:
        every_s = min(0.5, self._block_limit_s / 4)
        while True:
            self._ticked_s = self._clock.boot_s()
            await self._clock.sleep(every_s)
            if self._on_tick is not None:
                self._on_tick(self._clock.boot_s() - self._ticked_s - every_s)

    # ---------------------------------------------------------- the thread's side

    def _beat(self) -> None:
        renewer: Renewer | None = None
        try:
            while not self._ending:
                if self._blocked():
                    return
                self._wake.clear()
                self._next_s = self._clock.boot_s() + self._period_s()
                try:
                    renewer = renewer or self._store.renewer()
                    wait_s = self.pulse(renewer)
                except AAAError as error:
                    message = "renewal failed, will try again: %s"
                    tell(log, names.LOG_RENEW_FAILED, message, error, worker=self.worker)
                    wait_s = RETRY_SHARE * self._period_s()
                except Exception:  # noqa: BLE001 - told with its trace, and survived
                    message = "renewal failed unexpectedly, will try again"
                    tell(log, names.LOG_RENEW_BROKE, message, exc_info=True, worker=self.worker)
                    wait_s = RETRY_SHARE * self._period_s()
                wait_s = wait_s if self._suspected_s is None else min(wait_s, 0.1)
                self._next_s = self._clock.boot_s() + wait_s
                self._wake.wait(wait_s)
            if renewer is not None and self._leave:
                renewer.leave(self.worker)
        except Exception as error:  # noqa: BLE001 - leaving is a courtesy; the TTL does the rest
            message = "could not leave the membership: %s"
            tell(log, names.LOG_NOT_LEFT, message, error, worker=self.worker)
        finally:
            if renewer is not None:
                renewer.close()

    def _blocked(self) -> bool:
        now_s = self._clock.boot_s()
        lag_s = now_s - self._ticked_s
        if lag_s <= self._block_limit_s:
            self._suspected_s = None
            return False
        if self._suspected_s is None:
            self._suspected_s = now_s
        # A machine that slept looks the same at first; its loop ticks within this time.
        if now_s - self._suspected_s < min(1.0, self._block_limit_s / 2):
            return False
        message = "the event loop has been blocked for %.1f s; renewing nothing more"
        tell(log, names.LOG_LOOP_BLOCKED, message, lag_s, worker=self.worker)
        if self._on_blocked is not None:
            self._on_blocked(lag_s)
        return True

    def pulse(self, renewer: Renewer) -> float:
        """Renew once; return how many seconds to wait. Raises what the store raises."""
        sent_s = self._clock.boot_s()
        pulse = self._make(info=self._news(sent_s))
        known, self._told_info = self._told_info, None  # until the store has answered
        beat = renewer.pulse(pulse)
        self._pulsed_s, self._told_info = sent_s, known if pulse.info is None else pulse.info
        self._told_s = self._told_s if pulse.info is None else sent_s
        lost = {(held.run_id, held.request_id, held.attempt) for held in beat.lost_calls}
        with self._lock:
            for calls in pulse.calls.values():
                for held in calls:
                    lease = self._leases.get((held.run_id, held.request_id))
                    key = (held.run_id, held.request_id, held.attempt)
                    if lease is not None and lease.held == held and key not in lost:
                        lease.renewed(sent_s)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._heard, beat)
        return max(0.0, self._period_s() - (self._clock.boot_s() - sent_s))

    def _scan_s(self) -> float:
        """How often to look for others' leases, under the settings now in force."""
        return min(self.ttl_s / 3, self._shortest_ttl_s() / 2)

    def _news(self, now_s: float) -> bytes | None:
        """What to say of oneself in this pulse: nothing, as long as the store has it for certain."""
        kept = now_s - self._pulsed_s < self.ttl_s / 2 and now_s - self._told_s < SAY_AGAIN_S
        return None if kept and self._told_info == self._info else self._info

    def _make(self, *, info: bytes | None) -> Pulse:
        with self._lock:
            calls: dict[int, list[HeldCall]] = {}
            for lease in self._leases.values():
                calls.setdefault(lease.partition, []).append(lease.held)
            return Pulse(
                worker=self.worker,
                apps=self._apps,
                ttl_ms=round(self.ttl_s * 1000),
                owned={p: tuple(sorted(apps)) for p, apps in self._owned.items() if apps},
                calls={p: tuple(held) for p, held in calls.items()},
                info=info,
            )

    def _period_s(self) -> float:
        with self._lock:
            held = min((each.every_s for each in self._leases.values()), default=self._scan_s())
            return min(held, self._scan_s())

    def _heard(self, beat: Beat) -> None:
        """In the loop: tell the holders, then the engine."""
        for reason, calls in (("lost", beat.lost_calls), ("cancelled", beat.cancelled)):
            for held in calls:
                lease = self._leases.get((held.run_id, held.request_id))
                if lease is not None and lease.held == held:
                    lease.tell(reason)
        self._on_beat(beat)
