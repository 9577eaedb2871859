"""The rows of one partition in SQLite, as :mod:`aaa.store.logic` wants them.

What was read once is not read again, and what was changed is written when the operation ends
(:meth:`SQLiteRows.end`) or when a query needs it. An operation that raises before its first write
has touched nothing; one that has written before its end is undone to a savepoint. Runs and calls
may be remembered from one transaction to the next while nobody else has written to the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Final

import apsw

from aaa.clock import Clock
from aaa.errors import StoreTooNew
from aaa.events import SCHEMA, Event
from aaa.store.guard import Call, State
from aaa.store.rows import Meta, Owner, Run, Timer
from aaa.store.sqlite_schema import rows

RUN_COLUMNS: Final = (
    "run_id, app, digest, status, seq, last_id, cursor, dirty, cancelling, suspended, parked, "
    "awaiting, unknown, created_ms, closed_ms, deleted"
)
_RUN_CHANGES: Final = (
    "status, seq, last_id, cursor, dirty, cancelling, suspended, parked, awaiting, unknown, "
    "closed_ms, deleted"
)
_CALL_COLUMNS: Final = (
    "run_id, request_id, seq, app, queue, call_json, name_json, key_json, args_digest, verify, "
    "state, due_ms, shelved, attempt, holder, nonce, lease_ttl_ms, delivery, cap, guarded, "
    "verifies, approval, approval_until_ms, unknown"
)
_CALL_CHANGES: Final = (
    "queue, state, due_ms, shelved, attempt, holder, nonce, lease_ttl_ms, delivery, cap, guarded, "
    "verifies, approval, approval_until_ms, unknown"
)
EVENT_COLUMNS: Final = "run_id, seq, id, type, parent, time, schema, raw"
#: More than one commit can ever make dirty: keeps the order of runs across commits.
_ORDERS_A_MARK: Final = 1 << 20
#: How many runs, and how many calls, of a partition are remembered between transactions.
_REMEMBERED: Final = 64


def _upsert(table: str, columns: str, changes: str, key: str) -> str:
    places = ", ".join("?" for _ in range(columns.count(",") + 2))
    sets = ", ".join(f"{name} = excluded.{name}" for name in changes.split(", "))
    return (
        f"INSERT INTO {table} (partition, {columns}) VALUES ({places}) "  # noqa: S608 - no input
        f"ON CONFLICT ({key}) DO UPDATE SET {sets}"
    )


_SAVE_RUN: Final = _upsert("runs", RUN_COLUMNS, _RUN_CHANGES, "run_id")
_SAVE_CALL: Final = _upsert("calls", _CALL_COLUMNS, _CALL_CHANGES, "run_id, request_id")
_RUN: Final = f"SELECT {RUN_COLUMNS} FROM runs "  # noqa: S608
_CALL: Final = f"SELECT {_CALL_COLUMNS} FROM calls "  # noqa: S608
_EVENT: Final = f"SELECT {EVENT_COLUMNS} FROM events "  # noqa: S608
_LEASED: Final = "app = ? AND partition = ? AND state IN ('leased', 'verifying') "

_run_values = attrgetter(*RUN_COLUMNS.split(", "))
_call_values = attrgetter(*_CALL_COLUMNS.split(", "))


def run_of(row: tuple[Any, ...]) -> Run:
    """A row of ``runs``, in the order of its columns here."""
    (run_id, app, digest, status, seq, last_id, cursor, dirty, *flags) = row
    cancelling, suspended, parked, awaiting, unknown, created_ms, closed_ms, deleted = flags
    return Run(
        run_id=run_id,
        app=app,
        digest=digest,
        status=status,
        seq=seq,
        last_id=last_id,
        cursor=cursor,
        dirty=dirty > 0,
        cancelling=bool(cancelling),
        suspended=bool(suspended),
        parked=bool(parked),
        awaiting=awaiting,
        unknown=unknown,
        created_ms=created_ms,
        closed_ms=closed_ms,
        deleted=bool(deleted),
    )


def event_of(row: tuple[Any, ...]) -> Event:
    """A row of ``events``. Raises :class:`StoreTooNew` for one that this code cannot read."""
    run_id, seq, id_, type_, parent, time, schema, raw = row
    if schema > SCHEMA:
        raise StoreTooNew(
            f"run {run_id}, event {seq}: written with event schema {schema}, and this version of "
            f"AAA reads up to {SCHEMA}; use a newer version of AAA"
        )
    return Event(id=id_, run_id=run_id, type=type_, raw=raw, parent=parent, seq=seq, time=time)


class SQLiteRows:
    """One partition inside one transaction of one connection."""

    def __init__(self, connection: apsw.Connection, partition: int, clock: Clock) -> None:
        self._connection, self._partition, self._clock = connection, partition, clock
        self._execute = connection.execute
        self._meta: Meta | None = None
        self._order = 0
        self._saved = False
        self.stirred = False
        self.forget()

    def forget(self) -> None:
        """Drop what is remembered of runs, calls and events."""
        self._runs: dict[str, Run | None] = {}
        self._dirty_at: dict[str, int] = {}
        self._calls: dict[tuple[str, str], Call | None] = {}
        self._events: dict[tuple[str, str], Event | None] = {}
        self._changed_runs: dict[str, Run] = {}
        self._changed_calls: dict[tuple[str, str], Call] = {}
        self._new_events: list[Event] = []

    def undo(self) -> None:
        """The operation has raised: nothing of it stays."""
        if self._saved:
            self._execute("ROLLBACK TO operation")
            self._execute("RELEASE operation")
            self._saved = False
        self.forget()

    def end(self) -> None:
        """The operation has succeeded: write what it changed. Only SQLite itself can fail here."""
        self._write()
        if self._saved:
            self._execute("RELEASE operation")
            self._saved = False

    def flush(self) -> None:
        """Write what has changed so far, so that a query sees it."""
        if self._new_events or self._changed_runs or self._changed_calls:
            self._save()
            self._write()

    def _save(self) -> None:
        """Before the first write in the middle of an operation: what it would be undone to."""
        if not self._saved:
            self._execute("SAVEPOINT operation")
            self._saved = True

    def _write(self) -> None:
        if self._new_events:
            self._connection.executemany(
                f"INSERT INTO events ({EVENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                [
                    (e.run_id, e.seq, e.id, e.type, e.parent, e.time, SCHEMA, e.raw)
                    for e in self._new_events
                ],
            )
            self._new_events.clear()
        for run in self._changed_runs.values():
            self._write_run(run)
        self._changed_runs.clear()
        for call in self._changed_calls.values():
            self._execute(_SAVE_CALL, (self._partition, *_call_values(call)))
        self._changed_calls.clear()

    def finish(self) -> None:
        """Write the partition's mark: once a transaction, after the last operation."""
        meta = self.meta()
        self._execute(
            "INSERT INTO partitions VALUES (?, ?, ?, ?) ON CONFLICT (number) DO UPDATE SET "
            "mark = excluded.mark, behind = excluded.behind, stirs = stirs + excluded.stirs",
            (self._partition, meta.mark, meta.behind, int(self.stirred)),
        )
        self.stirred = False
        if len(self._runs) > _REMEMBERED or len(self._calls) > _REMEMBERED:
            self.forget()
        self._events.clear()

    def now_ms(self) -> int:
        return int(self._clock.boot_s() * 1000)

    def wall_ms(self) -> int:
        return self._clock.now_ms()

    def meta(self) -> Meta:
        if self._meta is None:
            row = self._execute(
                "SELECT mark, behind FROM partitions WHERE number = ?", (self._partition,)
            ).fetchone()
            self._meta = Meta(*row) if row else Meta(0, 0)
        return self._meta

    def save_meta(self, meta: Meta) -> None:
        self._meta = meta

    def run(self, run_id: str) -> Run | None:
        if run_id not in self._runs:
            row = self._execute(_RUN + "WHERE run_id = ?", (run_id,)).fetchone()
            if row is None:
                self._runs[run_id] = None
            else:
                self._keep_run(row)
        return self._runs[run_id]

    def _keep_run(self, row: tuple[Any, ...]) -> Run:
        """The run of a row: the one that is known already, if it is."""
        known = self._runs.get(row[0])
        if known is None:
            known = self._runs[row[0]] = run_of(row)
            self._dirty_at[row[0]] = row[7]
        return known

    def save_run(self, run: Run) -> None:
        self._runs[run.run_id] = self._changed_runs[run.run_id] = run
        if not run.dirty or run.status != "open":
            self._dirty_at[run.run_id] = 0
        elif not self._dirty_at.get(run.run_id):
            self._order += 1
            self._dirty_at[run.run_id] = self.meta().mark * _ORDERS_A_MARK + self._order

    def _write_run(self, run: Run) -> None:
        values = list(_run_values(run))
        values[7] = self._dirty_at[run.run_id]
        self._execute(_SAVE_RUN, (self._partition, *values))

    def erase_run(self, run: Run) -> None:
        self._save()
        self._write()
        for table in ("events", "calls", "timers"):
            self._execute(f"DELETE FROM {table} WHERE run_id = ?", (run.run_id,))  # noqa: S608
        self._calls = {key: call for key, call in self._calls.items() if key[0] != run.run_id}
        self._events = {key: event for key, event in self._events.items() if key[0] != run.run_id}

    def dirty(self, app: str, limit: int) -> list[Run]:
        self.flush()
        found = self._execute(
            _RUN + "WHERE app = ? AND partition = ? AND dirty > 0 ORDER BY dirty LIMIT ?",
            (app, self._partition, limit),
        ).fetchall()
        return [self._keep_run(row) for row in found]

    def event(self, run_id: str, event_id: str) -> Event | None:
        key = (run_id, event_id)
        if key not in self._events:
            row = self._execute(_EVENT + "WHERE run_id = ? AND id = ?", key).fetchone()
            self._events[key] = None if row is None else event_of(row)
        return self._events[key]

    def add_event(self, event: Event) -> None:
        self._events[event.run_id, event.id] = event
        self._new_events.append(event)

    def call(self, run_id: str, request_id: str) -> Call | None:
        key = (run_id, request_id)
        if key not in self._calls:
            row = self._execute(_CALL + "WHERE run_id = ? AND request_id = ?", key).fetchone()
            self._calls[key] = None if row is None else _call_of(row)
        return self._calls[key]

    def save_call(self, call: Call) -> None:
        key = (call.run_id, call.request_id)
        self._calls[key] = self._changed_calls[key] = call

    def _found(self, where: str, *bindings: Any) -> list[Call]:
        self.flush()
        found = []
        for row in rows(self._connection, _CALL + where, *bindings):
            key = (row[0], row[1])
            known = self._calls.get(key)
            if known is None:
                known = self._calls[key] = _call_of(row)
            found.append(known)
        return found

    def ready_of(self, run_id: str) -> list[Call]:
        return self._found("WHERE run_id = ? AND state = 'ready' ORDER BY seq", run_id)

    def open_calls_of(self, run_id: str) -> list[Call]:
        return self._found("WHERE run_id = ? AND state <> 'settled' ORDER BY seq", run_id)

    def ready(self, app: str, queue: str, limit: int) -> list[Call]:
        return self._found(
            "WHERE app = ? AND partition = ? AND queue = ? AND state = 'ready' AND shelved = 0 "
            "ORDER BY due_ms, seq, run_id, request_id LIMIT ?",
            app,
            self._partition,
            queue,
            limit,
        )

    def hot(self) -> bool:
        """Whether unfolded runs or ready calls are left, of any app."""
        sql = (
            "SELECT EXISTS (SELECT 1 FROM runs WHERE partition = ?1 AND dirty > 0) OR EXISTS "
            "(SELECT 1 FROM calls WHERE partition = ?1 AND state = 'ready' AND shelved = 0)"
        )
        return bool(self._execute(sql, (self._partition,)).get)

    def any_ready(self, app: str) -> bool:
        return bool(
            self._found(
                "WHERE app = ? AND partition = ? AND state = 'ready' AND shelved = 0 LIMIT 1",
                app,
                self._partition,
            )
        )

    def expired(self, app: str, limit: int) -> list[Call]:
        return self._found(
            f"WHERE {_LEASED} AND due_ms <= ? ORDER BY due_ms, run_id, request_id LIMIT ?",
            app,
            self._partition,
            self.now_ms(),
            limit,
        )

    def next_expiry(self, app: str) -> int | None:
        self.flush()
        row = self._execute(
            f"SELECT due_ms FROM calls WHERE {_LEASED} AND due_ms > ? "  # noqa: S608
            "ORDER BY due_ms LIMIT 1",
            (app, self._partition, self.now_ms()),
        ).fetchone()
        return row[0] if row else None

    def open_calls(self) -> Iterable[Call]:
        # Reads the whole table: once, when a person has accepted a loss.
        return self._found(
            "WHERE partition = ? AND state <> 'settled' ORDER BY run_id, seq",
            self._partition,
        )

    def owner(self, app: str) -> Owner | None:
        row = self._execute(
            "SELECT worker, term, until_ms FROM owners WHERE partition = ? AND app = ?",
            (self._partition, app),
        ).fetchone()
        return Owner(*row) if row else None

    def save_owner(self, app: str, owner: Owner) -> None:
        self._save()
        self._execute(
            "INSERT INTO owners VALUES (?, ?, ?, ?, ?) ON CONFLICT (partition, app) DO UPDATE SET "
            "worker = excluded.worker, term = excluded.term, until_ms = excluded.until_ms",
            (self._partition, app, owner.worker, owner.term, owner.until_ms),
        )

    def add_timer(self, timer: Timer) -> None:
        self._save()
        self._execute(
            "INSERT INTO timers VALUES (?, ?, ?, ?, ?, ?)",
            (
                timer.run_id,
                timer.set_id,
                self._partition,
                timer.app,
                timer.name_json,
                timer.due_ms,
            ),
        )

    def due_timers(self, app: str, limit: int) -> list[Timer]:
        found = rows(
            self._connection,
            "SELECT set_id, run_id, app, name_json, due_ms FROM timers "
            "WHERE app = ? AND partition = ? AND due_ms <= ? ORDER BY due_ms, set_id LIMIT ?",
            app,
            self._partition,
            self.wall_ms(),
            limit,
        )
        return [Timer(*row) for row in found]

    def drop_timer(self, timer: Timer) -> None:
        self._save()
        self._execute(
            "DELETE FROM timers WHERE run_id = ? AND set_id = ?", (timer.run_id, timer.set_id)
        )

    def next_timer(self, app: str) -> int | None:
        row = self._execute(
            "SELECT due_ms FROM timers WHERE app = ? AND partition = ? ORDER BY due_ms LIMIT 1",
            (app, self._partition),
        ).fetchone()
        return row[0] if row else None

    def last_offer(self, worker: str) -> tuple[str, list[tuple[str, str]]] | None:
        row = self._execute(
            "SELECT nonce, got FROM offers WHERE partition = ? AND worker = ?",
            (self._partition, worker),
        ).fetchone()
        return None if row is None else (row[0], [(run, call) for run, call in json.loads(row[1])])

    def save_offer(self, worker: str, nonce: str, got: list[tuple[str, str]]) -> None:
        self._save()
        self._execute(
            "INSERT INTO offers VALUES (?, ?, ?, ?) ON CONFLICT (partition, worker) DO UPDATE SET "
            "nonce = excluded.nonce, got = excluded.got",
            (self._partition, worker, nonce, json.dumps(got)),
        )


def _call_of(row: tuple[Any, ...]) -> Call:
    call = Call(**dict(zip(_CALL_NAMES, row, strict=True)))
    call.state = State(call.state)
    call.verify, call.shelved = bool(call.verify), bool(call.shelved)
    call.guarded, call.unknown = bool(call.guarded), bool(call.unknown)
    return call


_CALL_NAMES: Final = tuple(_CALL_COLUMNS.split(", "))
