"""A clock that moves only when it is told to."""

from __future__ import annotations

import asyncio
from itertools import count
from threading import Lock


class ManualClock:
    """An :class:`aaa.clock.Clock`. ``sleep`` yields once to the event loop and moves the time."""

    def __init__(self, *, now_ms: int = 1_750_000_000_000, boot_ms: int = 1_000_000) -> None:
        self._now_ms, self._boot_ms = now_ms, boot_ms
        self._tokens = count(1)
        self._lock = Lock()

    def now_ms(self) -> int:
        return self._now_ms

    def boot_s(self) -> float:
        # Half a millisecond more, so that multiplying by 1000 and truncating gives it back.
        return (self._boot_ms + 0.5) / 1000

    def advance(self, ms: int) -> None:
        """Both clocks go on by ``ms``."""
        with self._lock:
            self._now_ms += ms
            self._boot_ms += ms

    def reboot(self, *, down_ms: int) -> None:
        """The machine was off for ``down_ms``: the boot clock begins again near zero."""
        with self._lock:
            self._now_ms += down_ms
            self._boot_ms = 10

    async def sleep(self, seconds: float) -> None:
        self.advance(int(seconds * 1000))
        await asyncio.sleep(0)

    def token(self) -> str:
        with self._lock:
            return f"{next(self._tokens):016x}"
