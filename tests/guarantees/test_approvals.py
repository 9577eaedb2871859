"""Approvals: for one call with its arguments, for a time, used up once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aaa import events as ev
from aaa.errors import DecisionRefused
from aaa.llm.fake import text, tool_call, tool_calls
from aaa.policy import GuardConfig, ToolEntry, ToolPolicyRules
from aaa.tools import ToolContext, tool
from guarantees.world import SHORT_S, World, acquainted, run_of, until

CALLS_ACT = (tool_call("act", order="A"),)


def approved(world: World, **settings: Any) -> Any:
    @tool(requires_approval=True, **settings)
    async def act(order: str, ctx: ToolContext) -> str:
        world.ledger.starts.append((order, ctx.attempt))
        return f"acted on {order}"

    return act


@pytest.mark.guarantee("G19")
@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
async def test_nothing_starts_before_a_person_approves(world: World, delivery: str) -> None:
    one = await world.worker("w1", approved(world, delivery=delivery), says=CALLS_ACT)
    run_id = await one.submit()
    (asked,) = await world.seen(ev.APPROVAL_REQUESTED)
    partition = world.store._partitions.index(world.store._of(run_id))
    for _ in range(5):
        one.engine._visits.soon(partition)
        await asyncio.sleep(0.002)
    assert world.ledger.starts == []
    assert await world.of(ev.TOOL_STARTED) == []
    (view,) = await world.client.pending()
    assert (view.name, view.arguments) == ("act", {"order": "A"})
    assert view.args_digest == asked.data["args_digest"]
    await world.client.approve(run_id, view.call_id, by="me", args_digest=view.args_digest)
    assert await one.text() == "acted on A"
    assert world.ledger.starts == [("A", 1)]


@pytest.mark.guarantee("G19")
async def test_an_approval_of_other_arguments_is_refused(world: World) -> None:
    one = await world.worker("w1", approved(world), says=CALLS_ACT)
    run_id = await one.submit()
    (asked,) = await world.seen(ev.APPROVAL_REQUESTED)
    call_id = asked.data["call_id"]
    with pytest.raises(DecisionRefused, match="other arguments"):
        await world.client.approve(run_id, call_id, by="me", args_digest="0" * 32)
    assert world.ledger.starts == []
    await world.client.reject(run_id, call_id, by="me", reason="too much")
    assert await one.text() == "ApprovalRejected: act was not run: me rejected it. Reason: too much"
    assert world.ledger.starts == []
    with pytest.raises(DecisionRefused, match="does not wait"):
        await world.client.approve(run_id, call_id, by="me")


@pytest.mark.guarantee("G19")
async def test_an_approval_that_has_expired_is_asked_for_again(world: World) -> None:
    one = await world.worker("w1", approved(world), says=CALLS_ACT)
    run_id = await one.submit()
    (asked,) = await world.seen(ev.APPROVAL_REQUESTED)
    call_id = asked.data["call_id"]
    await world.client.approve(run_id, call_id, by="me", for_s=0.0)
    first, again = await world.seen(ev.APPROVAL_REQUESTED, count=2)
    assert again.data["reason"] == "expired"
    assert again.data["args_digest"] == first.data["args_digest"]
    assert world.ledger.starts == []
    await until(lambda: bool(_waiting(world, run_id)))
    await world.client.approve(run_id, call_id, by="me")
    assert await one.text() == "acted on A"
    assert world.ledger.starts == [("A", 1)]


def _waiting(world: World, run_id: str) -> int:
    run = world.store._of(run_id).run(run_id)
    return 0 if run is None else run.awaiting


@pytest.mark.guarantee("G19", "G5")
async def test_one_approval_covers_every_attempt_of_its_call(world: World) -> None:
    @tool(requires_approval=True)
    async def act(order: str, ctx: ToolContext) -> str:
        world.ledger.starts.append((order, ctx.attempt))
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return "acted"

    guard = GuardConfig(lease_ttl_s=SHORT_S, wait_poll_s=0.1)
    how: dict[str, Any] = {"says": CALLS_ACT, "guard": guard, "worker_ttl_s": 2 * SHORT_S}
    one = await world.worker("w1", act, **how)
    two = await world.worker("w2", act, **how)
    await acquainted(one, two)
    run_id = await one.submit(run_of("w1", "w2"))
    (asked,) = await world.seen(ev.APPROVAL_REQUESTED, run_id)
    # Long enough to be claimed, and over when the second attempt begins.
    await world.client.approve(run_id, asked.data["call_id"], by="me", for_s=0.15)
    await until(lambda: bool(world.ledger.starts))
    (started,) = await world.of(ev.TOOL_STARTED, run_id)
    dead, heir = (one, two) if started.data["worker"] == "w1" else (two, one)
    await dead.engine.kill()
    assert await heir.text(run_id) == "acted"
    assert world.ledger.starts == [("A", 1), ("A", 2)]
    assert len(await world.of(ev.APPROVAL_REQUESTED, run_id)) == 1


@pytest.mark.guarantee("G19")
async def test_an_approval_covers_its_own_call_only(world: World) -> None:
    calls = tool_calls([tool_call("act", order="A"), tool_call("act", order="B")])
    one = await world.worker("w1", approved(world), says=(calls, text("done")))
    run_id = await one.submit()
    asked = await world.seen(ev.APPROVAL_REQUESTED, count=2)
    await world.client.approve(run_id, asked[0].data["call_id"], by="me")
    await world.seen(ev.TOOL_COMPLETED)
    assert world.ledger.starts == [("A", 1)]
    await world.client.approve(run_id, asked[1].data["call_id"], by="me")
    assert await one.text() == "done"
    assert world.ledger.starts == [("A", 1), ("B", 1)]


@pytest.mark.guarantee("G19", "G22")
async def test_a_policy_that_comes_to_require_approval_holds_what_has_not_begun(
    world: World,
) -> None:
    go = asyncio.Event()

    @tool
    async def act(order: str) -> str:
        world.ledger.starts.append(order)
        await go.wait()
        return "acted"

    calls = tool_calls([tool_call("act", order="A"), tool_call("act", order="B")])
    one = await world.worker("w1", act, says=(calls, text("done")), concurrency=1)
    run_id = await one.submit()
    await until(lambda: world.ledger.starts == ["A"])
    entry = ToolEntry(name="act", settings={"requires_approval": True})
    one.handler.use_policies([ToolPolicyRules(name="p", tools=[entry])])
    go.set()
    (asked,) = await world.seen(ev.APPROVAL_REQUESTED)
    assert asked.data["reason"] == "requires_approval"
    assert world.ledger.starts == ["A"]
    await until(lambda: bool(_waiting(world, run_id)))
    await world.client.approve(run_id, asked.data["call_id"], by="me")
    assert await one.text() == "done"
    assert world.ledger.starts == ["A", "B"]
