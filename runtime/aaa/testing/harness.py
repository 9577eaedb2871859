"""What a backend supplies to be held to the port: a store, a way to let time pass, a way to die.

A backend declares how it differs; a case reads the declaration and demands what follows from it.
Nothing is skipped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from aaa.store.memory import MemoryEventStore
from aaa.store.port import EventStore
from aaa.testing.clock import ManualClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """How a backend differs from the reference, where the port lets it.

    ``leases``: ``ttl``: a lease ends when it is not renewed in time, by the store's clock.
    ``session``: it ends when the session of its worker ends at the server, and not before.
    """

    leases: str = "ttl"


class Harness(ABC):
    """An empty store of a backend, opened. ``ttl_ms`` is a lease that a case can wait out.

    ``virtual_time``: the store's clock moves with :meth:`advance` only.
    """

    capabilities = Capabilities()
    virtual_time: bool = False
    ttl_ms: int = 1_000
    store: EventStore

    @abstractmethod
    async def advance(self, ms: int) -> None:
        """Let at least so much time pass at the store: its lease clock and its wall clock."""

    @abstractmethod
    async def another(self) -> EventStore:
        """Another instance on the same data, opened; the harness closes it."""

    @abstractmethod
    async def close(self) -> None:
        """Close every store and remove the data."""

    async def lose_lease(self, worker: str) -> None:  # noqa: ARG002 - sessions belong to a worker
        """End every lease of ``ttl_ms`` and every ownership that this worker holds.

        With ``session`` leases: end the session of this worker, so that the server notices.
        """
        await self.advance(self.ttl_ms + 5)


class MemoryHarness(Harness):
    """The reference model under a clock that is turned by hand."""

    virtual_time = True

    def __init__(self, *, partitions: int = 64) -> None:
        self.clock = ManualClock()
        self.store = MemoryEventStore(partitions=partitions, clock=self.clock)

    async def advance(self, ms: int) -> None:
        self.clock.advance(ms)

    async def another(self) -> EventStore:
        return self.store

    async def close(self) -> None:
        await self.store.close()
