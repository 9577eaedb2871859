"""One factory a backend: an async context manager that gives an empty store in a harness.

A factory may ask pytest for the fixtures that it needs (a server's address) by name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from aaa.store.port import EventStore
from aaa.store.sqlite import SQLiteEventStore
from aaa.testing.clock import ManualClock
from aaa.testing.harness import Harness, MemoryHarness
from conformance.postgres_harness import PostgresHarness
from conformance.redis_harness import RedisHarness

Factory = Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[Harness]]


@asynccontextmanager
async def memory(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    harness = MemoryHarness()
    await harness.store.open()
    try:
        yield harness
    finally:
        await harness.close()


class SQLiteHarness(Harness):
    """A file in a temporary folder, under a clock that is turned by hand."""

    virtual_time = True

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self._path = path
        self._others: list[EventStore] = []
        self.store = self._new()

    def _new(self) -> SQLiteEventStore:
        # The disk's promise is not what these cases are about, and forcing it takes time.
        return SQLiteEventStore(self._path, clock=self.clock, synchronous="off", boot_id="boot")

    async def advance(self, ms: int) -> None:
        self.clock.advance(ms)

    async def another(self) -> EventStore:
        other = self._new()
        await other.open()
        self._others.append(other)
        return other

    async def close(self) -> None:
        for store in (*self._others, self.store):
            await store.close()


@asynccontextmanager
async def sqlite(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    harness = SQLiteHarness(request.getfixturevalue("tmp_path") / "store.db")
    await harness.store.open()
    try:
        yield harness
    finally:
        await harness.close()


@asynccontextmanager
async def _at(url: str) -> AsyncIterator[Harness]:
    harness = RedisHarness(url)
    try:
        await harness.store.open()
        yield harness
    finally:
        await harness.close()


def redis(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Harness]:
    return _at(request.getfixturevalue("redis_url"))


def valkey(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Harness]:
    return _at(request.getfixturevalue("valkey_url"))


def redis_cluster(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Harness]:
    return _at(request.getfixturevalue("redis_cluster_url"))


@asynccontextmanager
async def postgres(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    harness = PostgresHarness(request.getfixturevalue("postgres_url"))
    await harness.store.open()
    try:
        yield harness
    finally:
        await harness.close()


BACKENDS: dict[str, Factory] = {
    "memory": memory,
    "sqlite": sqlite,
    "postgres": postgres,
    "redis": redis,
    "valkey": valkey,
    "redis-cluster": redis_cluster,
}
