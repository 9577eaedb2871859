"""The live table of ``aaa run`` on a terminal: each call with its state, attempt and time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from aaa import events as ev
from aaa.cli.display import note_text, print_waiting
from aaa.cli.text import seconds, short
from aaa.cli.words import STYLES, line_of
from aaa.client import CallView
from aaa.clock import SYSTEM_CLOCK
from aaa.events import Event

#: Rows that the table holds at most; older ones that are done scroll away above it.
MAX_ROWS = 12


@dataclass(slots=True)
class Row:
    """One model request or tool call."""

    subject: str
    call_id: str
    state: str
    style: str = ""
    attempt: int = 0
    since_ms: int = 0
    ended_ms: int | None = None
    detail: str = ""


@dataclass(slots=True)
class Card:
    """One run and its rows, by request id."""

    run_id: str
    state: str = "begun"
    style: str = ""
    began_ms: int = 0
    ended_ms: int | None = None
    rows: dict[str, Row] = field(default_factory=dict)


class Board:
    """Follows runs on a terminal. Text of others is cleaned before it is shown."""

    def __init__(self, console: Console, *, tail: str) -> None:
        self._console, self._tail = console, tail
        self._cards: dict[str, Card] = {}
        self._progress: dict[tuple[str, str], str] = {}
        self._live = Live(
            console=console, get_renderable=self.render, refresh_per_second=8, transient=False
        )
        self._spinner = Spinner("line", style="cyan")
        self._live.start()

    def event(self, event: Event) -> None:
        card = self._cards.setdefault(event.run_id, Card(event.run_id, began_ms=event.time))
        line = line_of(event)
        if line.subject == "run":
            begun = event.type == ev.RUN_REQUESTED
            card.state, card.style = "running" if begun else line.words, STYLES[line.tone]
            if event.type in ev.ENDINGS:
                card.ended_ms = event.time
        elif event.type in (ev.TOOL_REQUESTED, ev.LLM_REQUESTED):
            subject = f"model {event.data['call_id']}" if line.subject == "model" else line.subject
            detail = line.detail if event.type == ev.TOOL_REQUESTED else ""
            card.rows[event.id] = Row(
                subject, event.data["call_id"], line.words, since_ms=event.time, detail=detail
            )
        elif event.parent in card.rows:
            _tell(card.rows[event.parent], event)
        self._live.refresh()

    def from_here(self) -> None:
        pass  # the table shows what is so now

    def progress(self, run_id: str, call_id: str, message: str, share: float | None) -> None:
        # It may come before the event that begins the attempt has been read back.
        told = f"{share:.0%} " if share is not None else ""
        self._progress[run_id, call_id] = told + short(message)

    def waits(self, pending: Sequence[CallView], unknown: Sequence[CallView]) -> None:
        print_waiting(self._console, pending, unknown, self._tail)

    def note(self, text: str) -> None:
        self._console.print(note_text(text))

    def close(self) -> None:
        self._live.stop()

    def render(self) -> RenderableType:
        """The table as it is now."""
        return Group(*(self._card(card) for card in self._cards.values()))

    def _card(self, card: Card) -> RenderableType:
        head = Text(card.run_id, style="bold")
        head.append(f"  {card.state}", style=card.style)
        end_ms = card.ended_ms or SYSTEM_CLOCK.now_ms()
        head.append(f"  {seconds(end_ms - card.began_ms)}", style="dim")
        table = Table(
            box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False, expand=True
        )
        table.add_column(width=1)
        table.add_column(no_wrap=True, width=_width(row.subject for row in card.rows.values()))
        table.add_column(no_wrap=True, width=_width(row.state for row in card.rows.values()))
        table.add_column(no_wrap=True, justify="right", width=8)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        rows = list(card.rows.values())
        hidden = max(0, len(rows) - MAX_ROWS)
        for row in rows[hidden:]:
            running = row.ended_ms is None and card.ended_ms is None
            mark: RenderableType = self._spinner if running else Text("")
            told = self._progress.get((card.run_id, row.call_id)) if running else None
            detail = told or row.detail
            took = seconds((row.ended_ms or end_ms) - row.since_ms)
            table.add_row(
                mark,
                Text(row.subject),
                Text(row.state, style=row.style),
                Text(took, style="dim"),
                Text(detail, style="dim"),
            )
        if not hidden:
            return Group(head, table)
        return Group(head, Text(f"   … {hidden} more before", style="dim"), table)


def _width(texts: Iterable[str]) -> int:
    """As wide as the widest, within reason."""
    return min(28, max((len(text) for text in texts), default=1))


def _tell(row: Row, event: Event) -> None:
    line = line_of(event)
    row.state, row.style = line.words, STYLES[line.tone]
    if event.type == ev.TOOL_STARTED:
        row.since_ms, row.ended_ms = event.time, None
    elif event.type in (ev.TOOL_COMPLETED, ev.TOOL_FAILED, ev.LLM_COMPLETED, ev.LLM_FAILED):
        row.ended_ms = event.time
    if line.detail and event.type != ev.APPROVAL_REQUESTED:  # there the arguments say more
        row.detail = line.detail
