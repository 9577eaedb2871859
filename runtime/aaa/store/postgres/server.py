"""What the server is and promises: version, durability, and whether sessions are really ours.

Leases and wake-ups rest on database sessions. A pooler in transaction mode hands each statement to
any session, so a lock would be held by nobody in particular: that is noticed here and refused. In
session mode a pooler is fine.
"""

from __future__ import annotations

from dataclasses import dataclass

from aaa.errors import ConfigError, StoreUnavailable
from aaa.store.postgres.connect import Async
from aaa.store.postgres.faults import faults

OLDEST = 140_000

#: A session as the server knows it: process id and start. The id alone may repeat on another host.
Backend = tuple[int, object]


@dataclass(frozen=True, slots=True)
class Promises:
    """The server's version, and what its settings may lose: a sentence each."""

    version: str
    warnings: tuple[str, ...]


async def inspect(connection: Async) -> Promises:
    """Read the settings that durability rests on."""
    with faults():
        cursor = await connection.execute(
            "SELECT current_setting('server_version'), current_setting('server_version_num')::int,"
            " current_setting('server_encoding'), pg_is_in_recovery(),"
            " current_setting('fsync'), current_setting('full_page_writes'),"
            " current_setting('synchronous_commit')"
        )
        row = await cursor.fetchone()
    if row is None:
        raise StoreUnavailable("Postgres gave no answer about its settings")
    version, number, encoding, standby, fsync, full_page_writes, synchronous_commit = row
    if number < OLDEST:
        raise ConfigError(f"Postgres {version} is too old: AAA needs 14 or newer")
    if encoding != "UTF8":
        raise ConfigError(f"the database's encoding is {encoding}: AAA needs UTF8")
    if standby:
        raise StoreUnavailable(
            "Postgres is a read-only standby here: connect to the primary "
            "(target_session_attrs=read-write chooses it from a list of hosts)"
        )
    return Promises(f"PostgreSQL {version}", warnings(fsync, full_page_writes, synchronous_commit))


def warnings(fsync: str, full_page_writes: str, synchronous_commit: str) -> tuple[str, ...]:
    """What these settings can lose."""
    found = []
    if fsync == "off":
        found.append(
            "fsync=off: a crash of the machine can lose acknowledged writes and destroy the data."
        )
    if full_page_writes == "off":
        found.append(
            "full_page_writes=off: a crash of the machine can leave torn pages, unless the file "
            "system rules them out."
        )
    if synchronous_commit == "off":
        found.append(
            "synchronous_commit=off: a crash of the server loses the writes of its last moments, "
            "although they were acknowledged."
        )
    return tuple(found)


async def check_sessions(one: Async, other: Async) -> None:
    """Raise :class:`ConfigError` unless each connection has a server session to itself."""
    first = await _backend(one)
    second = await _backend(other)
    if shares_sessions(first, second, await _backend(one)):
        raise ConfigError(
            "between AAA and Postgres stands a pooler in transaction mode, which breaks leases: "
            "set it to session mode or connect directly"
        )


def shares_sessions(first: Backend, second: Backend, first_again: Backend) -> bool:
    """Whether two connections that were open at once show that neither has its own session."""
    return first == second or first != first_again


async def _backend(connection: Async) -> Backend:
    with faults():
        cursor = await connection.execute(
            "SELECT pid, backend_start FROM pg_stat_get_activity(pg_backend_pid())"
        )
        row = await cursor.fetchone()
    if row is None:
        raise StoreUnavailable("Postgres does not show the session's own process")
    return row[0], row[1]
