"""What the driver raises, in AAA's words: the one place that knows Postgres' error codes.

The rest of the store raises and catches AAA's errors only. Messages never repeat a connection
string: it may hold a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from aaa.errors import AAAError, AccessRefused, ConfigError, StoreUnavailable, StoreWentBack

#: Another try may succeed at once: lost races that the server resolved against us.
RACES = frozenset({"40001", "40P01", "55P03"})

#: Codes or classes (two letters) of states that pass: connections, shutdown, resources, read-only.
_PASSING = frozenset({"08", "53", "57", "58", "40", "55", "25006"})
_DENIED = frozenset({"3D000"})
_GONE = frozenset({"42P01", "42883", "3F000", "42704"})

# When a connection is refused the driver has no code, only libpq's text.
_REFUSED_FOR_GOOD = re.compile(
    r"authentication failed|no password supplied|does not exist|no pg_hba\.conf entry"
    r"|not permitted to log in|certificate|SSL was required|does not support SSL"
    r"|unsupported startup parameter|permission denied"
)

_NOT_LET_IN = re.compile(
    r"authentication failed|no password supplied|role .* does not exist|not permitted to log in"
)


def translated(error: psycopg.Error) -> Exception:
    """The error as callers of a store know it; a programming error stays what it is."""
    code = error.sqlstate or ""
    said = _first_line(error)
    if code[:2] == "28" or (not code and _NOT_LET_IN.search(said)):
        return AccessRefused(f"Postgres refuses the connection: {said}")
    if _DENIED & {code, code[:2]} or (not code and _REFUSED_FOR_GOOD.search(said)):
        return ConfigError(f"Postgres refuses the connection: {said}")
    if code == "42501":
        return AccessRefused(
            f"the Postgres user lacks a right ({said}): it has to own the store's schema"
        )
    if code in _GONE:
        return StoreWentBack(
            f"the store's tables or functions are gone from Postgres ({said}): was the database "
            "restored or dropped? Restart once you know"
        )
    if _PASSING & {code, code[:2]} or isinstance(
        error, psycopg.OperationalError | psycopg.InterfaceError
    ):
        return StoreUnavailable(f"Postgres cannot be used now: {said}")
    return error


@contextmanager
def faults() -> Iterator[None]:
    """Translate what the driver raises inside."""
    try:
        yield
    except psycopg.Error as error:
        mended = translated(error)
        if isinstance(mended, AAAError):
            raise mended from None  # the driver's own chain may show the connection string
        raise


def _first_line(error: psycopg.Error) -> str:
    said = error.diag.message_primary or str(error).strip() or type(error).__name__
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    fatal = [line for line in lines if "FATAL" in line or "failed" in line]
    return (fatal or lines or [type(error).__name__])[0].rstrip(".")
