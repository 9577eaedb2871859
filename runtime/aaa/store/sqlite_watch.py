"""Hints about what other processes (and the heartbeat) have written to the file.

SQLite cannot notify. ``PRAGMA data_version`` is a look at shared memory, a few microseconds, that
says whether anything was committed by another connection; only then the partitions' counters are
read. The counters rise only with commits that can make something ready, so that two idle workers
don't wake each other for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import apsw

from aaa.store.port import Wake
from aaa.store.sqlite_errors import translating
from aaa.store.sqlite_schema import connect, rows, value
from aaa.store.sqlite_url import Settings

#: How often the file is looked at.
POLL_S: Final = 0.025


class Watch:
    """Calls ``wake`` in the event loop that it was made in, until it is closed.

    ``own`` counts this store's commits by partition, which it tells of itself and at once.
    """

    def __init__(self, settings: Settings, wake: Wake, own: Mapping[int, int]) -> None:
        self._own = own
        with translating(settings.path):
            self._connection = connect(settings)
            self._connection.set_busy_timeout(0)  # from here on a look never waits
            self._version: int = value(self._connection, "PRAGMA data_version")
            self._stirs = self._read()
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(POLL_S, self._poll)

    def close(self) -> None:
        """Look no more."""
        self._timer.cancel()
        self._connection.close()

    def _poll(self) -> None:
        self._timer = self._loop.call_later(POLL_S, self._poll)
        try:
            version = value(self._connection, "PRAGMA data_version")
            if version == self._version:
                return
            stirs = self._read()
        except apsw.Error:
            return  # busy, or gone: a hint less; whoever writes or reads will be told
        before, self._stirs, self._version = self._stirs, stirs, version
        for partition, count in stirs.items():
            if before.get(partition) != count:
                self._wake(partition)

    def _read(self) -> dict[int, int]:
        found = rows(self._connection, "SELECT number, stirs FROM partitions")
        return {number: stirs - self._own.get(number, 0) for number, stirs in found}
