"""The bus: everything that is ready in one turn of the loop for one partition goes out together.

While a batch is on its way, what comes in for the same partition waits and travels as the next:
group commit, without a timer. A batch whose reply was lost is sent again as it was until the
store answers (G15); every operation is made for that. The bus also remembers each partition's
high-water mark, so that a store that went back in time is noticed (G23).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from aaa.clock import Clock
from aaa.errors import StoreUnavailable
from aaa.events import Event
from aaa.store.port import EventStore, Operation, RunInfo, Verdict
from aaa.telemetry import names, tell

T = TypeVar("T")

log = logging.getLogger("aaa.bus")

MAX_BATCH: Final = 256
_RETRY_FIRST_S: Final = 0.02
_RETRY_MAX_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Receipt:
    """The verdicts of what was sent together, and when it was sent first (``boot_s``).

    The first try counts because it may have been the one that was applied: a lease that it took
    has run since then (G10).
    """

    verdicts: tuple[Verdict, ...]
    sent_s: float
    #: It had to be sent again: what stands there already may be its own work.
    again: bool = False


@dataclass(slots=True)
class _Parcel:
    operations: tuple[Operation, ...]
    receipt: asyncio.Future[Receipt]


@dataclass(slots=True)
class _Lane:
    """One partition's queue; ``task`` sends it."""

    waiting: deque[_Parcel] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    seen: int = 0


class Bus:
    """Sends operations to the store, grouped by partition, in the order in which they came."""

    def __init__(self, store: EventStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._lanes: dict[int, _Lane] = {}
        self._closed = False

    def send(self, partition: int, operations: Sequence[Operation]) -> asyncio.Future[Receipt]:
        """Queue operations that belong together; cancelling the future does not unsend them."""
        lane = self._lanes.setdefault(partition, _Lane())
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        if self._closed:
            receipt.set_exception(StoreUnavailable("the engine has stopped"))
            receipt.exception()  # seen: nobody may be waiting
            return receipt
        lane.waiting.append(_Parcel(tuple(operations), receipt))
        if lane.task is None:
            lane.task = asyncio.create_task(self._run(partition, lane))
        return receipt

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Event]:
        """A run's events, however long the store cannot be reached: what waits is not lost."""
        return await self._again(run_id, lambda: self._store.read(run_id, after=after, limit=limit))

    async def run(self, run_id: str) -> RunInfo | None:
        """A run's index entry, as :meth:`read`."""
        return await self._again(run_id, lambda: self._store.run(run_id))

    async def _again(self, run_id: str, ask: Callable[[], Awaitable[T]]) -> T:
        wait_s = _RETRY_FIRST_S
        while not self._closed:
            try:
                return await ask()
            except StoreUnavailable as error:
                message = "store unavailable, will try again: %s"
                tell(log, names.LOG_STORE_NOT_READ, message, error, run_id=run_id)
                await self._clock.sleep(wait_s)
                wait_s = min(2 * wait_s, _RETRY_MAX_S)
        raise StoreUnavailable("the engine has stopped")

    async def close(self) -> None:
        """Give up what the store has not answered yet; it may or may not have been written."""
        self._closed = True
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, partition: int, lane: _Lane) -> None:
        parcels: list[_Parcel] = []
        try:
            while lane.waiting:
                parcels = _pack(lane.waiting)
                await self._deliver(partition, lane, parcels)
        except asyncio.CancelledError:
            _fail([*parcels, *lane.waiting], StoreUnavailable("the engine has stopped"))
            raise
        finally:
            lane.task = None

    async def _deliver(self, partition: int, lane: _Lane, parcels: list[_Parcel]) -> None:
        sent_s = self._clock.boot_s()
        try:
            await self._try(partition, lane, parcels, sent_s, again=False)
        except Exception as error:  # noqa: BLE001 - handed to whoever sent it
            if len(parcels) == 1:
                _fail(parcels, error)
                return
            # The store cannot take one of them, which fails alone: the others had bad company.
            for parcel in parcels:
                try:
                    await self._try(partition, lane, [parcel], sent_s, again=True)
                except Exception as own:  # noqa: BLE001 - as above
                    _fail([parcel], own)

    async def _try(
        self, partition: int, lane: _Lane, parcels: list[_Parcel], sent_s: float, *, again: bool
    ) -> None:
        """Send until the store answers. Raises what the store raises, except that it is away."""
        operations = [operation for parcel in parcels for operation in parcel.operations]
        wait_s = _RETRY_FIRST_S
        while True:
            try:
                done = await self._store.commit(partition, operations, seen=lane.seen)
            except StoreUnavailable as error:
                tell(
                    log,
                    names.LOG_STORE_UNAVAILABLE,
                    "store unavailable, will try again: %s",
                    error,
                    partition=partition,
                )
                await self._clock.sleep(wait_s)
                wait_s, again = min(2 * wait_s, _RETRY_MAX_S), True
                continue
            lane.seen = max(lane.seen, done.mark)
            _hand_out(parcels, done.verdicts, sent_s, again)
            return


def _pack(waiting: deque[_Parcel]) -> list[_Parcel]:
    parcels = [waiting.popleft()]
    size = len(parcels[0].operations)
    while waiting and size + len(waiting[0].operations) <= MAX_BATCH:
        parcels.append(waiting.popleft())
        size += len(parcels[-1].operations)
    return parcels


def _hand_out(
    parcels: list[_Parcel], verdicts: tuple[Verdict, ...], sent_s: float, again: bool
) -> None:
    at = 0
    for parcel in parcels:
        mine = verdicts[at : at + len(parcel.operations)]
        at += len(parcel.operations)
        if not parcel.receipt.done():
            parcel.receipt.set_result(Receipt(mine, sent_s, again))


def _fail(parcels: Sequence[_Parcel], error: Exception) -> None:
    for parcel in parcels:
        if not parcel.receipt.done():
            parcel.receipt.set_exception(error)
            parcel.receipt.exception()  # seen: nobody may be waiting any more
