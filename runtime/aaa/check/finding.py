"""What a checker is given beside the log, and what it finds.

:class:`Terms` are the settings that an attempt began under. The log names them by their hash
only, so a statement that depends on them (G4's second start, G5's cap, G7, G18, the need of an
approval) is checked for the hashes that the caller can explain, and left alone for the others:
a checker never guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from aaa.store.port import RunInfo

if TYPE_CHECKING:
    from aaa.check.history import History

#: The statement that every other one rests on: each event can be read, and is of this run.
READABLE: Final = "readable"


@dataclass(frozen=True, slots=True)
class Violation:
    """A statement that a history breaks: where, and how, in one sentence.

    ``statement`` is an id of docs/guarantees.md, or ``readable``. ``seq`` is the event at which it
    shows, ``None`` where no event can be named.
    """

    statement: str
    run_id: str
    seq: int | None
    sentence: str

    def __str__(self) -> str:
        place = self.run_id if self.seq is None else f"{self.run_id}#{self.seq}"
        return f"{self.statement} {place}: {self.sentence}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Settings of one tool, as far as a history can break them."""

    delivery: str = "at_least_once"
    max_attempts: int = 3
    fence_results: bool = True
    requires_approval: bool = False
    enabled: bool = True

    @property
    def once(self) -> bool:
        """At most one start, ever."""
        return self.delivery == "at_most_once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the caller knows beside the log. ``terms``: by the hash that attempts record."""

    info: RunInfo | None = None
    terms: Mapping[str, Terms] = field(default_factory=dict)


#: Where it shows (an event's seq, if any), and the sentence.
Finding = tuple[int | None, str]
Checker = Callable[["History", Known], Iterator[Finding]]
