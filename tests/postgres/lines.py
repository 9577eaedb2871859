"""Two things that may stand between a worker and Postgres: a line that breaks, and a pooler.

Both speak as much of the protocol as they need and keep nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

HOST = "127.0.0.1"
_SSL, _GSS = 80877103, 80877104


class Line:
    """A proxy that can cut all its connections just when the server has answered."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self._target = port
        self._cut_next = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self._cut()

    def lose_next_reply(self, times: int = 1) -> None:
        """What the server answers next is dropped, and its connection ends."""
        self._cut_next = times

    def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(HOST, self._target)
        self._writers |= {writer, up_writer}
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(
                self._pump(reader, up_writer, lossy=False),
                self._pump(up_reader, writer, lossy=True),
            )
        for end in (writer, up_writer):
            end.transport.abort()
            self._writers.discard(end)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, lossy: bool
    ) -> None:
        while data := await source.read(65_536):
            if lossy and self._cut_next:
                self._cut_next -= 1
                raise ConnectionResetError
            sink.write(data)
            await sink.drain()
        raise ConnectionResetError


@asynccontextmanager
async def transaction_pooler(port: int, database: str) -> AsyncIterator[int]:
    """A pooler in transaction mode over one server connection; gives its port."""
    reader, writer = await asyncio.open_connection(HOST, port)
    body = struct.pack("!i", 196608) + f"user\0postgres\0database\0{database}\0\0".encode()
    writer.write(struct.pack("!i", len(body) + 4) + body)
    greeting = await _until_ready(reader)
    alone = asyncio.Lock()
    server = await asyncio.start_server(
        lambda r, w: _serve_client(r, w, greeting, (reader, writer), alone), HOST, 0
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        writer.transport.abort()


async def _serve_client(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    greeting: bytes,
    upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    alone: asyncio.Lock,
) -> None:
    up_reader, up_writer = upstream
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            (size,) = struct.unpack("!i", await reader.readexactly(4))
            (code,) = struct.unpack("!i", (await reader.readexactly(size - 4))[:4])
            if code not in (_SSL, _GSS):
                break
            writer.write(b"N")
        writer.write(greeting)
        while True:
            asked, kind = b"", b""
            while kind not in (b"S", b"Q"):
                kind, message = await _message(reader)
                if kind == b"X":
                    return
                asked += message
            async with alone:
                up_writer.write(asked)
                writer.write(await _until_ready(up_reader))
    writer.transport.abort()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    (size,) = struct.unpack("!i", head[1:])
    return head[:1], head + await reader.readexactly(size - 4)


async def _until_ready(reader: asyncio.StreamReader) -> bytes:
    said = b""
    while True:
        kind, message = await _message(reader)
        said += message
        if kind == b"Z":
            return said
