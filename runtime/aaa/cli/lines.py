"""One event as one plain line, for pipes, logs and ``aaa events``."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.text import Text

from aaa.cli.words import STYLES, Names, line_of
from aaa.events import Event

SUBJECT_WIDTH = 18


def clock_time(ms: int) -> str:
    """Local time of day."""
    return datetime.fromtimestamp(ms / 1000, tz=UTC).astimezone().strftime("%H:%M:%S")


def event_line(event: Event, names: Names, *, run: bool = False) -> Text:
    """``03:24:57  refund c6-0         completed  {…}``; ``run`` names the run too."""
    line = line_of(event, names)
    text = Text(f"{clock_time(event.time)}  ")
    if run:
        text.append(f"{event.run_id}  ")
    text.append(f"{line.subject:<{SUBJECT_WIDTH}}  ")
    text.append(line.words, style=STYLES[line.tone])
    if line.detail:
        text.append(f"  {line.detail}", style="dim")
    return text
