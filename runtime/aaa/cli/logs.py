"""Where log records go: beside the display of ``aaa run``, or to stderr as lines or JSON.

A line has the time, the level, the logger and the message; JSON is the telemetry's own, with the
name of each event and its run and call ids.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

from aaa.cli.display import Display
from aaa.cli.text import clean
from aaa.telemetry.logs import JsonFormatter


def through(display: Display) -> None:
    """Warnings and worse as notes of a display."""
    _use(_Notes(display), level=logging.WARNING)


def to_stderr(*, form: str, level: int = logging.INFO) -> None:
    """A worker's log: ``plain`` or ``json``, a record a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else _Plain())
    _use(handler, level=level)


def _use(handler: logging.Handler, *, level: int) -> None:
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("aaa").setLevel(level)


class _Notes(logging.Handler):
    def __init__(self, display: Display) -> None:
        super().__init__()
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        self._display.note(f"{record.levelname.lower()}: {record.getMessage()}")


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = f"{_time(record)} {record.levelname} {record.name}: {record.getMessage()}"
        text = " ".join(clean(text).splitlines())
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
