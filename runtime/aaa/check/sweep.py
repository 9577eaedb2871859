"""Checks every run of a store, one after the other, while workers may go on using it.

Memory is bounded by the listing and by one run's log; findings beyond ``max_violations`` are
counted only. A run that grows while it is read is judged by what was read; the index is compared
with its log only where neither has moved in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from aaa.check.finding import READABLE, Terms, Violation
from aaa.check.statements import check_run
from aaa.errors import StopError
from aaa.events import Event
from aaa.store.port import EventStore, RunInfo

READ_CHUNK: Final = 5_000
MAX_RUNS: Final = 1_000_000
MAX_VIOLATIONS: Final = 10_000

#: Runs done, runs in all, and the violations of the run just done.
Progress = Callable[[int, int, list[Violation]], None]


@dataclass(slots=True)
class Report:
    """What a sweep has seen. ``sound``: nothing was found."""

    runs: int = 0
    events: int = 0
    found: int = 0
    #: The first ``max_violations`` of them.
    violations: list[Violation] = field(default_factory=list)
    #: The store may hold more runs than were listed.
    more: bool = False

    @property
    def sound(self) -> bool:
        return self.found == 0


async def check_store(
    store: EventStore,
    *,
    status: str | None = None,
    app: str | None = None,
    terms: Mapping[str, Terms] | None = None,
    max_runs: int = MAX_RUNS,
    max_violations: int = MAX_VIOLATIONS,
    on_progress: Progress | None = None,
) -> Report:
    """Check the runs of an opened store, newest first; a run that cannot be read stops no other.

    Raises :class:`aaa.errors.StoreUnavailable` when the store goes away.
    """
    listed = await store.runs(status=status, app=app, limit=max_runs)
    report = Report(more=len(listed) >= max_runs)
    for info in listed:
        count, found = await check_stored(store, info.run_id, terms=terms)
        report.runs += 1
        report.events += count
        report.found += len(found)
        report.violations += found[: max_violations - len(report.violations)]
        if on_progress is not None:
            on_progress(report.runs, len(listed), found)
    return report


async def check_stored(
    store: EventStore, run_id: str, *, terms: Mapping[str, Terms] | None = None
) -> tuple[int, list[Violation]]:
    """Check one stored run: how many events it has, and what they break."""
    events: list[Event] = []
    before = await store.run(run_id)
    try:
        while chunk := await store.read(run_id, after=len(events), limit=READ_CHUNK):
            events += chunk
    except StopError as error:
        return len(events), [Violation(READABLE, run_id, _seq_of(events), str(error))]
    after = await store.run(run_id)
    info = after if _still(before, after) else None
    return len(events), check_run(events, info, run_id=run_id, terms=terms)


def _still(before: RunInfo | None, after: RunInfo | None) -> bool:
    return before is not None and after is not None and before == after


def _seq_of(events: list[Event]) -> int | None:
    return events[-1].seq + 1 if events else None
