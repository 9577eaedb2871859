"""The sessions that leases belong to, and the heartbeat that runs on them.

Each worker incarnation has one database session of its own, which holds one advisory lock. A call
or a partition is leased by a row that names the session; whoever can have the session's lock knows
that it is gone. So a dead worker's leases are free at once, and those of a frozen worker whose
connection stands are not free at all.

A session that ends is never taken up again: the worker's next one has another number, and what the
old one held is lost to it. The exception is a restart of the server, which ends every session and
says nothing about a worker: then leases last for their TTL since the last heartbeat, and the first
heartbeat in a new session takes them along.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson

from aaa.errors import StoreUnavailable
from aaa.store import port
from aaa.store.port import Beat, HeldCall, Pulse
from aaa.store.postgres.address import Address
from aaa.store.postgres.connect import Sync, connect_blocking, cut, cut_later_blocking
from aaa.store.postgres.faults import faults
from aaa.store.postgres.schema import Functions

T = TypeVar("T")


@dataclass(slots=True)
class _Session:
    """One worker's lease session, while it has one. ``lock`` is held while it is spoken on."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    connection: Sync | None = None
    number: int = 0


class LeaseBook:
    """The lease sessions of the workers of one store instance. Usable from any thread."""

    def __init__(self, address: Address, functions: Functions) -> None:
        self._address, self._functions = address, functions
        self._sessions: dict[str, _Session] = {}
        self._guard = threading.Lock()
        self._closed = False

    def known(self, worker: str) -> int | None:
        """The number of a worker's session, if it has one. Never waits."""
        session = self._sessions.get(worker)
        return session.number or None if session else None

    def session(self, worker: str) -> int:
        """The number of a worker's session, opened if need be. Blocks for a few round trips."""
        session = self._of(worker)
        with session.lock:
            self._open(worker, session)
            return session.number

    def drop(self, worker: str, number: int) -> None:
        """A session was found to have ended: the next use opens another."""
        session = self._of(worker)
        if session.number == number:
            session.number = 0
            if session.connection is not None:
                cut(session.connection)

    def speak(self, worker: str, say: Callable[[Sync, int], T]) -> T:
        """Say something on a worker's session. A session that proves dead is replaced once."""
        session = self._of(worker)
        with session.lock:
            fresh = self._open(worker, session)
            try:
                return self._say(session, say)
            except StoreUnavailable:
                if fresh:
                    raise
            self._open(worker, session)
            return self._say(session, say)

    def close(self) -> None:
        """End every session: all that the workers hold is free at once."""
        self._closed = True
        with self._guard:
            sessions = list(self._sessions.values())
        for session in sessions:
            if session.connection is not None:
                cut(session.connection)
            with session.lock:
                _close(session)

    def _of(self, worker: str) -> _Session:
        with self._guard:
            return self._sessions.setdefault(worker, _Session())

    def _open(self, worker: str, session: _Session) -> bool:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        if session.number and session.connection is not None and not session.connection.closed:
            return False
        _close(session)
        connection = connect_blocking(self._address)
        try:
            with faults(), cut_later_blocking(connection):
                call = self._functions.named("SELECT fn_open_session(%s)")
                row = connection.execute(call.encode(), (worker,)).fetchone()
            if row is None:
                raise StoreUnavailable("Postgres opened no lease session")
        except BaseException:
            connection.close()
            raise
        session.connection, session.number = connection, row[0]
        return True

    def _say(self, session: _Session, say: Callable[[Sync, int], T]) -> T:
        connection = session.connection
        if connection is None:
            raise AssertionError("opened just before")
        try:
            with faults(), cut_later_blocking(connection):
                return say(connection, session.number)
        except BaseException:
            # Whatever went wrong, an answer that is missing or late belongs to nobody.
            _close(session)
            raise


def _close(session: _Session) -> None:
    connection, session.connection, session.number = session.connection, None, 0
    if connection is not None:
        connection.close()


class PostgresRenewer:
    """An :class:`aaa.store.port.Renewer` that beats on the workers' lease sessions."""

    def __init__(self, book: LeaseBook, functions: Functions) -> None:
        self._book = book
        self._pulse = functions.named(
            "SELECT fn_pulse(%s, %s, %s::text[], %s, %s::jsonb, %s::jsonb, %b::bytea)"
        ).encode()

    def pulse(self, pulse: Pulse) -> Beat:
        """Renew in one round trip. Raises ``StoreUnavailable``; nothing is lost by that alone."""
        held = [(number, call) for number in sorted(pulse.calls) for call in pulse.calls[number]]
        owned = [(number, app) for number in sorted(pulse.owned) for app in pulse.owned[number]]
        shown = [(number, c.run_id, c.request_id, c.attempt) for number, c in held]

        def say(connection: Sync, number: int) -> dict[str, Any]:
            row = connection.execute(
                self._pulse,
                (
                    number,
                    pulse.worker,
                    list(pulse.apps),
                    pulse.ttl_ms,
                    orjson.dumps(owned).decode(),
                    orjson.dumps(shown).decode(),
                    pulse.info,
                ),
                prepare=True,
            ).fetchone()
            if row is None:
                raise StoreUnavailable("Postgres did not answer the heartbeat")
            return dict(row[0])

        return _beat(pulse, [call for _, call in held], self._book.speak(pulse.worker, say))

    def leave(self, worker: str) -> None:
        """Take the worker off the membership."""

        def say(connection: Sync, _: int) -> None:
            connection.execute("DELETE FROM workers WHERE worker = %s", (worker,))

        self._book.speak(worker, say)

    def close(self) -> None:
        """Nothing of its own: a lease session lasts until its store is closed."""


def _beat(pulse: Pulse, held: list[HeldCall], shown: dict[str, Any]) -> Beat:
    members = shown["members"]
    return port.Beat(
        lost_calls=tuple(held[place] for place in shown["lost"]),
        lost_owned=tuple((number, app) for number, app in shown["lost_owned"]),
        cancelled=tuple(held[place] for place in shown["cancelled"]),
        workers={
            app: tuple(sorted(name for name, apps in members if app in apps)) for app in pulse.apps
        },
        hot=frozenset(shown["hot"]),
        next_expiry_ms={int(number): ms for number, ms in shown["expiries"].items()},
    )
