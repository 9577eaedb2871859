"""Waiting for runs: their ends and their events, wherever they are driven.

A run that this worker drives tells its end itself; of others the store's hints tell that something
has happened, and a look now and then that a hint was lost. Nothing here keeps a run from ending.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from aaa import events as ev
from aaa.bus import Bus
from aaa.errors import RunDeleted, RunNotFound, StoreUnavailable
from aaa.events import Event
from aaa.runtime.outcome import Outcome, outcome_of

#: How often the store is looked at while nothing is heard.
FOLLOW_POLL_S: Final = 0.5


class Endings:
    """Who waits for which run. ``drives`` says whether this worker will hear of a run's end."""

    def __init__(
        self, bus: Bus, *, drives: Callable[[str], bool], partition_of: Callable[[str], int]
    ) -> None:
        self._bus, self._drives, self._partition_of = bus, drives, partition_of
        self._endings: dict[str, set[asyncio.Future[Event]]] = {}
        self._wakes: dict[int, set[asyncio.Event]] = {}

    @contextmanager
    def expect(self, run_id: str) -> Iterator[asyncio.Future[Event]]:
        """The run's last event, once this worker hears of it. Kept as long as somebody waits."""
        closing: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self._endings.setdefault(run_id, set()).add(closing)
        try:
            yield closing
        finally:
            waiting = self._endings.get(run_id, set())
            waiting.discard(closing)
            if not waiting:
                self._endings.pop(run_id, None)

    def closed(self, run_id: str, ending: Event) -> None:
        """A run has ended."""
        for closing in self._endings.pop(run_id, ()):
            if not closing.done():
                closing.set_result(ending)

    def hint(self, partition: int) -> None:
        """Something has happened in a partition."""
        for wake in self._wakes.get(partition, ()):
            wake.set()

    def stop(self) -> None:
        """Tell whoever waits that this engine will hear nothing more."""
        for ending in [each for waiting in self._endings.values() for each in waiting]:
            if not ending.done():
                ending.set_exception(StoreUnavailable("the engine has stopped; the run goes on"))
                ending.exception()  # seen: nobody may be waiting

    async def wait(self, run_id: str, closing: asyncio.Future[Event]) -> Outcome:
        """Wait until a run has ended, wherever it is driven; ``closing`` is what is expected.

        Raises :class:`RunNotFound`, or :class:`RunDeleted`, also when it is deleted meanwhile.
        """
        happened = True
        with self._waking(run_id) as wake:
            while not closing.done():
                wake.clear()
                # It may be deleted, or moved, without a word to its driver: look now and then.
                ask = not happened or not self._drives(run_id)
                if ask and (ending := await self._ending(run_id)):
                    self.closed(run_id, ending)
                    break
                happened = await self._until(wake, closing)
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

    async def follow(self, run_id: str, *, after: int = 0) -> AsyncIterator[Event]:
        """Every event of the run, as it is stored, until the run has ended."""
        ended = False
        with self._waking(run_id) as wake, self.expect(run_id) as closing:
            while not ended:
                wake.clear()
                for event in await self._bus.read(run_id, after=after):
                    after = event.seq
                    ended = ended or event.type in ev.ENDINGS
                    yield event
                info = await self._bus.run(run_id)
                if info is None or info.deleted:
                    return
                # Its end may stand before ``after``: then there is nothing to wait for.
                ended = ended or (info.status != "open" and after >= info.head.seq)
                if not ended:
                    await self._until(wake, closing)

    @contextmanager
    def _waking(self, run_id: str) -> Iterator[asyncio.Event]:
        """Set whenever the store has news of the run's partition: others' are none of its own."""
        wake = asyncio.Event()
        waiting = self._wakes.setdefault(self._partition_of(run_id), set())
        waiting.add(wake)
        try:
            yield wake
        finally:
            waiting.discard(wake)

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
