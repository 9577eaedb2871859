"""The store in Postgres. One commit is one call of one function: one round trip, one transaction.

Guarantees: everything in :mod:`aaa.store.port`, by the server's clock. Commits of a partition are
serialised by its row; commits of different partitions run side by side over a small pool, so that
the server flushes them together. Leases are bound to sessions (:mod:`aaa.store.postgres.leases`).
What an acknowledgement is worth depends on the server's settings: ``open`` reads and names them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import psycopg

from aaa.clock import SYSTEM_CLOCK, Clock
from aaa.errors import StoreUnavailable
from aaa.events import Event
from aaa.ids import partition_of
from aaa.store.port import (
    Committed,
    Head,
    Member,
    Members,
    Operation,
    Renewer,
    RunInfo,
    StoreInfo,
    Wake,
)
from aaa.store.postgres import schema, server, wire
from aaa.store.postgres.address import Address, parse
from aaa.store.postgres.connect import Async, Pool, connect
from aaa.store.postgres.leases import LeaseBook, PostgresRenewer
from aaa.store.postgres.listener import Listener

#: How often one commit is tried under a new lease session.
_TRIES: Final = 3

_RUN = (
    "SELECT run_id, app, digest, status, seq, last_id, cursor, cancelling, suspended, parked, "
    "awaiting, unknown, created_ms, closed_ms, deleted FROM runs"
)


class PostgresEventStore:
    """An :class:`aaa.store.port.EventStore` in a schema of its own in a Postgres database."""

    def __init__(self, address: Address, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._address, self._clock = address, clock
        self._functions = schema.Functions(address)
        self._commit = self._functions.named(
            "SELECT verdict, raws, mark FROM "
            "fn_commit(%s, %s, %s::jsonb, %b::bytea[], %s::int[], %s)"
        ).encode()
        self._pool = Pool(address)
        self._book = LeaseBook(address, self._functions)
        # Of its own: the loop's default threads may all be busy with tools.
        self._thread = ThreadPoolExecutor(max_workers=2, thread_name_prefix="aaa-lease")
        self._listener = Listener(address, self._functions, self._woken, clock)
        self._wakes: list[Wake] = []
        self._info: StoreInfo | None = None

    @classmethod
    def from_url(cls, url: str, *, latest: Callable[[], str] | None = None) -> PostgresEventStore:
        """A store from its URL, not yet opened. Raises :class:`aaa.errors.ConfigError`.

        ``latest`` gives the URL again: its user and password as they are then are used for each new
        connection.
        """
        return cls(parse(url, latest=latest))

    @property
    def partitions(self) -> int:
        if self._info is None:
            raise StoreUnavailable("the store is not open yet")
        return self._info.partitions

    async def open(self) -> StoreInfo:
        if self._info is not None:
            return self._info
        one = await connect(self._address)
        try:
            promises = await server.inspect(one)
            other = await connect(self._address)
            try:
                await server.check_sessions(one, other)
            finally:
                await other.close()
            layout = await schema.prepare(one, self._address, self._functions, clock=self._clock)
        except BaseException:
            await one.close()
            raise
        await self._pool.put(one)
        self._info = StoreInfo(
            backend="postgres",
            identity=layout.identity,
            partitions=layout.partitions,
            schema=layout.version,
            server=promises.version,
            warnings=promises.warnings,
        )
        if self._wakes:
            self._listener.start()
        return self._info

    async def close(self) -> None:
        self._info = None
        self._wakes.clear()
        await self._listener.stop()
        await asyncio.to_thread(self._book.close)
        self._thread.shutdown(wait=False)
        await self._pool.close()

    async def commit(
        self, partition: int, operations: Sequence[Operation], *, seen: int = 0
    ) -> Committed:
        for _ in range(_TRIES):
            sessions = {name: await self._session(name) for name in wire.workers_of(operations)}
            batch = wire.encode(operations, sessions)
            try:
                rows = await self._call(
                    self._commit,
                    (partition, seen, *batch.arguments, self._listener.session),
                )
                break
            except psycopg.Error as error:
                if error.sqlstate != schema.GONE_CODE:
                    raise
                self._drop(sessions, int(error.diag.message_detail or 0))
        else:
            raise StoreUnavailable("Postgres ends a worker's lease session again and again")
        *rows, (hot, _, mark) = rows
        if hot:
            self._woken(partition)
        verdicts = tuple(
            wire.decode(op, shown, raws or ())
            for op, (shown, raws, _) in zip(operations, rows, strict=True)
        )
        return Committed(verdicts, mark, bool(hot))

    async def _session(self, worker: str) -> int:
        known = self._book.known(worker)
        if known is not None:
            return known
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._book.session, worker)

    def _drop(self, sessions: dict[str, int], gone: int) -> None:
        for worker, number in sessions.items():
            if number == gone:
                self._book.drop(worker, number)

    async def _call(self, query: bytes, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        async def say(connection: Async) -> list[tuple[Any, ...]]:
            cursor = connection.cursor(binary=True)
            await cursor.execute(query, values, prepare=True)
            return await cursor.fetchall()

        return await self._pool.speak(say)

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Event]:
        rows = await self._call(
            b"SELECT id, type, raw, parent, seq, time_ms FROM events "
            b"WHERE partition = %s AND run_id = %s AND seq > %s ORDER BY seq LIMIT %s",
            (partition_of(run_id, self.partitions), run_id, after, limit),
        )
        return [
            Event(id=id_, run_id=run_id, type=type_, raw=raw, parent=parent, seq=seq, time=time)
            for id_, type_, raw, parent, seq, time in rows
        ]

    async def run(self, run_id: str) -> RunInfo | None:
        rows = await self._call(
            f"{_RUN} WHERE partition = %s AND run_id = %s".encode(),
            (partition_of(run_id, self.partitions), run_id),
        )
        return _run_info(rows[0]) if rows else None

    async def runs(
        self, *, status: str | None = None, app: str | None = None, limit: int = 1_000
    ) -> list[RunInfo]:
        wanted, values = ["NOT deleted"], list[Any]()
        match status:
            case None:
                pass
            case "waiting":
                wanted.append("awaiting > 0")
            case "unknown":
                wanted.append("unknown > 0")
            case _:
                wanted.append("status = %s")
                values.append(status)
        if app is not None:
            wanted.append("app = %s")
            values.append(app)
        rows = await self._call(
            f"{_RUN} WHERE {' AND '.join(wanted)} "
            "ORDER BY created_ms DESC, run_id DESC LIMIT %s".encode(),
            (*values, limit),
        )
        return [_run_info(row) for row in rows]

    async def members(self) -> Members:
        rows = await self._call(
            self._functions.named(
                "SELECT n.now_ms, fn_boot()::text, w.worker, w.apps, w.info "
                "FROM (SELECT fn_now_ms() AS now_ms) n LEFT JOIN workers w "
                "ON w.until_ms > n.now_ms AND NOT fn_ended(w.session, w.until_ms, 0, -1, n.now_ms) "
                "ORDER BY w.worker"
            ).encode(),
            (),
        )
        found = tuple(
            Member(worker=worker, apps=tuple(apps), info=bytes(info))
            for _, _, worker, apps, info in rows
            if worker is not None
        )
        return Members(now_ms=rows[0][0], server=rows[0][1], members=found)

    def on_wake(self, wake: Wake) -> None:
        self._wakes.append(wake)
        if self._info is not None:
            self._listener.start()

    def renewer(self) -> Renewer:
        return PostgresRenewer(self._book, self._functions)

    def _woken(self, partition: int) -> None:
        loop = asyncio.get_running_loop()
        for wake in self._wakes:
            loop.call_soon(wake, partition)


def _run_info(row: tuple[Any, ...]) -> RunInfo:
    run_id, app, digest, status, seq, last_id, cursor, cancelling, suspended, parked = row[:10]
    awaiting, unknown, created_ms, closed_ms, deleted = row[10:]
    return RunInfo(
        run_id=run_id,
        app=app,
        digest=digest,
        status=status,
        head=Head(seq, last_id),
        cursor=cursor,
        cancelling=cancelling,
        suspended=suspended,
        parked=parked,
        awaiting=awaiting,
        unknown=unknown,
        created_ms=created_ms,
        closed_ms=closed_ms,
        deleted=deleted,
    )
