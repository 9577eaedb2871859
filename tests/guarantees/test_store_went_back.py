"""A store that has gone back in time is noticed, and nothing is claimed until a person says so."""

from __future__ import annotations

import asyncio

import pytest

from aaa import events as ev
from aaa.ids import partition_of
from aaa.llm.fake import text, tool_call
from aaa.store import port
from aaa.testing.rewind import Snapshot
from aaa.tools import ToolContext, tool
from guarantees.world import World, until


@pytest.mark.guarantee("G23", "G4")
async def test_a_call_that_a_restored_store_forgot_is_not_run_again(world: World) -> None:
    """It ran, and its result stood; the store was restored from before; a person accepts that."""

    snapshots: list[Snapshot] = []
    go = asyncio.Event()

    @tool
    async def act(ctx: ToolContext) -> str:
        snapshots.append(Snapshot(world.store, ctx.run_id))  # a backup of this moment
        world.ledger.effects.append(ctx.attempt)
        return "acted"

    @tool
    async def then() -> str:
        await go.wait()
        return "then"

    calls = (tool_call("act"), tool_call("then"), text("done"))
    one = await world.worker("w1", act, then, says=calls)
    run_id = await one.submit()
    await world.seen(ev.TOOL_STARTED, count=2)
    snapshots[0].restore()
    assert len(await world.of(ev.TOOL_STARTED)) == 1
    go.set()
    two = await world.worker("w2", act, then, says=calls)
    partition = partition_of(run_id, world.store.partitions)
    one.engine._visits.soon(partition)  # it has seen more than the store has
    await until(lambda: bool(world.store._of(run_id).meta().behind), "the mark")
    (call,) = [c for c in world.store._of(run_id)._calls[run_id].values() if c.state == "leased"]
    rows = world.store._of(run_id)
    call.due_ms = rows.now_ms() - 1  # its lease ends
    rows.save_call(call)
    for _ in range(3):
        for worker in (one, two):
            worker.engine._visits.soon(partition)
            await asyncio.sleep(0.005)
    assert world.ledger.effects == [1]  # nobody takes it over
    await world.store.commit(partition, [port.AcceptLoss(by="me")])
    assert await world.failures() == ["OutcomeUnknown"]
    for worker in (one, two):
        worker.engine._visits.soon(partition)
    assert await two.text(run_id) == "done"
    assert world.ledger.effects == [1]
    assert [view.name for view in await world.client.unknown()] == ["act"]


@pytest.mark.guarantee("G23")
async def test_a_sound_store_is_never_taken_for_one_that_went_back(world: World) -> None:
    @tool
    async def act() -> str:
        return "acted"

    one = await world.worker("w1", act, says=(tool_call("act"), tool_call("act"), text("done")))
    two = await world.worker("w2", act, says=(tool_call("act"), tool_call("act"), text("done")))
    await asyncio.gather(*(one.run(f"run-{n}") for n in range(10)))
    assert await two.run("another") == "done"
    assert not any(rows.meta().behind for rows in world.store._partitions)
