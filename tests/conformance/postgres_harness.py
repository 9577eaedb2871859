"""Postgres, held to the port: time is the server's, a worker dies with its session."""

from __future__ import annotations

import asyncio

import psycopg

from aaa.store.port import EventStore
from aaa.store.postgres import PostgresEventStore
from aaa.testing.harness import Capabilities, Harness

_END_SESSIONS = """
SELECT pg_terminate_backend(l.pid, 5000)
FROM pg_locks l JOIN aaa.sessions s ON l.objid = s.session::oid
WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted AND s.worker = %s
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class PostgresHarness(Harness):
    """A database of its own; ``lose_lease`` ends the worker's session at the server."""

    capabilities = Capabilities(leases="session")
    ttl_ms = 300  # longer than opening a session takes on a busy machine

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = PostgresEventStore.from_url(url)
        self._others: list[EventStore] = []

    async def advance(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)

    async def another(self) -> EventStore:
        store = PostgresEventStore.from_url(self.url)
        self._others.append(store)
        await store.open()
        return store

    async def lose_lease(self, worker: str) -> None:
        await end_session(self.url, worker)

    async def close(self) -> None:
        for store in (self.store, *self._others):
            await store.close()


async def end_session(url: str, worker: str) -> None:
    """End a worker's lease session, if it has one, and wait until the server has done so."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as admin:
        cursor = await admin.execute(_END_SESSIONS, (worker,))
        assert all(row[0] for row in await cursor.fetchall())
