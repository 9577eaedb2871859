"""The one writer of a store: a thread that commits whatever has queued up as one transaction.

While one transaction is being forced to disk the next batches gather, so the cost of a commit is
shared by all that wait for it (group commit). An operation that raises is undone alone. When SQLite
itself fails a shared transaction, each batch is tried again by itself.

The thread belongs to an executor: it ends with :meth:`Writer.close`, or with the interpreter.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final

import apsw

from aaa.clock import Clock
from aaa.errors import StoreUnavailable
from aaa.store import logic, port
from aaa.store.port import Committed, Operation, Verdict
from aaa.store.sqlite_errors import translated
from aaa.store.sqlite_rows import SQLiteRows
from aaa.store.sqlite_schema import Immediate, value

#: How many batches may wait; the next ones wait before they are queued.
MAX_WAITING: Final = 4_096
#: How many batches share a transaction: bounds what a failed one has to repeat.
MAX_GROUP: Final = 256


@dataclass(slots=True)
class Job:
    """One batch on its way: who waits for it, and what became of it."""

    partition: int
    operations: Sequence[Operation]
    seen: int
    waiter: asyncio.Future[Committed]
    outcome: Committed | BaseException | None = None

    def deliver(self) -> None:
        """Tell the waiter, in its loop's thread."""
        if self.waiter.done():
            return
        if isinstance(self.outcome, Committed):
            self.waiter.set_result(self.outcome)
        else:
            self.waiter.set_exception(self.outcome or StoreUnavailable("the store was closed"))


class Writer:
    """Owns the writing connection. Made in the event loop that waits for it."""

    def __init__(self, connection: apsw.Connection, *, clock: Clock, path: Path) -> None:
        self._connection, self._clock, self._path = connection, clock, path
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="aaa-sqlite-writer")
        self._room = asyncio.Semaphore(MAX_WAITING)
        self._jobs: deque[Job] = deque()
        self._busy = False
        self._lock = Lock()
        self._partitions: dict[int, SQLiteRows] = {}
        self._version: Any = None
        #: How often this writer has stirred each partition: not news from anybody else.
        self.stirs: Counter[int] = Counter()

    async def commit(self, partition: int, operations: Sequence[Operation], seen: int) -> Committed:
        """Queue a batch and wait for its transaction."""
        async with self._room:
            job = Job(partition, operations, seen, self._loop.create_future())
            with self._lock:
                self._jobs.append(job)
                idle, self._busy = not self._busy, True
            if idle:
                try:
                    self._thread.submit(self._run)
                except RuntimeError:
                    raise StoreUnavailable(f"store file {self._path} is closed") from None
            return await job.waiter

    async def close(self) -> None:
        """Finish what is queued, end the thread, close the connection."""
        await asyncio.to_thread(self._thread.shutdown)
        self._connection.close()

    def _run(self) -> None:
        while True:
            with self._lock:
                jobs = [self._jobs.popleft() for _ in range(min(len(self._jobs), MAX_GROUP))]
                if not jobs:
                    self._busy = False
                    return
            self._write(jobs)
            self._deliver(jobs)

    def _deliver(self, jobs: list[Job]) -> None:
        def deliver() -> None:
            for job in jobs:
                job.deliver()

        try:
            self._loop.call_soon_threadsafe(deliver)
        except RuntimeError:  # the loop has ended: nobody waits any more
            return

    def _write(self, jobs: list[Job]) -> None:
        """Commit the jobs together; or, if SQLite refuses that, each by itself."""
        try:
            with Immediate(self._connection):
                self._apply(jobs)
            return
        except apsw.Error as error:
            self._partitions = {}
            failed: BaseException = translated(error, self._path)
            alone = len(jobs) > 1 and not isinstance(error, apsw.BusyError)
        except Exception as error:  # noqa: BLE001 - it belongs to those who wait
            self._partitions = {}
            failed, alone = error, False
        for job in jobs:
            job.outcome = failed
            if alone:
                self._write([job])

    def _apply(self, jobs: list[Job]) -> None:
        version = value(self._connection, "PRAGMA data_version")
        if version != self._version:  # another connection has written: what is remembered is old
            self._partitions, self._version = {}, version
        partitions: dict[int, SQLiteRows] = {}
        for job in jobs:
            rows = self._partitions.get(job.partition)
            if rows is None:
                rows = SQLiteRows(self._connection, job.partition, self._clock)
                self._partitions[job.partition] = rows
            partitions[job.partition] = rows
            mark = logic.check_mark(rows, job.seen)
            verdicts, error = self._apply_one(rows, job.operations)
            rows.flush()
            hot = rows.hot() and any(map(port.stirs, job.operations, verdicts))
            rows.stirred = rows.stirred or hot
            job.outcome = error or Committed(verdicts, mark.mark, hot)
        for number, rows in partitions.items():
            self.stirs[number] += rows.stirred
            rows.finish()

    def _apply_one(
        self, rows: SQLiteRows, operations: Sequence[Operation]
    ) -> tuple[tuple[Verdict, ...], Exception | None]:
        verdicts: list[Verdict] = []
        failed: Exception | None = None
        for operation in operations:
            try:
                verdicts.append(logic.apply(rows, operation))
            except apsw.Error:
                raise
            except Exception as error:  # noqa: BLE001 - raised to the batch's caller
                failed = failed or error
                rows.undo()
            else:
                rows.end()
        return tuple(verdicts), failed
