"""The heartbeat's own connection: renews while the event loop is blocked."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from threading import Lock

import apsw

from aaa.clock import Clock
from aaa.store import renewal
from aaa.store.port import Beat, Pulse
from aaa.store.renewal import PartitionBeat
from aaa.store.sqlite_errors import translating
from aaa.store.sqlite_rows import SQLiteRows
from aaa.store.sqlite_schema import Immediate, connect, rows
from aaa.store.sqlite_url import Settings

_LEASED = "app = ? AND state IN ('leased', 'verifying') "
#: Each names the partitions that wait for a visit: unfolded, ready, lost, due.
_HOT = (
    "SELECT DISTINCT partition FROM runs WHERE app = ? AND dirty > 0",
    "SELECT DISTINCT partition FROM calls WHERE app = ? AND state = 'ready' AND shelved = 0",
)
_HOT_LOST = f"SELECT DISTINCT partition FROM calls WHERE {_LEASED} AND due_ms <= ?"  # noqa: S608
_HOT_TIMERS = "SELECT DISTINCT partition FROM timers WHERE app = ? AND due_ms <= ?"
_NEXT = (
    f"SELECT partition, min(due_ms) FROM calls WHERE {_LEASED} AND due_ms > ? "  # noqa: S608
    "GROUP BY partition"
)


class SQLiteRenewer:
    """A blocking :class:`aaa.store.port.Renewer`. Connects on first use, in any one thread."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._connection: apsw.Connection | None = None
        self._lock = Lock()

    def pulse(self, pulse: Pulse) -> Beat:
        with self._lock, translating(self._settings.path):
            connection = self._connected()
            with Immediate(connection):
                self._register(connection, pulse)
                beats = {
                    number: self._renew(connection, pulse, number)
                    for number in sorted({*pulse.owned, *pulse.calls})
                }
            # Where to look next is a hint: read outside the transaction that others wait for.
            for app in pulse.apps:
                self._look(connection, app, beats)
            return renewal.merge(beats, self._workers(connection, pulse.apps))

    def leave(self, worker: str) -> None:
        with self._lock, translating(self._settings.path):
            connection = self._connected()
            with Immediate(connection):
                connection.execute("DELETE FROM workers WHERE worker = ?", (worker,))

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _connected(self) -> apsw.Connection:
        if self._connection is None:
            self._connection = connect(self._settings)
        return self._connection

    def _register(self, connection: apsw.Connection, pulse: Pulse) -> None:
        now = self._now_ms()
        connection.execute("DELETE FROM workers WHERE until_ms <= ?", (now,))
        connection.execute(
            "INSERT INTO workers VALUES (?, ?, ?, ?) ON CONFLICT (worker) DO UPDATE SET "
            "apps = excluded.apps, until_ms = excluded.until_ms, info = coalesce(?5, info)",
            (
                pulse.worker,
                json.dumps(pulse.apps),
                now + pulse.ttl_ms,
                b"{}" if pulse.info is None else pulse.info,
                pulse.info,
            ),
        )

    def _renew(self, connection: apsw.Connection, pulse: Pulse, partition: int) -> PartitionBeat:
        held = SQLiteRows(connection, partition, self._clock)
        beat = renewal.renew(held, replace(pulse, apps=()), partition)
        held.end()
        return beat

    def _look(self, connection: apsw.Connection, app: str, beats: dict[int, PartitionBeat]) -> None:
        now = self._now_ms()
        hot: set[int] = set()
        for sql in _HOT:
            hot.update(number for (number,) in rows(connection, sql, app))
        hot.update(number for (number,) in rows(connection, _HOT_LOST, app, now))
        wall = self._clock.now_ms()
        hot.update(number for (number,) in rows(connection, _HOT_TIMERS, app, wall))
        for partition in hot:
            beats.setdefault(partition, PartitionBeat()).hot = True
        for partition, due in rows(connection, _NEXT, app, now):
            beat = beats.setdefault(partition, PartitionBeat())
            known = beat.next_expiry_ms
            beat.next_expiry_ms = due - now if known is None else min(known, due - now)

    def _workers(
        self, connection: apsw.Connection, apps: Iterable[str]
    ) -> dict[str, tuple[str, ...]]:
        live = rows(
            connection,
            "SELECT worker, apps FROM workers WHERE until_ms > ? ORDER BY worker",
            self._now_ms(),
        )
        serves = [(worker, set(json.loads(text))) for worker, text in live]
        return {app: tuple(worker for worker, of in serves if app in of) for app in apps}

    def _now_ms(self) -> int:
        return int(self._clock.boot_s() * 1000)
