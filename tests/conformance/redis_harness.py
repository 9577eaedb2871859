"""Redis, Valkey and a cluster in the conformance suite: real servers, whose time only passes."""

from __future__ import annotations

import asyncio

from aaa.store.redis import RedisEventStore
from aaa.testing.harness import Harness


class RedisHarness(Harness):
    """A store at an address that holds nothing yet."""

    #: Long enough to renew within it on a busy machine, short enough to wait for its end.
    ttl_ms = 300

    def __init__(self, url: str) -> None:
        self._url = url
        self.store: RedisEventStore = RedisEventStore(url)
        self._others: list[RedisEventStore] = []

    async def advance(self, ms: int) -> None:
        await asyncio.sleep(ms / 1_000)

    async def another(self) -> RedisEventStore:
        store = RedisEventStore(self._url)
        self._others.append(store)
        await store.open()
        return store

    async def close(self) -> None:
        for store in (self.store, *self._others):
            await store.close()
