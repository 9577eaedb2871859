"""The seams for time and randomness. Nothing else in the product asks the machine for either.

Three clocks are kept apart because each answers another question:

- ``now_ms``: the wall clock, to stamp events and as the clock of stores without a server. It may
  jump; no lease is ever judged by it where a store has a clock of its own.
- ``boot_s``: seconds that go on while the machine sleeps (``CLOCK_BOOTTIME``). A worker's trust in
  its own leases is counted on it (G10): a laptop that slept must not believe that it still holds one.
- the event loop's own clock, through ``sleep``, for waiting.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from typing import Protocol


class Clock(Protocol):
    """What the engine needs of time and chance; the simulator supplies a seeded one."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def boot_s(self) -> float:
        """Seconds on a clock that never jumps and runs while the machine sleeps."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait on the event loop."""
        ...

    def token(self) -> str:
        """A fresh random name: 16 hex digits."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    if sys.platform == "linux":

        def boot_s(self) -> float:
            return time.clock_gettime(time.CLOCK_BOOTTIME)

    else:  # macOS: monotonic runs through sleep there

        def boot_s(self) -> float:
            return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def token(self) -> str:
        return secrets.token_hex(8)


SYSTEM_CLOCK = SystemClock()
