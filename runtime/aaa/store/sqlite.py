"""The embedded store: one SQLite file, which several processes of one machine may share.

What it guarantees: a commit that was answered has been forced to disk (``synchronous=full``), its
operations all or nothing. What it does not: a file is only as safe as its disk, and cannot be
shared between machines. Leases are judged by the machine's boot clock, which every process shares;
stamps, approvals and timers by its wall clock.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw

from aaa.clock import SYSTEM_CLOCK, Clock
from aaa.errors import StoreUnavailable
from aaa.events import Event
from aaa.store import port, sqlite_schema, sqlite_url
from aaa.store.index import run_info
from aaa.store.port import Committed, Operation, RunInfo, StoreInfo, Wake
from aaa.store.sqlite_errors import translating
from aaa.store.sqlite_renewer import SQLiteRenewer
from aaa.store.sqlite_rows import EVENT_COLUMNS, RUN_COLUMNS, event_of, run_of
from aaa.store.sqlite_url import Settings
from aaa.store.sqlite_watch import Watch
from aaa.store.sqlite_writer import Writer

T = TypeVar("T")

#: The largest integer that SQLite holds: no limit.
_ALL: Final = 2**63 - 1


class SQLiteEventStore:
    """An :class:`aaa.store.port.EventStore` in a file. The folder is made if it is missing.

    ``partitions``: ``None`` takes what the file has, 64 in a new one; another number than the
    file's is refused with ``StoreMismatch``. ``synchronous``: ``full`` or ``extra`` keep what was
    acknowledged; ``normal`` and ``off`` may lose it, and :meth:`open` says so.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        partitions: int | None = None,
        synchronous: str = "full",
        clock: Clock = SYSTEM_CLOCK,
        boot_id: str | None = None,
    ) -> None:
        self._settings = Settings(path=Path(path), partitions=partitions, synchronous=synchronous)
        self._clock, self._boot_id = clock, boot_id
        self._opening = asyncio.Lock()
        self._open: _Open | None = None
        self._info: StoreInfo | None = None
        self._wakes: list[Wake] = []

    @classmethod
    def from_url(cls, url: str) -> SQLiteEventStore:
        """``sqlite:///rel.db`` or ``sqlite:////abs.db``, ``?partitions=8&synchronous=full``."""
        settings = sqlite_url.parse(url)
        return cls(settings.path, partitions=settings.partitions, synchronous=settings.synchronous)

    @property
    def partitions(self) -> int:
        if self._info is not None:
            return self._info.partitions
        return self._settings.partitions or port.DEFAULT_PARTITIONS

    async def open(self) -> StoreInfo:
        async with self._opening:
            if self._open is None or self._info is None:
                opened = await asyncio.to_thread(self._connect)
                self._info, writing, reading = opened
                self._open = _Open(self._settings, self._clock, writing, reading)
                if self._wakes:
                    self._open.watch(self._wake)
            return self._info

    async def close(self) -> None:
        async with self._opening:
            if self._open is not None:
                opened, self._open = self._open, None
                await opened.close()

    async def commit(
        self, partition: int, operations: Sequence[Operation], *, seen: int = 0
    ) -> Committed:
        committed = await self._opened().writer.commit(partition, operations, seen)
        if committed.hot:
            self._wake(partition)
        return committed

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Event]:
        rows = await self._query(
            f"SELECT {EVENT_COLUMNS} FROM events "  # noqa: S608 - constants
            "WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?",
            run_id,
            after,
            _ALL if limit is None else limit,
        )
        return [event_of(row) for row in rows]

    async def run(self, run_id: str) -> RunInfo | None:
        rows = await self._query(
            f"SELECT {RUN_COLUMNS} FROM runs WHERE run_id = ?",  # noqa: S608 - constants
            run_id,
        )
        return run_info(run_of(rows[0])) if rows else None

    async def runs(
        self, *, status: str | None = None, app: str | None = None, limit: int = 1_000
    ) -> list[RunInfo]:
        where, bindings = "deleted = 0", []
        if app is not None:
            where, bindings = f"{where} AND app = ?", [app]
        if status in ("waiting", "unknown"):
            where += " AND awaiting > 0" if status == "waiting" else " AND unknown > 0"
        elif status is not None:
            where, bindings = f"{where} AND status = ?", [*bindings, status]
        rows = await self._query(
            f"SELECT {RUN_COLUMNS} FROM runs WHERE {where} "  # noqa: S608 - constants
            "ORDER BY created_ms DESC, run_id DESC LIMIT ?",
            *bindings,
            limit,
        )
        return [run_info(run_of(row)) for row in rows]

    async def members(self) -> port.Members:
        now = int(self._clock.boot_s() * 1000)
        rows = await self._query(
            "SELECT worker, apps, info FROM workers WHERE until_ms > ? ORDER BY worker", now
        )
        found = tuple(
            port.Member(worker=worker, apps=tuple(json.loads(apps)), info=bytes(info))
            for worker, apps, info in rows
        )
        server = self._boot_id or sqlite_schema.boot_id()
        return port.Members(now_ms=now, server=server, members=found)

    def on_wake(self, wake: Wake) -> None:
        self._wakes.append(wake)
        if self._open is not None:
            self._open.watch(self._wake)

    def renewer(self) -> SQLiteRenewer:
        return SQLiteRenewer(self._settings, self._clock)

    def _wake(self, partition: int) -> None:
        for wake in self._wakes:
            wake(partition)

    def _opened(self) -> _Open:
        if self._open is None:
            raise StoreUnavailable(f"store file {self._settings.path} is not open; open it first")
        if self._open.pid != os.getpid():
            raise StoreUnavailable(
                f"store file {self._settings.path} was opened before a fork; "
                "make a store of its own in the child"
            )
        return self._open

    async def _query(self, sql: str, *bindings: Any) -> list[tuple[Any, ...]]:
        opened = self._opened()

        def query() -> list[tuple[Any, ...]]:
            with translating(self._settings.path):
                return opened.reading.execute(sql, bindings).fetchall()

        return await opened.in_reader(query)

    def _connect(self) -> tuple[StoreInfo, apsw.Connection, apsw.Connection]:
        settings = self._settings
        try:
            settings.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnavailable(
                f"store file {settings.path} cannot be made: {error.strerror} ({error.filename})"
            ) from None
        with translating(settings.path):
            writing = sqlite_schema.connect(settings)
            try:
                layout = sqlite_schema.prepare(
                    writing,
                    settings,
                    clock=self._clock,
                    boot_id=self._boot_id or sqlite_schema.boot_id(),
                )
                reading = sqlite_schema.connect(settings)
            except BaseException:
                writing.close()
                raise
        reading.execute("PRAGMA query_only = 1")
        info = StoreInfo(
            backend="sqlite",
            identity=layout.identity,
            partitions=layout.partitions,
            schema=layout.schema,
            server=f"SQLite {apsw.sqlite_lib_version()}",
            warnings=sqlite_schema.warnings(settings),
        )
        return info, writing, reading


class _Open:
    """What an open store holds: a writer, a reader with its thread, and the watch."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        writing: apsw.Connection,
        reading: apsw.Connection,
    ) -> None:
        self.pid = os.getpid()
        self.writer = Writer(writing, clock=clock, path=settings.path)
        self.reading = reading
        self._settings = settings
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="aaa-sqlite-reader")
        self._watch: Watch | None = None

    async def in_reader(self, query: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, query)

    def watch(self, wake: Wake) -> None:
        if self._watch is None:
            self._watch = Watch(self._settings, wake, self.writer.stirs)

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        if self.pid != os.getpid():
            return  # the parent's threads and locks: not ours to touch
        await self.writer.close()
        await asyncio.to_thread(self._readers.shutdown)
        self.reading.close()
