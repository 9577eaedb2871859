"""The SQLite file's layout: its tables, its versions, how a connection is set up, and reboots.

A file has an identity, a number of partitions and the name of the hash function, all fixed when it
is made. ``schema`` is the newest migration that it went through, ``min_reader`` the oldest code
that may use it. A lease is judged by the machine's boot clock, which begins again with every boot:
the file remembers the boot, and the first open after another one ends all leases of the older.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Final

import apsw

from aaa.clock import Clock
from aaa.errors import StoreMismatch, StoreTooNew, StoreUnavailable
from aaa.store.port import DEFAULT_PARTITIONS
from aaa.store.sqlite_url import Settings

SCHEMA_VERSION: Final = 1
#: Code older than this may not touch a file that this code has written.
MIN_READER: Final = 1
HASH: Final = "blake2b-64/aaa-partition-v1"
#: "AAAe", in the file's header: tells our files from other SQLite files.
APPLICATION_ID: Final = 0x41414165
#: How long a write waits for another process before the store counts as unavailable.
BUSY_MS: Final = 4_000
_PAUSE_MS: Final = 20

_VERSION_1: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE partitions (
  number INTEGER PRIMARY KEY,
  mark INTEGER NOT NULL,     -- high-water mark: rises with every batch
  behind INTEGER NOT NULL,   -- the mark that somebody has seen and the file has lost; 0: none
  stirs INTEGER NOT NULL     -- rises with every batch that may have made something ready
) STRICT;

CREATE TABLE runs (
  run_id TEXT PRIMARY KEY, partition INTEGER NOT NULL, app TEXT NOT NULL, digest TEXT NOT NULL,
  status TEXT NOT NULL, seq INTEGER NOT NULL, last_id TEXT NOT NULL, cursor INTEGER NOT NULL,
  dirty INTEGER NOT NULL,    -- its place among the dirty runs; 0: folded
  cancelling INTEGER NOT NULL, suspended INTEGER NOT NULL, parked INTEGER NOT NULL,
  awaiting INTEGER NOT NULL, unknown INTEGER NOT NULL, created_ms INTEGER NOT NULL,
  closed_ms INTEGER, deleted INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX runs_dirty ON runs (partition, app, dirty) WHERE dirty > 0;
CREATE INDEX runs_listed ON runs (created_ms, run_id) WHERE deleted = 0;
CREATE INDEX runs_by_status ON runs (status, created_ms, run_id) WHERE deleted = 0;
CREATE INDEX runs_by_app ON runs (app, created_ms, run_id) WHERE deleted = 0;
CREATE INDEX runs_waiting ON runs (created_ms, run_id) WHERE awaiting > 0;
CREATE INDEX runs_unknown ON runs (created_ms, run_id) WHERE unknown > 0;

CREATE TABLE events (
  run_id TEXT NOT NULL, seq INTEGER NOT NULL, id TEXT NOT NULL, type TEXT NOT NULL, parent TEXT,
  time INTEGER NOT NULL, schema INTEGER NOT NULL, raw BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX events_by_seq ON events (run_id, seq);
CREATE UNIQUE INDEX events_by_id ON events (run_id, id);

CREATE TABLE calls (
  run_id TEXT NOT NULL, request_id TEXT NOT NULL, partition INTEGER NOT NULL,
  seq INTEGER NOT NULL, app TEXT NOT NULL, queue TEXT NOT NULL, call_json TEXT NOT NULL,
  name_json TEXT NOT NULL, key_json TEXT NOT NULL, args_digest TEXT NOT NULL,
  verify INTEGER NOT NULL, state TEXT NOT NULL, due_ms INTEGER NOT NULL, shelved INTEGER NOT NULL,
  attempt INTEGER NOT NULL, holder TEXT NOT NULL, nonce TEXT NOT NULL,
  lease_ttl_ms INTEGER NOT NULL, delivery TEXT NOT NULL, cap INTEGER NOT NULL,
  guarded INTEGER NOT NULL, verifies INTEGER NOT NULL, approval TEXT NOT NULL,
  approval_until_ms INTEGER NOT NULL, unknown INTEGER NOT NULL,
  PRIMARY KEY (run_id, request_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX calls_ready ON calls (partition, app, queue, due_ms, seq)
  WHERE state = 'ready' AND shelved = 0;
CREATE INDEX calls_ready_of ON calls (run_id) WHERE state = 'ready';
CREATE INDEX calls_leased ON calls (app, partition, due_ms) WHERE state IN ('leased', 'verifying');

CREATE TABLE owners (
  partition INTEGER NOT NULL, app TEXT NOT NULL, worker TEXT NOT NULL, term INTEGER NOT NULL,
  until_ms INTEGER NOT NULL, PRIMARY KEY (partition, app)
) STRICT, WITHOUT ROWID;

CREATE TABLE timers (
  run_id TEXT NOT NULL, set_id TEXT NOT NULL, partition INTEGER NOT NULL, app TEXT NOT NULL,
  name_json TEXT NOT NULL, due_ms INTEGER NOT NULL, PRIMARY KEY (run_id, set_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX timers_due ON timers (app, partition, due_ms, set_id);

CREATE TABLE offers (
  partition INTEGER NOT NULL, worker TEXT NOT NULL, nonce TEXT NOT NULL,
  got TEXT NOT NULL,         -- JSON: the (run, request) pairs
  PRIMARY KEY (partition, worker)
) STRICT, WITHOUT ROWID;

CREATE TABLE workers (
  worker TEXT PRIMARY KEY, apps TEXT NOT NULL, until_ms INTEGER NOT NULL, info BLOB NOT NULL
) STRICT, WITHOUT ROWID;
"""

