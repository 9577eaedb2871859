"""Leases: renewed from a thread, trusted no longer than they can last, taken over when they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from aaa import events as ev
from aaa.llm.fake import tool_call
from aaa.policy import GuardConfig
from aaa.store import port
from aaa.tools import ToolContext, tool
from guarantees.world import (
    SHORT_S,
    Link,
    Process,
    Shifted,
    World,
    acquainted,
    claims_tool,
    run_of,
    until,
)

BOTH = pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
SHORT = GuardConfig(lease_ttl_s=SHORT_S, wait_poll_s=0.1)
CALLS_ACT = (tool_call("act"),)


@pytest.fixture
async def process() -> AsyncIterator[Process]:
    made = Process()
    yield made
    await made.close()


@pytest.mark.guarantee("G14")
async def test_a_dead_workers_call_is_taken_over_within_its_ttl_and_poll(world: World) -> None:
    """The heir's own heartbeat is slow; it must look in time all the same."""
    started: list[float] = []

    @tool
    async def act(ctx: ToolContext) -> str:
        started.append(time.monotonic())
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return "acted"

    guard = GuardConfig(lease_ttl_s=0.5, wait_poll_s=0.2)
    one = await world.worker("w1", act, says=CALLS_ACT, guard=guard)
    two = await world.worker("w2", act, says=CALLS_ACT, guard=guard)
    await acquainted(one, two)
    await one.submit(run_of("w1", "w2"))
    await until(lambda: bool(started))
    died = time.monotonic()
    await one.engine.kill()
    await until(lambda: len(started) == 2, "the second attempt")
    assert started[1] - died < 0.5 + 0.2 + 0.05


@pytest.mark.guarantee("G10", "G2")
async def test_a_repeated_claim_is_trusted_only_from_its_first_request_on(world: World) -> None:
    """The reply is lost, and the store stays away for longer than the lease: do not run on."""

    @tool(delivery="at_most_once")
    async def act(ctx: ToolContext) -> str:
        world.ledger.starts.append(ctx.attempt)
        return "acted"

    link, clock = Link(world.store), Shifted()
    guard = GuardConfig(lease_ttl_s=60)
    one = await world.worker("w1", act, says=CALLS_ACT, guard=guard, link=link, clock=clock)

    def lost(operation: port.Operation) -> bool:
        if claims_tool(operation):
            link.cut = True  # and nothing gets through for a while
            return True
        return False

    link.lose_reply(lost)
    await one.submit()
    await world.seen(ev.TOOL_STARTED)
    clock.ahead_s += (
        100  # the machine sleeps through the lease, and only the worker's clock shows it
    )
    beats = link.pulses
    link.cut = False
    await until(lambda: link.pulses > beats, "a heartbeat")
    assert await one.text() == "acted"  # the store's clock says that the lease is still there
    (lease,) = [
        op
        for op in link.committed
        if isinstance(op, port.Settle) and op.outcome.type == ev.TOOL_COMPLETED
    ]
    assert lease.attempt == 1
