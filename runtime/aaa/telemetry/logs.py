"""Log records that a machine can read: each has a stable event name and the ids that it is about.

``tell`` is the one way in which the runtime logs. ``JsonFormatter`` writes one JSON object a line;
whatever stands in a message, it stays one line, and nothing in it can move a terminal's cursor.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

from aaa.telemetry.names import LogEvent

#: The attribute of a record that holds its event name and fields.
FIELDS: Final = "aaa_fields"


def tell(
    log: logging.Logger,
    event: LogEvent,
    message: str,
    *args: object,
    exc_info: bool = False,
    **fields: object,
) -> None:
    """Log ``message % args`` as ``event``, with the fields that the registry names for it."""
    if not log.isEnabledFor(event.level):
        return
    known = {name: value for name, value in fields.items() if value is not None}
    extra = {"event": event.name, **known, FIELDS: {"event": event.name, **known}}
    log.log(event.level, message, *args, exc_info=exc_info, extra=extra, stacklevel=2)


class JsonFormatter(logging.Formatter):
    """One record, one line of JSON: ``time``, ``level``, ``logger``, ``event``, ``message``, fields.

    ``fixed`` fields are added to every record, such as ``worker="w1"``; a record's own win. Where
    a span is current, ``trace_id`` and ``span_id`` are added.
    """

    def __init__(self, **fixed: object) -> None:
        super().__init__()
        self._fixed = fixed

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": "log",
            "message": record.getMessage(),
            **self._fixed,
            **getattr(record, FIELDS, {}),
            **_current_span(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # ASCII only: every control character and lone surrogate is escaped.
        return json.dumps(line, ensure_ascii=True, default=str, separators=(",", ":"))


def _current_span() -> dict[str, str]:
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return {}
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