#: One script a version, in order; a file goes through those that it has not seen.
MIGRATIONS: Final[Sequence[str]] = (_VERSION_1,)

#: The boot clock has begun again. Leases and ownerships of the older boot have ended; what was
#: ready keeps its order, before everything that becomes ready from now on.
_REBOOTED: Final = """
UPDATE calls SET due_ms = 0 WHERE state IN ('leased', 'verifying');
UPDATE calls SET due_ms = due_ms - 1 - (
  SELECT max(0, max(due_ms)) FROM calls WHERE state IN ('waiting', 'ready')
) WHERE state IN ('waiting', 'ready');
UPDATE owners SET until_ms = 0;
DELETE FROM workers;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What the file says of itself."""

    identity: str
    partitions: int
    schema: int


def connect(settings: Settings, *, busy_ms: int = BUSY_MS) -> apsw.Connection:
    """A connection with the pragmas that durability and speed rest on.

    Raises ``StoreMismatch`` for another program's database, before anything in it is touched.
    """
    connection = apsw.Connection(str(settings.path))
    try:
        connection.set_busy_timeout(busy_ms)
        _check_ours(connection, settings)
        mode = _use_wal(connection, busy_ms)
        if mode != "wal":
            raise StoreUnavailable(
                f"store file {settings.path} cannot use a write-ahead log (journal mode {mode}); "
                "put it on a local disk"
            )
        connection.execute(f"PRAGMA synchronous = {settings.synchronous}")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        connection.execute("PRAGMA temp_store = memory")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_ours(connection: apsw.Connection, settings: Settings) -> None:
    tables = value(connection, "SELECT count(*) FROM sqlite_schema")
    if tables and value(connection, "PRAGMA application_id") != APPLICATION_ID:
        raise StoreMismatch(
            f"store file {settings.path} is an SQLite database of another program; name another"
        )


