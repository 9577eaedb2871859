"""Claims: one holder at a time, dense attempts, and the policy that a call began with."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from aaa import events as ev
from aaa.llm.fake import text, tool_call, tool_calls
from aaa.policy import GuardConfig, ToolEntry, ToolPolicyRules
from aaa.store import port
from aaa.tools import ToolContext, tool
from guarantees.world import (
    SHORT_S,
    Link,
    World,
    acquainted,
    claims_tool,
    run_of,
    until,
    within,
)

CALLS_ACT = (tool_call("act"),)
BOTH = pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])


@pytest.mark.guarantee("G1", "G2")
@BOTH
async def test_no_call_is_ever_run_by_two_workers_at_once(world: World, delivery: str) -> None:
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    @tool(delivery=delivery)
    async def act(number: int, ctx: ToolContext) -> int:
        key = f"{ctx.run_id}/{ctx.call_id}"
        running[key] += 1
        most[key] = max(most[key], running[key])
        world.ledger.effects.append(key)
        await asyncio.sleep(0.001)
        running[key] -= 1
        return number

    calls = tool_calls([tool_call("act", number=n) for n in range(6)])
    workers = [
        await world.worker(f"w{n}", act, says=(calls, text("done")), concurrency=3)
        for n in range(3)
    ]
    await acquainted(*workers)
    runs = [await workers[0].submit(f"run-{n}") for n in range(8)]
    for run_id in runs:
        assert await workers[0].text(run_id) == "done"
    assert set(most.values()) == {1}
    assert len(world.ledger.effects) == len(set(world.ledger.effects)) == 48


@pytest.mark.guarantee("G1")
async def test_a_lease_is_the_stores_to_end_whatever_its_holder_believes(world: World) -> None:
    @tool
    async def act(ctx: ToolContext) -> str:
        world.ledger.starts.append(ctx.attempt)
        await asyncio.Event().wait()
        return "never"

    guard = GuardConfig(lease_ttl_s=30)
    one = await world.worker("w1", act, says=CALLS_ACT, guard=guard)
    run_id = await one.submit()
    await until(lambda: bool(world.ledger.starts))
    two = await world.worker("w2", act, says=CALLS_ACT, guard=guard)
    partition = world.store._partitions.index(world.store._of(run_id))
    for _ in range(5):  # however often another worker asks
        two.engine._visits.soon(partition)
        await asyncio.sleep(0.002)
    assert world.ledger.starts == [1]


@pytest.mark.guarantee("G2", "G15")
@BOTH
async def test_a_lost_reply_to_a_claim_costs_neither_an_attempt_nor_a_second_start(
    world: World, delivery: str
) -> None:
    """The claim travels with the decision that asks for the call."""

    @tool(delivery=delivery, guard={"max_attempts": 1} if delivery == "at_least_once" else None)
    async def act(ctx: ToolContext) -> str:
        world.ledger.starts.append(ctx.attempt)
        return "acted"

    link = Link(world.store)
    link.lose_reply(claims_tool)
    link.lose_reply(claims_tool)
    one = await world.worker("w1", act, says=CALLS_ACT, link=link)
    assert await one.run() == "acted"
    assert world.ledger.starts == [1]
    assert len(await world.of(ev.TOOL_STARTED)) == 1


@pytest.mark.guarantee("G2", "G19")
@BOTH
async def test_a_lost_reply_to_a_visits_claim_burns_neither_attempt_nor_approval(
    world: World, delivery: str
) -> None:
    """A call that a person has approved is claimed by a visit."""

    @tool(delivery=delivery, requires_approval=True)
    async def act(ctx: ToolContext) -> str:
        world.ledger.starts.append(ctx.attempt)
        return "acted"

    link = Link(world.store)
    one = await world.worker("w1", act, says=CALLS_ACT, link=link)
    run_id = await one.submit()
    await world.seen(ev.APPROVAL_REQUESTED)
    lost = asyncio.Event()

    def takes(operation: port.Operation) -> bool:
        ready = world.store._of(run_id).any_ready
        found = isinstance(operation, port.Claim) and not ready(operation.app)
        if found and any(e.type == ev.TOOL_STARTED for e in world.store._of(run_id).events[run_id]):
            lost.set()
            return True
        return False

    link.lose_reply(takes)
    (asked,) = await world.client.pending()
    await world.client.approve(run_id, asked.call_id, by="me")
    assert await one.text() == "acted"
    assert lost.is_set()
    assert world.ledger.starts == [1]
    assert len(await world.of(ev.TOOL_STARTED)) == 1
    assert len(await world.of(ev.APPROVAL_REQUESTED)) == 1


@pytest.mark.guarantee("G2")
async def test_claims_are_made_only_into_free_slots(world: World) -> None:
    running, most = 0, 0

    @tool
    async def act(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return number

    calls = tool_calls([tool_call("act", number=n) for n in range(9)])
    one = await world.worker("w1", act, says=(calls, text("done")), concurrency=2)
    assert await one.run() == "done"
    assert most == 2
    assert await world.failures() == []


@pytest.mark.guarantee("G3", "G13")
async def test_an_attempts_record_says_what_ran_where_under_which_key(world: World) -> None:
    seen: list[ToolContext] = []

    @tool
    async def act(ctx: ToolContext) -> str:
        seen.append(ctx)
        return "acted"

    one = await world.worker("w1", act, says=CALLS_ACT)
    await one.run()
    (started,) = await world.of(ev.TOOL_STARTED)
    (request,) = await world.of(ev.TOOL_REQUESTED)
    assert started.id == f"{request.id}:attempt:1"
    assert started.parent == request.id
    assert started.data == {
        "attempt": 1,
        "call_id": request.data["call_id"],
        "idempotency_key": f"run/{request.data['call_id']}",
        "name": "act",
        "policy": one.handler.settings_for("act").hash,
        "worker": "w1",
    }
    (ctx,) = seen
    assert (ctx.attempt, ctx.fence, ctx.call_id) == (1, 1, request.data["call_id"])
    assert ctx.idempotency_key == started.data["idempotency_key"]


def says(delivery: str, **more: Any) -> list[ToolPolicyRules]:
    settings = {"delivery": delivery, **more}
    return [ToolPolicyRules(name="p", tools=[ToolEntry(name="act", settings=settings)])]


@pytest.mark.guarantee("G22", "G4")
@pytest.mark.parametrize(
    ("first", "later"),
    [("at_most_once", "at_least_once"), ("at_least_once", "at_most_once")],
)
async def test_a_policy_that_changes_during_an_attempt_can_only_tighten(
    world: World, first: str, later: str
) -> None:
    @tool
    async def act(ctx: ToolContext) -> str:
        world.ledger.starts.append(ctx.attempt)
        await asyncio.Event().wait()
        return "never"

    guard = GuardConfig(lease_ttl_s=SHORT_S, wait_poll_s=0.1)
    how: dict[str, Any] = {"says": CALLS_ACT, "guard": guard, "worker_ttl_s": 2 * SHORT_S}
    one = await world.worker("w1", act, policies=says(first), **how)
    two = await world.worker("w2", act, policies=says(first), **how)
    await acquainted(one, two)
    run_id = run_of("w1", "w2")
    await one.submit(run_id)
    await until(lambda: bool(world.ledger.starts))
    two.handler.use_policies(says(later))
    await one.engine.kill()
    assert (await two.text(run_id)).startswith("OutcomeUnknown")
    assert world.ledger.starts == [1]


@pytest.mark.guarantee("G22", "G5")
async def test_a_cap_that_is_raised_during_an_attempt_stays_as_it_was(world: World) -> None:
    @tool
    async def act(ctx: ToolContext) -> str:
        world.ledger.starts.append(ctx.attempt)
        await asyncio.Event().wait()
        return "never"

    guard = GuardConfig(lease_ttl_s=SHORT_S, wait_poll_s=0.1, max_attempts=1)
    how: dict[str, Any] = {"says": CALLS_ACT, "guard": guard, "worker_ttl_s": 2 * SHORT_S}
    one = await world.worker("w1", act, **how)
    two = await world.worker("w2", act, **how)
    await acquainted(one, two)
    run_id = run_of("w1", "w2")
    await one.submit(run_id)
    await until(lambda: bool(world.ledger.starts))
    two.handler.use_policies(says("at_least_once", max_attempts=9))
    await one.engine.kill()
    assert (await two.text(run_id)).startswith("ExecutionAbandoned")
    assert world.ledger.starts == [1]


@pytest.mark.guarantee("G22", "G3")
async def test_a_call_that_began_with_a_record_keeps_having_one(world: World) -> None:
    @tool
    async def act(ctx: ToolContext) -> str:
        world.ledger.starts.append(ctx.attempt)
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return "acted"

    guard = GuardConfig(lease_ttl_s=SHORT_S, wait_poll_s=0.1)
    how: dict[str, Any] = {"says": CALLS_ACT, "guard": guard, "worker_ttl_s": 2 * SHORT_S}
    one = await world.worker("w1", act, **how)
    two = await world.worker("w2", act, **how)
    await acquainted(one, two)
    run_id = run_of("w1", "w2")
    await one.submit(run_id)
    await until(lambda: bool(world.ledger.starts))
    two.handler.use_policies(says("at_least_once", enabled=False))
    await one.engine.kill()
    assert await two.text(run_id) == "acted"
    assert [e.data["attempt"] for e in await world.of(ev.TOOL_STARTED, run_id)] == [1, 2]


@pytest.mark.guarantee("G22")
async def test_each_attempt_pins_the_policy_that_it_began_under(world: World) -> None:
    go = asyncio.Event()

    @tool
    async def act(number: int) -> int:
        await go.wait()
        return number

    one = await world.worker(
        "w1",
        act,
        says=(tool_call("act", number=1), tool_call("act", number=2), text("done")),
        policies=says("at_least_once"),
    )
    hashes = [one.handler.settings_for("act").hash]
    await one.submit()
    await world.seen(ev.TOOL_STARTED)
    one.handler.use_policies(says("at_most_once"))
    hashes.append(one.handler.settings_for("act").hash)
    go.set()
    assert await within(one.text()) == "done"
    started = await world.of(ev.TOOL_STARTED)
    assert [each.data["policy"] for each in started] == hashes
    assert hashes[0] != hashes[1]
