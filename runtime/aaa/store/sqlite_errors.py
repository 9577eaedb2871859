"""SQLite's errors as ours, in one place: one sentence that names the file and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from aaa.errors import AAAError, CorruptHistory, StoreMismatch, StoreUnavailable

_TEXTS: tuple[tuple[type[apsw.Error], type[AAAError], str], ...] = (
    (apsw.BusyError, StoreUnavailable, "is locked by another process; try again"),
    (apsw.LockedError, StoreUnavailable, "is locked by another connection; try again"),
    (apsw.FullError, StoreUnavailable, "cannot grow: the disk is full; free some space"),
    (apsw.ReadOnlyError, StoreUnavailable, "cannot be written; check its permissions"),
    (apsw.PermissionsError, StoreUnavailable, "cannot be written; check its permissions"),
    (apsw.CantOpenError, StoreUnavailable, "cannot be opened; check that the folder is writable"),
    (apsw.IOError, StoreUnavailable, "cannot be read or written by the disk"),
    (apsw.ConstraintError, StoreMismatch, "refuses a value; trying again would not help"),
    (apsw.MismatchError, StoreMismatch, "refuses a value; trying again would not help"),
    (apsw.TooBigError, StoreMismatch, "refuses a value that is too large"),
    (apsw.NotADBError, StoreMismatch, "is not an SQLite database; name another file"),
    (apsw.CorruptError, CorruptHistory, "is damaged; restore it from a backup"),
)


def translated(error: apsw.Error, path: str | Path) -> AAAError:
    """The error to raise instead."""
    for kind, ours, text in _TEXTS:
        if isinstance(error, kind):
            return ours(f"store file {path} {text} ({error})")
    return StoreUnavailable(f"store file {path} failed: {error}")


@contextmanager
def translating(path: str | Path) -> Iterator[None]:
    """Translate whatever SQLite raises inside."""
    try:
        yield
    except apsw.Error as error:
        raise translated(error, path) from error
