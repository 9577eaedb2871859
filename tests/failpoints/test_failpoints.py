"""A worker fails at the first failpoint, then at the second, until a run gets through unharmed.

``make failpoints`` fails one at every time that any point is reached, on Valkey as well; ``make
test`` at the first time, and has it stand still only where a call hangs between two writes. The
outside ledger and the checkers judge each run.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from aaa import events as ev
from aaa.check import check_ledger, check_run
from aaa.events import Event
from aaa.store import open_store
from aaa.store.port import EventStore
from aaa.testing.failpoints import STEPS, STORE_STEPS
from failpoints.nursery import Nursery, Worker, nursery
from failpoints.payments import ACTIONS, BOUND_S, STILL_S, Trial, terms, work

EVERYWHERE = os.environ.get("AAA_FAILPOINTS") == "all"
STORES = ("sqlite", "postgres", "redis", *(("valkey",) if EVERYWHERE else ()))
#: Trials at a time: they mostly wait for leases to end.
ABREAST = 8
#: Points that an undisturbed run comes past; ``release`` is of workers that stop in the middle.
POINTS = [f"{step}.{side}" for step in STEPS if step != "release" for side in ("before", "after")]
#: Where a call has been begun or has acted, and the store or the worker doesn't know.
BETWEEN = ["claim.after", "effect.before", "effect.after", "settle.before", "settle.after"]


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return few_partitions(f"sqlite:///{tmp_path}/store.db")
    return few_partitions(request.getfixturevalue(f"{request.param}_url"))


def few_partitions(url: str) -> str:
    """A worker that owns sixty-four of them does little else in so short a life."""
    return f"{url}{'&' if '?' in url else '?'}partitions=1"


@pytest.mark.guarantee("G2", "G4", "G5", "G6", "G10", "G12", "G15", "L1", "L8")
@pytest.mark.timeout(900 if EVERYWHERE else 240)
@pytest.mark.parametrize("action", ACTIONS)
async def test_a_run_gets_through_a_worker_that_fails_at_any_step(
    action: str, url: str, tmp_path: Path
) -> None:
    gate = asyncio.Semaphore(ABREAST)
    async with nursery() as workers, opened(url) as store:

        async def one(at: str | None, nth: int) -> str:
            trial = Trial(url, tmp_path, f"{action}-{at or nth}", action, nth, at)
            async with gate, asyncio.timeout(BOUND_S):
                return await judged(trial, workers, store)

        points = POINTS if EVERYWHERE or action in ("raise", "kill") else BETWEEN
        assert await asyncio.gather(*(one(point, 1) for point in points)) == points
        for first in count(1, ABREAST) if EVERYWHERE else ():
            batch = (one(None, nth) for nth in range(first, first + ABREAST))
            if "" in await asyncio.gather(*batch):  # one got through without having come so far
                break


async def judged(trial: Trial, workers: Nursery, store: EventStore) -> str:
    """Let it happen; where it struck. The worker itself, or one that comes then, ends the run."""
    failing = workers.start(trial, failing=True)
    await _until(failing, trial)
    if trial.struck() and trial.action != "raise":
        other = workers.start(trial, failing=False)
        await asyncio.wait([other.ended], timeout=STILL_S)
        await failing.signal(signal.SIGCONT)
        assert await other.ended == 0, trial
    killed = trial.action == "kill" and trial.struck()
    assert await failing.ended == (-signal.SIGKILL if killed else 0), trial
    await _sound(trial, store)
    return trial.struck()


async def _until(failing: Worker, trial: Trial) -> None:
    """It has struck, or has ended without."""
    while not failing.ended.done() and not trial.struck():
        await asyncio.wait([failing.ended], timeout=0.01)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[EventStore]:
    store = open_store(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def _sound(trial: Trial, store: EventStore) -> None:
    events, info = await store.read(trial.name), await store.run(trial.name)
    once, often = trial.effects("pay_once"), trial.effects("pay_often")
    explained = terms(trial)
    assert info is not None, trial
    assert info.status == "completed", trial
    assert check_run(events, info, terms=explained) == [], trial
    assert check_ledger({trial.name: events}, once + often, terms=explained) == [], trial
    assert len(once) <= 1, trial
    assert once or _told(events), trial
    if trial.action in ("kill", "freeze"):
        assert often, trial
    elif not _may_lose_an_attempt(trial):
        assert (len(once), len(often)) == (1, 1), trial
        assert [event.type for event in events].count(ev.TOOL_STARTED) == 2, trial


def _told(events: list[Event]) -> bool:
    """The model knows that a payment was lost, or that its tool failed."""
    errors = {event.data["error"] for event in events if event.type == ev.TOOL_FAILED}
    return bool(errors & {"OutcomeUnknown", "ToolError"})


def _may_lose_an_attempt(trial: Trial) -> bool:
    """Who raises or waits on the way to the store, or in its head, has not lost its tools.

    But a reply that is heard after the leases in it have ended has begun nothing (G10).
    """
    step, _, side = trial.struck().partition(".")
    late = trial.action == "delay" and side == "after" and step in STORE_STEPS
    return late or (trial.action == "raise" and step == "effect")


def test_nothing_is_reached_or_counted_that_is_not_a_documented_point(
    tmp_path: Path,
) -> None:
    trial = Trial(
        few_partitions(f"sqlite:///{tmp_path}/store.db"), tmp_path, "whole", "raise", 10**6
    )
    work(trial, failing=True)
    assert trial.struck() == ""
    assert set(trial.trace.read_text().split()) == set(POINTS)


async def test_a_lost_effect_would_be_noticed(tmp_path: Path) -> None:
    """The judge itself: a ledger that has one payment too many is refused."""
    trial = Trial(
        few_partitions(f"sqlite:///{tmp_path}/store.db"), tmp_path, "twice", "raise", 10**6
    )
    await asyncio.to_thread(work, trial, failing=True)
    async with opened(trial.url) as store:
        await _sound(trial, store)
        lines = trial.ledger.read_text()
        trial.ledger.write_text(lines + lines)
        with pytest.raises(AssertionError):
            await _sound(trial, store)
