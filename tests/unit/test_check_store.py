"""Sweeping a store, and holding an outside ledger of effects against the logs."""

from __future__ import annotations

import asyncio

import pytest

from aaa.check import Effect, Terms, Violation, check_ledger, check_store
from aaa.errors import CorruptHistory
from aaa.events import Event
from aaa.ids import partition_of
from aaa.store import MemoryEventStore
from unit.check_breaks import edited
from unit.check_histories import RUN, Made, Stage, look, lost_once, rejected, says, takeover

KEY = f"{RUN}/c3-0"


async def _two_runs() -> MemoryEventStore:
    stage = Stage([look], says())
    async with stage.engine("a") as engine:
        await stage.submit(engine)
        await engine.wait(RUN)
        assert stage.algorithm is not None
        await engine.run(stage.algorithm, {"task": "more"}, "run-2")
    return stage.store


def _damage(store: MemoryEventStore, run_id: str, seq: int, event: Event) -> None:
    store._partitions[partition_of(run_id, store.partitions)].events[run_id][seq - 1] = event


async def test_a_sound_store_is_reported_sound_with_its_progress() -> None:
    store = await _two_runs()
    seen: list[tuple[int, int, int]] = []
    report = await check_store(store, on_progress=lambda n, of, bad: seen.append((n, of, len(bad))))
    assert (report.sound, report.runs, report.events, report.more) == (True, 2, 8, False)
    assert seen == [(1, 2, 0), (2, 2, 0)]


async def test_a_corrupt_event_is_named_by_run_and_seq_and_stops_no_other_run() -> None:
    store = await _two_runs()
    event = (await store.read(RUN))[2]
    raw = Event(
        id=event.id, run_id=RUN, type=event.type, raw=b"\xff", parent=event.parent, seq=3, time=1
    )
    _damage(store, RUN, 3, raw)
    report = await check_store(store)
    places = {(each.statement, each.run_id, each.seq) for each in report.violations}
    assert report.runs == 2
    assert ("readable", RUN, 3) in places
    assert {run_id for _, run_id, _ in places} == {RUN}


async def test_a_foreign_event_is_named_by_run_and_seq() -> None:
    store = await _two_runs()
    _damage(store, RUN, 2, (await store.read("run-2"))[1])
    report = await check_store(store)
    assert (
        Violation("readable", RUN, 2, "the event is of run run-2 and does not belong here")
        in report.violations
    )


async def test_a_run_that_the_store_refuses_to_read_is_a_violation_and_not_the_end() -> None:
    class Refuses(MemoryEventStore):
        async def read(
            self, run_id: str, *, after: int = 0, limit: int | None = None
        ) -> list[Event]:
            if run_id == RUN:
                raise CorruptHistory(f"run {RUN}, event 1: unreadable")
            return await super().read(run_id, after=after, limit=limit)

    whole = await _two_runs()
    store = Refuses(partitions=2)
    store._partitions = whole._partitions
    report = await check_store(store)
    assert (report.runs, report.found) == (2, 1)
    assert report.violations[0].run_id == RUN


async def test_findings_beyond_the_bound_are_counted_only() -> None:
    store = await _two_runs()
    for run_id in (RUN, "run-2"):
        _damage(store, run_id, 2, edited((await store.read(run_id))[1], turn=7))
    report = await check_store(store, max_violations=1, max_runs=2)
    assert report.found > len(report.violations) == 1
    assert report.more


@pytest.fixture(scope="module")
def took_over() -> Made:
    return asyncio.run(takeover())


def _effect(attempt: int, *, key: str = KEY, call_id: str = "c3-0") -> Effect:
    return Effect(key=key, run_id=RUN, call_id=call_id, attempt=attempt)


def _found(made: Made, *effects: Effect, **changed: object) -> set[str]:
    terms = {name: Terms(**changed) for name in made.terms}  # type: ignore[arg-type]
    found = check_ledger({RUN: made.events}, effects, terms=terms)
    return {each.statement for each in found}


def test_a_ledger_with_one_effect_an_attempt_breaks_nothing(took_over: Made) -> None:
    assert not _found(took_over, _effect(1), _effect(2))
    assert not _found(took_over, _effect(2), delivery="at_most_once")


def test_a_ledger_shows_what_the_log_cannot(took_over: Made) -> None:
    assert _found(took_over, _effect(2), _effect(2)) == {"G2"}
    assert _found(took_over, _effect(3)) == {"G2"}
    assert _found(took_over, _effect(1, key="other")) == {"G13"}
    assert _found(took_over, _effect(1, call_id="c9-9")) == {"L1"}
    assert _found(took_over, _effect(1), _effect(2), delivery="at_most_once") == {"G4"}
    assert _found(took_over, _effect(1), _effect(2), max_attempts=1) == {"G5"}


async def test_an_effect_of_a_call_that_was_not_to_run_is_found() -> None:
    made = await rejected()
    assert _found(made, _effect(1)) == {"G19"}


async def test_an_effect_of_an_unknown_outcome_is_no_violation() -> None:
    made = await lost_once()
    assert not _found(made, _effect(1), delivery="at_most_once")
