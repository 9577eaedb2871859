"""A thousand runs on two workers that die, freeze and drain: the outside ledger agrees."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from aaa import events as ev
from aaa.check import check_store
from aaa.store import open_store
from aaa.store.port import EventStore
from chaos import payments
from chaos.havoc import havoc, starts

RUNS = 1_000
FAULTS = ("kill", "freeze", "freeze", "drain")


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/chaos.db"
    made: str = request.getfixturevalue(f"{request.param}_url")
    return made


@pytest.mark.timeout(300)
@pytest.mark.guarantee("G1", "G2", "G4", "G5", "G14", "L8", "L9")
async def test_a_thousand_runs_end_while_workers_die_and_freeze(url: str, tmp_path: Path) -> None:
    report = await havoc(
        url, folder=tmp_path, runs=RUNS, seed=20_261_201, faults=FAULTS, limit_s=240
    )
    assert report.finished == RUNS

    begun = Counter((record["tool"], record["key"]) for record in starts(tmp_path / "ledger.jsonl"))
    once = {key: count for (tool, key), count in begun.items() if tool == "pay_once"}
    often = {key: count for (tool, key), count in begun.items() if tool == "pay_often"}
    assert {key for key, count in once.items() if count > 1} == set()
    assert max(often.values()) <= payments.MAX_ATTEMPTS

    store = open_store(url)
    await store.open()
    try:
        checked = await check_store(store)
        idle = {run.run_id for run in await store.runs(limit=RUNS)} - {
            str(key).removeprefix("once:") for key in once
        }
        told = [await errors_of(store, run_id) for run_id in idle]
    finally:
        await store.close()
    assert checked.violations == []
    assert checked.runs == RUNS
    # A payment that the ledger has never seen did not succeed: its worker died between the claim
    # and the tool's first line (unknown to anybody), or said that it had not begun.
    assert all({"NotExecuted", "OutcomeUnknown"} & set(errors) for errors in told)


async def errors_of(store: EventStore, run_id: str) -> list[str]:
    """The errors of a run's tool calls."""
    return [
        event.data["error"] for event in await store.read(run_id) if event.type == ev.TOOL_FAILED
    ]
