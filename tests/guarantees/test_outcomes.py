"""How attempts end, and what is recorded of them."""

from __future__ import annotations

import asyncio

import pytest

from aaa import events as ev
from aaa.llm import ModelReply, ModelRequest
from aaa.llm.fake import text, tool_call
from aaa.tools import tool
from guarantees.world import (
    SHORT_S,
    Link,
    World,
    acquainted,
    run_of,
    settles,
    settles_tool,
    until,
    within,
)

BOTH = pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
CALLS_ACT = (tool_call("act"),)


@pytest.mark.guarantee("G15", "G6")
@BOTH
async def test_a_lost_settle_reply_repeats_the_settle_and_not_the_tool(
    world: World, delivery: str
) -> None:
    @tool(delivery=delivery)
    async def act() -> str:
        world.ledger.effects.append("act")
        return "acted"

    link = Link(world.store)
    link.lose_reply(settles_tool)
    one = await world.worker("w1", act, says=CALLS_ACT, link=link)
    assert await one.run() == "acted"
    assert world.ledger.effects == ["act"]
    assert sum(map(settles_tool, link.committed)) == 2
    types = await world.types()
    assert (types.count("tool.started"), types.count("tool.completed")) == (1, 1)
    assert "tool.stale_result" not in types


@pytest.mark.guarantee("G15")
@BOTH
async def test_a_lost_settle_request_repeats_the_settle_and_not_the_tool(
    world: World, delivery: str
) -> None:
    @tool(delivery=delivery)
    async def act() -> str:
        world.ledger.effects.append("act")
        return "acted"

    link = Link(world.store)
    link.lose_request(settles_tool)
    one = await world.worker("w1", act, says=CALLS_ACT, link=link)
    assert await one.run() == "acted"
    assert world.ledger.effects == ["act"]


@pytest.mark.guarantee("G6", "G15")
@BOTH
async def test_an_outcome_is_settled_although_the_log_cannot_be_read_for_a_while(
    world: World, delivery: str
) -> None:
    """The owner has to read the run again before it decides; the outcome must not go with it."""
    go, ended = asyncio.Event(), asyncio.Event()

    @tool(delivery=delivery)
    async def act() -> str:
        world.ledger.effects.append("act")
        await go.wait()
        ended.set()
        return "acted"

    link = Link(world.store)
    one = await world.worker("w1", act, says=CALLS_ACT, link=link)
    run_id = await one.submit()
    await world.seen(ev.TOOL_STARTED)
    # Somebody else appends: the state that the owner has folded is out of date.
    link.lost_reads = 1_000_000
    await world.client.suspend(run_id, by="me")
    await world.client.resume(run_id, by="me")
    await until(lambda: link.reads_lost >= 1)
    link.reads_lost = 0
    go.set()
    await until(lambda: link.reads_lost >= 1)
    await within(ended.wait())
    link.lost_reads = 0
    assert await one.text() == "acted"
    assert world.ledger.effects == ["act"]


@pytest.mark.guarantee("G24", "L8")
async def test_no_decision_follows_from_an_answer_that_came_too_late(world: World) -> None:
    """The owner's model is slow; another worker answers first; what the owner got is dropped."""
    slow = asyncio.Event()

    @tool
    async def act(order: str) -> str:
        world.ledger.effects.append(order)
        return order

    async def late(request: ModelRequest) -> ModelReply:
        if len(request.messages) > 1:
            return text("done")
        await slow.wait()
        return tool_call("act", order="late")

    link = Link(world.store)
    one = await world.worker("w1", act, model=late, link=link, llm={"lease_ttl_s": SHORT_S})
    two = await world.worker(
        "w2", act, says=(tool_call("act", order="first"),), llm={"lease_ttl_s": SHORT_S}
    )
    await acquainted(one, two)
    run_id = run_of("w1", "w2")
    arrived, go = link.hold(settles)
    await one.submit(run_id)
    await until(lambda: one.model.requests == 1)
    slow.set()
    await within(arrived.wait())  # the answer is on its way, and takes longer than the lease
    link.lost_pulses = 1_000_000
    await world.seen(ev.LLM_COMPLETED, run_id)
    go.set()
    link.lost_pulses = 0
    assert await one.text(run_id) == "done"
    assert world.ledger.effects == ["first"]
    first = (await world.of(ev.TOOL_REQUESTED, run_id))[0]
    assert first.data["arguments"] == {"order": "first"}
