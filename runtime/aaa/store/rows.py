"""What :mod:`aaa.store.logic` needs of a backend that runs Python inside its transaction.

Memory and SQLite supply it. All methods are synchronous and see one partition inside one
transaction; an object that was changed is given back through its ``save_…``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from aaa.events import Event
from aaa.store.guard import Call


@dataclass(slots=True, kw_only=True)
class Run:
    """A run's row in the index."""

    run_id: str
    app: str
    digest: str
    status: str
    seq: int
    last_id: str
    cursor: int
    dirty: bool
    cancelling: bool
    suspended: bool
    parked: bool
    awaiting: int
    unknown: int
    created_ms: int
    closed_ms: int | None
    deleted: bool = False


@dataclass(slots=True)
class Owner:
    """Who owns (app, partition), under which term, until when."""

    worker: str
    term: int
    until_ms: int


@dataclass(slots=True)
class Timer:
    """A timer of a run: its ``aaa.timer.set`` event's id, and when it is due."""

    set_id: str
    run_id: str
    app: str
    name_json: str
    due_ms: int


@dataclass(slots=True)
class Meta:
    """A partition's high-water mark, and the highest mark that a worker missed (0: none)."""

    mark: int
    behind: int


class Rows(Protocol):
    """One partition, inside a transaction."""

    def now_ms(self) -> int:
        """The clock that leases are judged by: never jumps, runs while the machine sleeps."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch: stamps, approvals and timers, which outlive a reboot."""
        ...

    def meta(self) -> Meta: ...
    def save_meta(self, meta: Meta) -> None: ...

    def run(self, run_id: str) -> Run | None: ...
    def save_run(self, run: Run) -> None: ...
    def erase_run(self, run: Run) -> None:
        """Drop the events, calls and timers of a run; its row stays (``save_run``)."""
        ...

    def dirty(self, app: str, limit: int) -> list[Run]:
        """Runs whose log has moved past the cursor, longest waiting first."""
        ...

    def event(self, run_id: str, event_id: str) -> Event | None: ...
    def add_event(self, event: Event) -> None: ...

    def call(self, run_id: str, request_id: str) -> Call | None: ...
    def save_call(self, call: Call) -> None: ...
    def ready_of(self, run_id: str) -> list[Call]:
        """The ready calls of a run, the shelved ones too."""
        ...

    def open_calls_of(self, run_id: str) -> list[Call]:
        """Every call of a run that has no result."""
        ...

    def ready(self, app: str, queue: str, limit: int) -> list[Call]:
        """Ready calls that are not shelved, longest waiting first: by ``due_ms``, then ``seq``, then ids."""
        ...

    def any_ready(self, app: str) -> bool:
        """Whether any queue of the app has a ready call."""
        ...

    def expired(self, app: str, limit: int) -> list[Call]:
        """Leased or verifying calls whose lease has ended, longest ended first, then by ids."""
        ...

    def next_expiry(self, app: str) -> int | None:
        """When the next lease of the app that has not ended yet will end."""
        ...

    def open_calls(self) -> Iterable[Call]:
        """Every call that has no result."""
        ...

    def owner(self, app: str) -> Owner | None: ...
    def save_owner(self, app: str, owner: Owner) -> None: ...

    def add_timer(self, timer: Timer) -> None: ...
    def due_timers(self, app: str, limit: int) -> list[Timer]: ...
    def drop_timer(self, timer: Timer) -> None: ...
    def next_timer(self, app: str) -> int | None: ...

    def last_offer(self, worker: str) -> tuple[str, list[tuple[str, str]]] | None:
        """The nonce of a worker's newest offer here, and the (run, request) pairs it got."""
        ...

    def save_offer(self, worker: str, nonce: str, got: list[tuple[str, str]]) -> None: ...
