"""What the tests of the Redis store share: runs, calls, and a wire that can be cut."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from aaa.store import port
from aaa.store.redis import RedisEventStore
from aaa.testing.harness import Harness
from aaa.testing.scene import Scene

V = TypeVar("V")


class OpenedStore(Harness):
    """A store of the test's own as a scene wants it; time only passes."""

    def __init__(self, store: RedisEventStore) -> None:
        self.store = store

    async def advance(self, ms: int) -> None:
        await asyncio.sleep(ms / 1_000)

    async def another(self) -> RedisEventStore:
        raise AssertionError("open a second store in the test")

    async def close(self) -> None:
        await self.store.close()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Scene]:
    """A scene on the store at this address."""
    store = RedisEventStore(url)
    try:
        await store.open()
        yield Scene(OpenedStore(store))
    finally:
        await store.close()


def verdict(committed: port.Committed, kind: type[V]) -> V:
    """The only verdict of a batch."""
    (one,) = committed.verdicts
    assert isinstance(one, kind), one
    return one


class Wire:
    """Passes bytes between clients and a server, until it is told to lose the answers."""

    def __init__(self, port_: int, *, tls: ssl.SSLContext | None = None) -> None:
        self._to = port_
        self._tls = tls
        self._lose = False
        self.lost = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()

    @property
    def url(self) -> str:
        assert self._server is not None
        scheme = "rediss" if self._tls else "redis"
        return f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    def lose_the_next_answer(self) -> None:
        """What is asked still arrives; then the connection breaks instead of an answer."""
        self._lose = True

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._to)
        for source, sink, answers in (
            (reader, server_writer, False),
            (server_reader, writer, True),
        ):
            task = asyncio.create_task(self._pass(source, sink, answers=answers))
            self._tasks.add(task)

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                if answers and self._lose:
                    self._lose = False
                    self.lost.set()
                    break
                sink.write(data)
                await sink.drain()
        sink.close()
