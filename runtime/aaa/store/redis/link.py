"""One connection to one server, shared by everything that the event loop wants of it.

Commands of one turn of the loop leave in one write and are answered in order; further ones are
sent while answers are still awaited. When the connection fails, or an answer is late, every
command that was waiting fails with it: none is sent twice by this module. The next command
connects again. At most :data:`IN_FLIGHT` commands are under way; more wait their turn.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as DriverConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as DriverTimeoutError

IN_FLIGHT: Final = 1_024

Reply = tuple[int, object]


def packed(arguments: Iterable[bytes]) -> bytes:
    """A command as it goes over the wire."""
    parts = [b""]
    for argument in arguments:
        parts += (b"$%d\r\n" % len(argument), argument, b"\r\n")
    parts[0] = b"*%d\r\n" % ((len(parts) - 1) // 3)
    return b"".join(parts)


class Link:
    """A connection that is made when it is first needed, and again after it broke."""

    def __init__(
        self, connect: Callable[[], Awaitable[AbstractConnection]], *, timeout_s: float
    ) -> None:
        self._make = connect
        self._timeout_s = timeout_s
        self._connection: AbstractConnection | None = None
        #: Counts connections: a reply says on which one it came.
        self._number = 0
        self._outbox: list[tuple[bytes, asyncio.Future[Reply]]] = []
        self._awaited: deque[asyncio.Future[Reply]] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._room = asyncio.Semaphore(IN_FLIGHT)

    async def call(self, command: bytes) -> Reply:
        """Send a packed command; the connection's number and the answer.

        Raises the driver's errors. After a cancellation the command may or may not have been sent.
        """
        async with self._room:
            future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            self._outbox.append((command, future))
            if self._sender is None:
                # Begins after the callbacks of this turn: what they send goes along.
                self._sender = asyncio.create_task(self._send())
            return await future

    async def drop(self) -> None:
        """Break the connection, so that the next command looks for the server again."""
        await self._fail(DriverConnectionError("the connection was given up"))

    async def close(self) -> None:
        """Free everything. Whatever still waits fails."""
        await self.drop()
        for task in (self._sender, self._reader):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        await self._fail(DriverConnectionError("the store was closed"))

    async def _send(self) -> None:
        try:
            while self._outbox:
                connection = self._connection or await self._connect()
                outbox, self._outbox = self._outbox, []
                waiting = [(command, future) for command, future in outbox if not future.done()]
                self._awaited.extend(future for _, future in waiting)
                if self._reader is None:
                    self._reader = asyncio.create_task(self._read(connection))
                async with asyncio.timeout(self._timeout_s):
                    await connection.send_packed_command(
                        [b"".join(command for command, _ in waiting)], check_health=False
                    )
        except Exception as error:  # noqa: BLE001 - every failure belongs to those who wait
            await self._fail(error)
        finally:
            self._sender = None
            if self._outbox:  # came in while a failure was being dealt with
                self._sender = asyncio.create_task(self._send())

    async def _connect(self) -> AbstractConnection:
        self._connection = await self._make()
        self._number += 1
        return self._connection

    async def _read(self, connection: AbstractConnection) -> None:
        number = self._number
        try:
            while self._awaited and connection is self._connection:
                try:
                    async with asyncio.timeout(self._timeout_s):
                        reply: object = await connection.read_response(
                            disable_decoding=True, timeout=math.inf, disconnect_on_error=False
                        )
                except ResponseError as error:
                    reply = error
                if connection is not self._connection:
                    return
                future = self._awaited.popleft()
                if future.done():
                    continue
                if isinstance(reply, ResponseError):
                    future.set_exception(reply)
                else:
                    future.set_result((number, reply))
        except TimeoutError:
            late = DriverTimeoutError(f"no answer within {self._timeout_s:g} seconds")
            await self._fail(late, of=connection)
        except Exception as error:  # noqa: BLE001 - as above
            await self._fail(error, of=connection)
        finally:
            if self._reader is asyncio.current_task():
                self._reader = None

    async def _fail(self, error: Exception, *, of: AbstractConnection | None = None) -> None:
        connection = self._connection
        if of is not None and of is not connection:
            return
        self._connection = None
        reader, self._reader = self._reader, None
        if reader is not None and reader is not asyncio.current_task():
            reader.cancel()
        lost = [*self._awaited, *(future for _, future in self._outbox)]
        self._awaited.clear()
        self._outbox.clear()
        for future in lost:
            if not future.done():
                future.set_exception(error)
        if connection is not None:
            with suppress(Exception):
                await connection.disconnect(nowait=True)
