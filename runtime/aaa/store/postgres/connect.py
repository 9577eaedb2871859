"""Connections to Postgres: how a session is set up, how long anything may take, a small pool.

Every wait is bounded: connecting by ``connect_timeout``, a statement by the server's
``statement_timeout``, and, should the server itself hang, by cutting the connection a little later.
A connection whose last use has not come to its end is not used again.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

import orjson
import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.types.json import set_json_loads

from aaa.errors import StoreUnavailable
from aaa.store.postgres.address import Address
from aaa.store.postgres.faults import RACES, faults, translated

Async = psycopg.AsyncConnection[tuple[Any, ...]]
Sync = psycopg.Connection[tuple[Any, ...]]

T = TypeVar("T")

#: How often something is said before the store counts as unavailable.
_TRIES: Final = 3

STATEMENT_TIMEOUT_S: Final = 10
#: Beyond the server's own limit: then it is not the statement that hangs but the server.
CUT_AFTER_S: Final = STATEMENT_TIMEOUT_S + 3

#: What libpq is told where the URL says nothing. A line that is dead is noticed in some 15 s.
_LIBPQ: Final[dict[str, Any]] = {
    "connect_timeout": 4,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "application_name": "aaa",
}

#: What each session is told. The keepalives here are the server's: they free the leases of a
#: machine that vanished without a word. Plans are generic and by index, since a plan that was made
#: while the tables were empty would otherwise be kept.
_SESSION: Final = {
    "statement_timeout": f"{STATEMENT_TIMEOUT_S}s",
    "lock_timeout": f"{STATEMENT_TIMEOUT_S - 2}s",
    "idle_in_transaction_session_timeout": "60s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "3",
    "tcp_keepalives_count": "3",
    "default_transaction_isolation": "read committed",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "jit": "off",
}


def _libpq(address: Address) -> dict[str, Any]:
    said = conninfo_to_dict(address.conninfo)
    return {name: value for name, value in _LIBPQ.items() if name not in said}


def _session_setup(address: Address) -> tuple[str, list[str]]:
    settings = {"search_path": f"{address.schema}, pg_temp", **_SESSION}
    calls = ", ".join("set_config(%s, %s, false)" for _ in settings)
    return f"SELECT {calls}", [part for pair in settings.items() for part in pair]


async def connect(address: Address) -> Async:
    """A session, set up. Raises ``StoreUnavailable`` or ``ConfigError``."""
    query, values = _session_setup(address)
    with faults():
        connection = await psycopg.AsyncConnection.connect(
            address.login(), autocommit=True, **_libpq(address)
        )
        set_json_loads(orjson.loads, connection)
        try:
            with cut_later(connection):
                await connection.execute(query.encode(), values)
        except BaseException:
            await connection.close()
            raise
        return connection


def connect_blocking(address: Address) -> Sync:
    """As :func:`connect`, for the heartbeat thread."""
    query, values = _session_setup(address)
    with faults():
        connection = psycopg.connect(address.login(), autocommit=True, **_libpq(address))
        set_json_loads(orjson.loads, connection)
        try:
            with cut_later_blocking(connection):
                connection.execute(query.encode(), values)
        except BaseException:
            connection.close()
            raise
        return connection


def cut(connection: Async | Sync) -> None:
    """End the connection's traffic from any thread; whoever waits for it gets an error."""
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        return  # it is down already


@contextmanager
def cut_later(connection: Async) -> Iterator[None]:
    """Cut the connection if what is done inside takes too long."""
    timer = asyncio.get_running_loop().call_later(CUT_AFTER_S, cut, connection)
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def cut_later_blocking(connection: Sync) -> Iterator[None]:
    """As :func:`cut_later`, without an event loop."""
    timer = threading.Timer(CUT_AFTER_S, cut, (connection,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _Again(Exception):
    """Nothing came back for a reason that the next try may not meet."""


class Pool:
    """A few sessions, opened when they are first needed; any of them serves any commit."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._room = asyncio.Semaphore(address.pool)
        self._idle: list[Async] = []
        self._closed = False

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Async]:
        """A session of one's own inside the block."""
        async with self._room:
            connection = await self._taken()
            try:
                with faults(), cut_later(connection):
                    yield connection
            finally:
                idle = connection.info.transaction_status == TransactionStatus.IDLE
                if idle and not connection.closed and not self._closed:
                    self._idle.append(connection)
                else:
                    await connection.close()

    async def _taken(self) -> Async:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        return await connect(self._address)

    async def speak(self, say: Callable[[Async], Awaitable[T]]) -> T:
        """Say something that may be said twice: again after a lost race or a broken session."""
        reason = ""
        for _ in range(_TRIES):
            try:
                async with self.session() as connection:
                    try:
                        return await say(connection)
                    except psycopg.Error as error:
                        if connection.closed:
                            await self.forget()
                        elif error.sqlstate not in RACES:
                            raise
                        raise _Again(str(translated(error))) from None
            except _Again as again:
                reason = str(again)
        raise StoreUnavailable(reason)

    async def put(self, connection: Async) -> None:
        """Give the pool a session that was opened elsewhere."""
        self._idle.append(connection)

    async def forget(self) -> None:
        """Close what lies idle: a neighbour has just been found broken."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    async def close(self) -> None:
        """Close all; what is in use is closed when its use ends."""
        self._closed = True
        await self.forget()
