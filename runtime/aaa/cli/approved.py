"""Calls that a person has approved and that nobody has begun: they wait for a worker.

An approval holds for a while only. Once it has expired, a worker that takes the call up asks again;
until one does, nothing in the store says so, so it is told from the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aaa import events as ev
from aaa.cli.text import moment
from aaa.clock import SYSTEM_CLOCK
from aaa.events import Event

if TYPE_CHECKING:
    from aaa.store import EventStore
    from aaa.store.port import RunInfo

#: Newest events of an open run among which such an approval is looked for.
LOOKED_AT: Final = 20


@dataclass(frozen=True, slots=True)
class Approved:
    """One call, approved and not begun. Times: milliseconds, as in the log."""

    run_id: str
    call_id: str
    by: str
    until_ms: int

    @property
    def expired(self) -> bool:
        return self.until_ms <= SYSTEM_CLOCK.now_ms()

    def __str__(self) -> str:
        told = f"call {self.call_id} of {self.run_id} is approved by {self.by} until "
        told += moment(self.until_ms)
        if self.expired:
            return f"{told}: expired; it is asked for again as soon as a worker serves the run"
        return f"{told}, and waits for a worker"

    @property
    def status(self) -> str:
        """The run's status in some words."""
        return "approval expired" if self.expired else "approved, waits for a worker"


def unbegun(events: Sequence[Event]) -> list[Approved]:
    """The approvals among a run's newest events that nothing has followed."""
    found: dict[str | None, Approved] = {}
    for event in events:
        if event.type == ev.APPROVED:
            until_ms = event.time + round(event.data["for_s"] * 1000)
            said = event.data
            found[event.parent] = Approved(event.run_id, said["call_id"], said["by"], until_ms)
        else:
            found.pop(event.parent, None)
    return list(found.values())


async def of_run(store: EventStore, info: RunInfo) -> list[Approved]:
    """Those of an open run, told from its newest events."""
    if info.status != "open":
        return []
    return unbegun(await store.read(info.run_id, after=max(0, info.head.seq - LOOKED_AT)))
