"""Opening the store that a command works on: the default folder, a bound on waiting, no surprises.

Looking never creates a store: a mistyped path is an error and not an empty list.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from aaa.errors import AccessRefused, ConfigError, RunNotFound, StoreUnavailable, StoreUnsafe
from aaa.store.address import shown, without_passwords

if TYPE_CHECKING:
    from aaa.client import Client
    from aaa.store import EventStore
    from aaa.store.port import StoreInfo

FOLDER: Final = ".aaa"
DEFAULT_URL: Final = f"sqlite:///{FOLDER}/aaa.db"
#: How long opening may take until the store counts as one that cannot be reached.
OPEN_TIMEOUT_S: Final = 3.0
CLOSE_TIMEOUT_S: Final = 1.0
_CHECK: Final = "check --store or AAA_STORE, and that the server is up"


class UrlInFile(str):
    """A URL that stands in a file, where it may be another one later: a mounted Secret."""

    __slots__ = ("file",)
    file: Path

    def latest(self) -> str:
        """The URL as it is now. Raises ``OSError``."""
        return self.file.read_text(encoding="utf-8").strip()


def url_of(given: str | None) -> str:
    """The store's URL: the option, ``AAA_STORE``, in ``AAA_STORE_FILE``, or the folder's own."""
    file = os.environ.get("AAA_STORE_FILE")
    if given or not file:
        return given or DEFAULT_URL
    try:
        text = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"AAA_STORE_FILE names {file}, which cannot be read: {why}") from None
    if not text or len(text.split()) != 1:
        raise ConfigError(f"AAA_STORE_FILE names {file}, which must hold one store URL and no more")
    url = UrlInFile(text)
    url.file = Path(file)
    return url


def make(url: str) -> EventStore:
    """The store to work on, not yet opened; the default's folder is made and kept out of Git."""
    from aaa.store import open_store

    store = open_store(url, latest=url.latest if isinstance(url, UrlInFile) else None)
    file = _file_of(url)
    if file is not None and file.parent.name == FOLDER:
        file.parent.mkdir(parents=True, exist_ok=True)
        ignore = file.parent / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
    return store


async def bounded_open(store: EventStore, url: str, *, strict: bool = False) -> StoreInfo:
    """Open, or raise :class:`StoreUnavailable` in time; ``strict`` refuses unsafe settings."""
    try:
        info = await asyncio.wait_for(store.open(), OPEN_TIMEOUT_S)
    except TimeoutError:
        raise StoreUnavailable(
            f"the store {shown(url)} did not answer within {OPEN_TIMEOUT_S:g} s; {_CHECK}"
        ) from None
    except AccessRefused:
        raise
    except StoreUnavailable as error:
        raise StoreUnavailable(str(error) if _file_of(url) else f"{error}; {_CHECK}") from error
    if strict and info.warnings:
        raise StoreUnsafe(f"refused by --strict: {'; '.join(info.warnings)}")
    return info


@contextlib.asynccontextmanager
async def looking(given: str | None) -> AsyncIterator[Client]:
    """A client of a store that must be there already."""
    from aaa.client import Client

    url = url_of(given)
    file = _file_of(url)
    if file is not None and not file.exists():
        raise ConfigError(
            f"there is no store at {file}; begin with 'aaa run FILE.yaml', "
            "or say where it is with --store or AAA_STORE"
        )
    if url.lower().startswith("memory:"):
        raise ConfigError("a store in memory ends with its process; name another with --store")
    store = make(url)
    try:
        await bounded_open(store, url)
        yield Client(store)
    except RunNotFound as error:
        raise RunNotFound(
            f"{str(error).removesuffix(' in this store')} in the store {shown(url)}; "
            f"see 'aaa runs{tail(given)}'"
        ) from error
    finally:
        await bounded_close(store)


async def bounded_close(store: EventStore) -> None:
    """Close, but wait for no server that has gone."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(store.close(), CLOSE_TIMEOUT_S)


def tail(given: str | None) -> str:
    """What a command that is shown must end with to reach the same store.

    Nothing if that store is found anyway. A password is not shown, and then the command says that
    it is not whole; it never reaches another store.
    """
    if given is None or given == os.environ.get("AAA_STORE"):
        return ""
    hidden = masked(given)
    return f" --store {shlex.quote(hidden)}" + ("" if hidden == given else "  (your --store)")


def masked(url: str) -> str:
    """The URL with ``***`` for each password in it."""
    head, at, rest = url.rpartition("@")
    start, slashes, who = head.partition("://")
    user, colon, _ = who.partition(":")
    url = f"{start}{slashes}{user}{colon}***{at}{rest}" if at and colon else url
    return without_passwords(url)


def _file_of(url: str) -> Path | None:
    if not url.lower().startswith("sqlite:///"):
        return None
    return Path(unquote(url[len("sqlite:///") :].partition("?")[0]))
