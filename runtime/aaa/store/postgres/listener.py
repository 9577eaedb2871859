"""Being woken: one listening session, and the order in which it falls asleep.

Postgres lets one commit with NOTIFY through at a time, so commits notify sleepers only. A listener
that was told is awake until it says that it sleeps again; it asks for news afterwards, so that
nothing falls in between. Hints stay hints: a lost connection loses some, and heartbeats find them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import psycopg
from psycopg import sql

from aaa.clock import Clock
from aaa.errors import AAAError
from aaa.store.port import Wake
from aaa.store.postgres.address import Address
from aaa.store.postgres.connect import Async, connect, cut_later
from aaa.store.postgres.faults import faults
from aaa.store.postgres.schema import Functions

#: Without any news, look again after so long: the connection is shown to live, too.
_LOOK_AGAIN_S = 20.0
_RETRY_S = 1.0

_log = logging.getLogger(__name__)


class Listener:
    """Calls ``wake(partition)`` in the loop's thread while it runs; reconnects for ever."""

    def __init__(self, address: Address, functions: Functions, wake: Wake, clock: Clock) -> None:
        self._address, self._functions, self._wake, self._clock = address, functions, wake, clock
        self._task: asyncio.Task[None] | None = None
        #: This listener's session: what its own store commits needs no notification. 0: none yet.
        self.session = 0

    def start(self) -> None:
        """Begin to listen, in the running loop. Starting twice is fine."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="aaa-listen")

    async def stop(self) -> None:
        """Stop, and free the connection."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            try:
                await self._listen()
            except (AAAError, psycopg.Error) as error:
                _log.info("not woken by Postgres for a while, heartbeats look instead: %s", error)
            self.session = 0
            await self._clock.sleep(_RETRY_S)

    async def _listen(self) -> None:
        connection = await connect(self._address)
        try:
            with faults():
                await self._follow(connection)
        finally:
            await connection.close()

    async def _follow(self, connection: Async) -> None:
        listen = sql.SQL("LISTEN {}").format(sql.Identifier(self._address.channel))
        with cut_later(connection):
            await connection.execute(listen)
            cursor = await connection.execute(
                self._functions.named("SELECT fn_open_session('')").encode()
            )
            (number,) = await cursor.fetchone() or (0,)
        seen: dict[int, int] = {}
        while True:
            news = await self._sleep_and_ask(connection, number)
            self.session = number
            for partition, mark in news.items():
                # At first everything is news: what was missed before is in it.
                if seen.get(partition, 0) != mark:
                    self._wake(partition)
            seen = news
            async for _ in connection.notifies(timeout=_LOOK_AGAIN_S, stop_after=1):
                pass

    async def _sleep_and_ask(self, connection: Async, number: int) -> dict[int, int]:
        with cut_later(connection):
            await connection.execute(
                self._functions.named("SELECT fn_sleep(%s)").encode(), (number,)
            )
            cursor = await connection.execute("SELECT partition, woken FROM partitions")
            return dict(await cursor.fetchall())
