"""Runs as a table, newest first: what ``aaa runs`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aaa.cli.text import clean, moment, seconds
from aaa.cli.timeline import tone_of
from aaa.cli.words import STYLES


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run. Times: milliseconds since the epoch; ``events`` is ``None`` where nobody knows."""

    name: str
    status: str
    created_ms: int
    closed_ms: int | None
    events: int | None


def print_runs(console: Console, rows: Sequence[RunRow]) -> None:
    """The rows, as they come."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("run", "status", "begun", "took", "events"):
        table.add_column(heading, justify="right" if heading in ("took", "events") else "left")
    for row in rows:
        table.add_row(
            Text(row.name, overflow="fold"),
            Text(clean(row.status), style=STYLES[tone_of(row.status)]),
            Text(moment(row.created_ms), no_wrap=True),
            seconds(row.closed_ms - row.created_ms) if row.closed_ms is not None else "",
            "" if row.events is None else str(row.events),
        )
    console.print(table)
