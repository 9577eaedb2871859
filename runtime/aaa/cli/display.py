"""What ``aaa run`` shows while it runs: lines in a pipe, a live table on a terminal, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.text import Text

from aaa.cli import screen
from aaa.cli.lines import event_line
from aaa.cli.text import clean, short
from aaa.cli.timeline import print_pending, print_unknown
from aaa.cli.words import Names
from aaa.client import CallView
from aaa.events import Event


class Display(Protocol):
    """Told everything that happens; shows what it sees fit. Called in the event loop."""

    def event(self, event: Event) -> None: ...
    def from_here(self) -> None:
        """What was shown so far had happened before; the rest happens now."""
        ...

    def progress(self, run_id: str, call_id: str, message: str, share: float | None) -> None: ...
    def waits(self, pending: Sequence[CallView], unknown: Sequence[CallView]) -> None:
        """A run has come to where only a person can help."""
        ...

    def note(self, text: str) -> None:
        """A sentence about what happens."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was. Twice is fine."""
        ...


class Lines:
    """One line an event; ``runs`` names the run in each. ``tail`` ends commands to type."""

    def __init__(self, *, runs: bool, tail: str) -> None:
        self._runs, self._tail, self._names = runs, tail, Names()

    def event(self, event: Event) -> None:
        screen.out().print(event_line(event, self._names, run=self._runs), soft_wrap=True)

    def from_here(self) -> None:
        screen.say("-- from here --")

    def progress(self, run_id: str, call_id: str, message: str, share: float | None) -> None:
        told = f" {share:.0%}" if share is not None else ""
        where = f"{run_id}  " if self._runs else ""
        screen.say(f"          {where}{short(call_id, 40):<18}  …{told} {short(message)}")

    def waits(self, pending: Sequence[CallView], unknown: Sequence[CallView]) -> None:
        print_waiting(screen.out(), pending, unknown, self._tail)

    def note(self, text: str) -> None:
        screen.note(text)

    def close(self) -> None:
        screen.out().file.flush()


class Quiet:
    """For ``--json``: only notes, on stderr."""

    def event(self, event: Event) -> None:
        pass

    def from_here(self) -> None:
        pass

    def progress(self, run_id: str, call_id: str, message: str, share: float | None) -> None:
        pass

    def waits(self, pending: Sequence[CallView], unknown: Sequence[CallView]) -> None:
        pass

    def note(self, text: str) -> None:
        screen.note(text)

    def close(self) -> None:
        pass


def print_waiting(
    console: Console,
    pending: Sequence[CallView],
    unknown: Sequence[CallView],
    tail: str,
) -> None:
    """What a person is to decide, with the commands to type."""
    for view in pending:
        print_pending(console, view, tail)
    for view in unknown:
        print_unknown(console, view, tail)


def note_text(text: str) -> Text:
    """A note, as the live display prints it."""
    return Text(clean(text), style="yellow")
