"""Where log records go: beside the display of ``aaa run``, or to stderr as lines or JSON.

A line has the time, the level, the logger and the message; JSON is the telemetry's own, with the
name of each event and its run and call ids.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Final

from aaa.cli import tracebacks
from aaa.cli.display import Display
from aaa.cli.text import clean
from aaa.telemetry import names
from aaa.telemetry.logs import JsonFormatter

#: What an outage says again and again, for each partition and each try.
_REPEATED: Final = frozenset(
    event.name
    for event in (
        names.LOG_STORE_UNAVAILABLE,
        names.LOG_STORE_NOT_READ,
        names.LOG_NOT_WOKEN,
        names.LOG_RENEW_FAILED,
        names.LOG_VISIT_FAILED,
        names.LOG_TASK_FAILED,
    )
)
#: Lines of the timeline, which a display has anyway.
_SHOWN: Final = frozenset({names.LOG_CALL_UNKNOWN.name, names.LOG_TAKEN_OVER.name})
EVERY_S: Final = 10.0


def through(display: Display) -> None:
    """Warnings and worse as notes of a display, except for what it shows itself."""
    handler = _Notes(display)
    handler.addFilter(lambda record: getattr(record, "event", None) not in _SHOWN)
    _use(handler, level=logging.WARNING)


def to_stderr(*, form: str, level: int = logging.INFO) -> None:
    """A worker's log: ``plain`` or ``json``, a record a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else _Plain())
    _use(handler, level=level)


def _use(handler: logging.Handler, *, level: int) -> None:
    handler.addFilter(Rarely())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("aaa").setLevel(logging.DEBUG if tracebacks.wanted else level)


class Rarely(logging.Filter):
    """Of what an outage repeats, each event once in :data:`EVERY_S`, with the count in between."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}
        self._held: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        name = getattr(record, "event", None)
        if name not in _REPEATED or not isinstance(name, str):
            return True
        last = self._last.get(name)
        if last is not None and 0 <= record.created - last < EVERY_S:
            self._held[name] = self._held.get(name, 0) + 1
            return False
        self._last[name], held = record.created, self._held.pop(name, 0)
        if held:
            record.msg, record.args = f"{record.getMessage()} ({held} more since the last)", None
        return True


class _Notes(logging.Handler):
    def __init__(self, display: Display) -> None:
        super().__init__()
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        trace = record.exc_info and logging.Formatter().formatException(record.exc_info)
        more = f"\n{trace}" if trace else ""
        self._display.note(f"{record.levelname.lower()}: {record.getMessage()}{more}")


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = f"{_time(record)} {record.levelname} {record.name}: {record.getMessage()}"
        text = " ".join(clean(text).splitlines())
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
