"""Stores: one port, four backends, one atomic boundary each.

``open_store(url)`` picks the backend: ``memory:``, ``sqlite:///file.db``, ``redis://…``,
``rediss://…``, ``redis+sentinel://…``, ``redis+cluster://…``, ``postgresql://…``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from aaa.errors import ConfigError, extra_hint
from aaa.store.address import shown

if TYPE_CHECKING:
    from aaa.store.memory import MemoryEventStore as MemoryEventStore
    from aaa.store.port import EventStore as EventStore
    from aaa.store.postgres import PostgresEventStore as PostgresEventStore
    from aaa.store.redis import RedisEventStore as RedisEventStore
    from aaa.store.sqlite import SQLiteEventStore as SQLiteEventStore

# Loaded on first use, so that importing AAA loads no driver that isn't needed.
_BACKENDS = {
    "EventStore": "aaa.store.port",
    "MemoryEventStore": "aaa.store.memory",
    "SQLiteEventStore": "aaa.store.sqlite",
    "PostgresEventStore": "aaa.store.postgres",
    "RedisEventStore": "aaa.store.redis",
}
_SCHEMES = {
    "memory": "MemoryEventStore",
    "sqlite": "SQLiteEventStore",
    "postgres": "PostgresEventStore",
    "postgresql": "PostgresEventStore",
    "redis": "RedisEventStore",
    "rediss": "RedisEventStore",
    "redis+cluster": "RedisEventStore",
    "rediss+cluster": "RedisEventStore",
    "redis+sentinel": "RedisEventStore",
    "rediss+sentinel": "RedisEventStore",
}
# Driver → the extra that brings it.
_EXTRAS = {"redis": "redis", "psycopg": "postgres"}

__all__ = [
    "EventStore",
    "MemoryEventStore",
    "PostgresEventStore",
    "RedisEventStore",
    "SQLiteEventStore",
    "open_store",
]


#: How the names of SQLite's files end by custom.
_FILES: Final = (".db", ".sqlite", ".sqlite3")


def __getattr__(name: str) -> Any:
    if name in _BACKENDS:
        from importlib import import_module

        return getattr(import_module(_BACKENDS[name]), name)
    raise AttributeError(f"module 'aaa.store' has no attribute {name!r}")


def open_store(url: str, *, latest: Callable[[], str] | None = None) -> EventStore:
    """The store that a URL names, not yet opened.

    Where the URL can change while the store is open, because a password is rotated, ``latest`` gives
    it as it is now; servers are logged in to with the user and password that it has then.
    Raises :class:`ConfigError` for a bad URL, and for one whose driver is not installed.
    """
    scheme = url.split(":", 1)[0].lower()
    if ":" not in url or scheme not in _SCHEMES:
        known = ", ".join(f"{name}:" for name in _SCHEMES)
        file = ":" not in url and url.endswith(_FILES)
        hint = f"; for a file write sqlite:///{url}" if file else ""
        raise ConfigError(f"store URL {shown(url)!r} does not begin with one of {known}{hint}")
    try:
        backend = __getattr__(_SCHEMES[scheme])
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise ConfigError(f"{scheme}:// needs {extra_hint(extra)}") from error
    if scheme == "memory":
        return backend()  # type: ignore[no-any-return]
    if scheme == "sqlite":
        return backend.from_url(url)  # type: ignore[no-any-return]
    return backend.from_url(url, latest=latest)  # type: ignore[no-any-return]
