"""A keyed queue: what is to be looked at, once however often it was asked for, and when again.

A key that is asked for while it is being looked at is looked at once more afterwards. A failure
brings the key back after a back-off that doubles, up to a limit; success resets it. Only one look
at a key runs at a time; different keys run side by side, up to a limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

log = logging.getLogger("aaa.operator")


@dataclass(frozen=True, slots=True)
class Again:
    """Look again: after so many seconds, or after the back-off if it ``failed``."""

    in_s: float | None = None
    failed: bool = False


Look = Callable[[str], Awaitable[Again]]


class KeyedQueue:
    """Runs ``look`` for keys. ``retry_s`` is the first back-off, ``retry_max_s`` the longest."""

    def __init__(self, look: Look, *, retry_s: float, retry_max_s: float, at_once: int = 4) -> None:
        self._look = look
        self._retry_s, self._retry_max_s = retry_s, retry_max_s
        self._room = asyncio.Semaphore(at_once)
        self._dirty: set[str] = set()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, int] = {}
        self._closed = False

    def ask(self, key: str) -> None:
        """Look at ``key`` soon; asking again before that changes nothing."""
        if self._closed:
            return
        self._dirty.add(key)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key not in self._running:
            self._running[key] = asyncio.ensure_future(self._run(key))

    def ask_in(self, key: str, seconds: float) -> None:
        """Look at ``key`` in so many seconds at the latest."""
        if self._closed or key in self._dirty:
            return
        loop = asyncio.get_running_loop()
        due, known = loop.time() + seconds, self._timers.get(key)
        if known is not None and known.when() <= due:
            return
        if known is not None:
            known.cancel()
        self._timers[key] = loop.call_later(seconds, self.ask, key)

    @property
    def depth(self) -> int:
        """Keys that are looked at, or wait for it."""
        return len(self._dirty | self._running.keys())

    def failures(self, key: str) -> int:
        """How often looking at ``key`` has failed since it last succeeded."""
        return self._failures.get(key, 0)

    async def close(self) -> None:
        """Ask no more; looks that run are ended."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _run(self, key: str) -> None:
        try:
            while key in self._dirty and not self._closed:
                self._dirty.discard(key)
                async with self._room:
                    again = await self._once(key)
                self._after(key, again)
        finally:
            self._running.pop(key, None)
        if key in self._dirty:
            self.ask(key)

    async def _once(self, key: str) -> Again:
        try:
            return await self._look(key)
        except Exception:  # a defect must not end the watch over everything else
            log.exception("looking at %s failed", key)
            return Again(failed=True)

    def _after(self, key: str, again: Again) -> None:
        if again.failed:
            count = self._failures[key] = self._failures.get(key, 0) + 1
            delay = min(self._retry_max_s, self._retry_s * 2 ** min(count - 1, 30))
            self._timer(key, max(delay, again.in_s or 0.0))
            self._dirty.discard(key)
            return
        self._failures.pop(key, None)
        if again.in_s is not None:
            self._timer(key, again.in_s)

    def _timer(self, key: str, seconds: float) -> None:
        known = self._timers.pop(key, None)
        if known is not None:
            known.cancel()
        self._timers[key] = asyncio.get_running_loop().call_later(seconds, self.ask, key)