def _use_wal(connection: apsw.Connection, busy_ms: int) -> str:
    """Switch the journal. SQLite does not wait here for others who do the same: we do."""
    pause = Event()
    for left_ms in range(busy_ms, -1, -_PAUSE_MS):
        try:
            return str(value(connection, "PRAGMA journal_mode = WAL"))
        except apsw.BusyError:
            if left_ms < _PAUSE_MS:
                raise
            pause.wait(_PAUSE_MS / 1000)
    raise AssertionError("the last try returns or raises")


def prepare(
    connection: apsw.Connection, settings: Settings, *, clock: Clock, boot_id: str
) -> Layout:
    """Make or migrate the layout and note the boot, in one transaction.

    Raises ``StoreTooNew`` or ``StoreMismatch``.
    """
    with Immediate(connection):
        meta = _meta(connection)
        version = int(meta.get("schema", 0))
        if int(meta.get("min_reader", 0)) > SCHEMA_VERSION:
            raise StoreTooNew(
                f"store file {settings.path} has schema {version}, and this version of AAA reads "
                f"up to {SCHEMA_VERSION}; use a newer version of AAA"
            )
        for script in MIGRATIONS[version:]:
            connection.execute(script)
        if not meta:
            meta = {
                "identity": clock.token(),
                "partitions": settings.partitions or DEFAULT_PARTITIONS,
                "hash": HASH,
            }
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        _check(meta, settings)
        if meta.get("boot", boot_id) != boot_id:
            connection.execute(_REBOOTED)
        if version < SCHEMA_VERSION:
            meta |= {"schema": SCHEMA_VERSION, "min_reader": MIN_READER}
        meta["boot"] = boot_id
        connection.executemany(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
            list(meta.items()),
        )
    return Layout(
        identity=meta["identity"], partitions=meta["partitions"], schema=int(meta["schema"])
    )


def warnings(settings: Settings) -> tuple[str, ...]:
    """Settings that lose acknowledged writes, a sentence each."""
    if settings.synchronous == "off":
        text = (
            "synchronous=OFF: a crash of the machine can lose acknowledged writes and damage the "
            "store file; use synchronous=full."
        )
        return (text,)
    if settings.synchronous == "normal":
        text = (
            "synchronous=NORMAL: a crash of the machine can lose the last acknowledged writes; "
            "use synchronous=full."
        )
        return (text,)
    return ()


def boot_id() -> str:
    """A name of this boot of the machine, the same for all its processes."""
    if sys.platform == "linux":
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    import subprocess

    answer = subprocess.run(
        ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"],
        capture_output=True,
        check=False,
        timeout=2,
    )
    return answer.stdout.decode(errors="replace").strip() or "unknown"


def value(connection: apsw.Connection, sql: str, *bindings: Any) -> Any:
    """The first column of the first row, or ``None``."""
    row = connection.execute(sql, bindings).fetchone()
    return None if row is None else row[0]


def rows(connection: apsw.Connection, sql: str, *bindings: Any) -> list[tuple[Any, ...]]:
    """All rows."""
    return connection.execute(sql, bindings).fetchall()


class Immediate:
    """``BEGIN IMMEDIATE`` … ``COMMIT``, or ``ROLLBACK`` when anything is raised inside."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._connection.execute("COMMIT")
        finally:
            # SQLite itself rolls back after some errors; a COMMIT may fail and leave it open.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


def _meta(connection: apsw.Connection) -> dict[str, Any]:
    if not value(connection, "SELECT count(*) FROM sqlite_schema"):
        return {}
    return dict(rows(connection, "SELECT key, value FROM meta"))


def _check(meta: dict[str, Any], settings: Settings) -> None:
    if meta["hash"] != HASH:
        raise StoreMismatch(
            f"store file {settings.path} spreads runs by {meta['hash']}, this version by {HASH}"
        )
    if settings.partitions not in (None, meta["partitions"]):
        raise StoreMismatch(
            f"store file {settings.path} has {meta['partitions']} partitions and "
            f"{settings.partitions} were asked for; leave the number out, or name another file"
        )
