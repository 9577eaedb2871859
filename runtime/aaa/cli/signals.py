"""Ctrl-C and SIGTERM: the first asks to drain, the second ends the process at once."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
from collections.abc import Callable

from aaa.cli import exits


class Interrupts:
    """Listens while its block runs. ``asked`` is set by the first signal."""

    def __init__(self, *, on_first: Callable[[str], None], on_second: Callable[[], None]) -> None:
        self.asked = asyncio.Event()
        self._on_first, self._on_second = on_first, on_second

    def __enter__(self) -> Interrupts:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._heard, number)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    def _heard(self, number: signal.Signals) -> None:
        if self.asked.is_set():
            self._on_second()
            leave(exits.INTERRUPTED)
        self.asked.set()
        self._on_first("Ctrl-C" if number == signal.SIGINT else "SIGTERM")


def leave_at_once() -> None:
    """Until :class:`Interrupts` listens, SIGTERM ends the process: nothing has begun.

    As a container's first process it would otherwise be deaf until then: the kernel delivers to
    process 1 only what it handles.
    """
    signal.signal(signal.SIGTERM, lambda *_: leave(exits.DONE))


def leave(code: int) -> None:
    """End now, whatever threads are still at work; leases run out by themselves."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # nobody reads it any more
            continue
    os._exit(code)


def blocked(_lag_s: float) -> None:
    """The event loop hangs: say where, and end so that another worker takes over (G12)."""
    faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
    os._exit(exits.BROKEN)
