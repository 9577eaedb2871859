"""Where log records go: beside the display of ``aaa run``, or to stderr as lines or JSON.

A line has the time, the level, the logger and the message; JSON has in addition whatever ids the
record carries (``run_id``, ``call_id``, ``worker``, …).
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from aaa.cli.display import Display
from aaa.cli.text import clean

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "aaa_fields",
}


def through(display: Display) -> None:
    """Warnings and worse as notes of a display."""
    _use(_Notes(display), level=logging.WARNING)


def to_stderr(*, form: str, level: int = logging.INFO) -> None:
    """A worker's log: ``plain`` or ``json``, a record a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Plain())
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


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        told |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
