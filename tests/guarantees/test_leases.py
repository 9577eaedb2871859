"""Leases: renewed from a thread, trusted no longer than they can last, taken over when they end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aaa import events as ev
from aaa.ids import partition_of
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
    within,
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
    link = Link(world.store)
    one = await world.worker("w1", act, says=CALLS_ACT, guard=guard, link=link)
    heard = Link(world.store)
    two = await world.worker("w2", act, says=CALLS_ACT, guard=guard, link=heard)
    await acquainted(one, two)
    arrived, go = link.hold(claims_tool)
    await one.submit(run_of("w1", "w2"))
    await within(arrived.wait())
    # No hint of the call's lease reaches the heir: neither a visit nor a heartbeat is under way.
    beats = -1
    while beats != heard.pulses or two.engine._heartbeat._wake.is_set():
        beats = heard.pulses
        await asyncio.sleep(0.06)
    await until(lambda: not two.engine._visits._visits)
    go.set()
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


def lasting(world: World, **settings: Any) -> tuple[Any, asyncio.Event, list[str]]:
    """A tool ``act`` whose first attempt waits for the event, and says what became of it."""
    go, ended = asyncio.Event(), []

    @tool(**settings)
    async def act(ctx: ToolContext) -> str:
        world.ledger.starts.append(ctx.attempt)
        if ctx.attempt > 1:
            return f"attempt {ctx.attempt}"
        try:
            await go.wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        ended.append("finished")
        return "attempt 1"

    return act, go, ended


@pytest.mark.guarantee("G10", "G9")
@BOTH
async def test_a_worker_that_cannot_renew_stops_its_tool_before_the_lease_ends(
    world: World, delivery: str
) -> None:
    left_ms: list[int] = []

    @tool(delivery=delivery)
    async def act(ctx: ToolContext) -> str:
        world.ledger.starts.append(ctx.attempt)
        if ctx.attempt > 1:
            return "attempt 2"
        rows = world.store._of(ctx.run_id)
        (call,) = [
            each
            for each in rows._calls[ctx.run_id].values()
            if each.queue.startswith(port.TOOL_QUEUE)
        ]
        try:
            await asyncio.Event().wait()
        finally:
            left_ms.append(call.due_ms - rows.now_ms())
        return "never"

    link = Link(world.store)
    guard = GuardConfig(lease_ttl_s=1.0, wait_poll_s=0.1)
    one = await world.worker("w1", act, says=CALLS_ACT, guard=guard, link=link)
    run_id = await one.submit()
    await until(lambda: bool(world.ledger.starts))
    link.lost_pulses = 1_000_000
    (fenced,) = await world.seen(ev.TOOL_FENCED)
    assert left_ms[0] > 0, "the lease had ended at the store before the tool was stopped"
    assert fenced.data["attempt"] == 1
    assert fenced.data["stopped"] is True
    link.lost_pulses = 0
    said = await one.text(run_id)
    assert said.startswith("OutcomeUnknown") if delivery == "at_most_once" else said == "attempt 2"


@pytest.mark.guarantee("G10")
async def test_a_machine_that_slept_through_its_lease_does_not_trust_it_any_more(
    world: World,
) -> None:
    act, _, ended = lasting(world, delivery="at_most_once")
    link, clock = Link(world.store), Shifted()
    guard = GuardConfig(lease_ttl_s=60, heartbeat_s=0.05)
    one = await world.worker("w1", act, says=CALLS_ACT, guard=guard, link=link, clock=clock)
    await one.submit()
    await until(lambda: bool(world.ledger.starts))
    link.lost_pulses = 1_000_000
    clock.ahead_s += 60
    # The loop looks again when something happens to it, as it does when a machine wakes.
    (lease,) = one.engine._executor._leases.values()
    await until(lambda: clock.boot_s() > lease.trust_until_s)
    lease.tell("lost")
    await world.seen(ev.TOOL_FENCED)
    assert ended == ["cancelled"]


@pytest.mark.guarantee("G11")
@BOTH
async def test_a_failed_renewal_is_tried_again_and_ends_neither_heartbeat_nor_tool(
    world: World, delivery: str
) -> None:
    act, go, ended = lasting(world, delivery=delivery)
    link = Link(world.store)
    guard = GuardConfig(lease_ttl_s=1.5, heartbeat_s=0.4)
    one = await world.worker("w1", act, says=CALLS_ACT, guard=guard, link=link)
    await one.submit()
    await until(lambda: bool(world.ledger.starts))
    (lease,) = one.engine._executor._leases.values()
    before = lease.trust_until_s
    link.lost_pulses = 2
    await until(lambda: link.lost_pulses < 0 and lease.trust_until_s > before, "a renewal")
    go.set()
    assert await one.text() == "attempt 1"
    assert ended == ["finished"]
    assert "tool.fenced" not in await world.types()


@pytest.mark.guarantee("G9", "G5")
async def test_a_worker_that_learns_of_its_loss_cancels_the_tool_and_records_no_result(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="aaa")
    act, _, ended = lasting(world)
    link = Link(world.store)
    guard = GuardConfig(lease_ttl_s=60, heartbeat_s=0.05)
    one = await world.worker("w1", act, says=CALLS_ACT, guard=guard, link=link)
    run_id = await one.submit()
    await until(lambda: bool(world.ledger.starts))
    rows = world.store._of(run_id)
    (call,) = [c for c in rows._calls[run_id].values() if c.queue.startswith(port.TOOL_QUEUE)]
    call.due_ms = rows.now_ms() - 1  # whatever made it end: the store says that it has
    rows.save_call(call)
    assert await one.text(run_id) == "attempt 2"
    assert ended == ["cancelled"]
    (fenced,) = await world.of(ev.TOOL_FENCED)
    (done,) = await world.of(ev.TOOL_COMPLETED)
    assert (fenced.data["attempt"], done.data["attempt"]) == (1, 2)
    assert "tool.stale_result" not in await world.types()
    told = {getattr(each, "event", ""): each.getMessage() for each in caplog.records}
    assert told["aaa.call.lease_lost"] == "act lost its lease in attempt 1, and was stopped"
    assert told["aaa.call.taken_over"] == "act was lost: running it again, attempt 2"


@pytest.mark.guarantee("G9")
async def test_a_tool_that_cannot_be_stopped_is_named_and_its_worker_claims_nothing_more(
    world: World,
) -> None:
    let_go = threading.Event()

    @tool
    def stuck(ctx: ToolContext) -> str:
        world.ledger.starts.append(ctx.attempt)
        let_go.wait(30)
        return "late"

    link = Link(world.store)
    guard = GuardConfig(lease_ttl_s=SHORT_S, wait_poll_s=0.1)
    how: dict[str, Any] = {"says": (tool_call("stuck"),), "guard": guard}
    one = await world.worker("w1", stuck, link=link, handler={"cancel_grace_s": 0.01}, **how)
    try:
        run_id = await one.submit()
        await until(lambda: bool(world.ledger.starts))
        link.lost_pulses = 1_000_000
        (fenced,) = await world.seen(ev.TOOL_FENCED)
        assert (fenced.data["name"], fenced.data["stopped"]) == ("stuck", False)
        assert one.engine.unstoppable == ["stuck"]
        link.lost_pulses = 0
        partition = world.store._partitions.index(world.store._of(run_id))
        for _ in range(60):
            one.engine._visits.soon(partition)
            await asyncio.sleep(0.005)
        assert world.ledger.starts == [1], "it claims beside a tool that cannot be stopped"
    finally:
        let_go.set()


@pytest.mark.guarantee("G9", "G1")
async def test_a_draining_worker_does_not_hand_on_a_call_that_it_cannot_stop(
    world: World,
) -> None:
    let_go = threading.Event()

    @tool
    def stuck(ctx: ToolContext) -> str:
        world.ledger.starts.append(ctx.attempt)
        let_go.wait(30)
        return "late"

    one = await world.worker(
        "w1", stuck, says=(tool_call("stuck"),), handler={"cancel_grace_s": 0.01}
    )
    try:
        run_id = await one.submit()
        await until(lambda: bool(world.ledger.starts))
        await within(one.engine.stop(drain_timeout_s=0.01))
        rows = world.store._of(run_id)
        (call,) = [c for c in rows._calls[run_id].values() if c.queue.startswith(port.TOOL_QUEUE)]
        assert call.due_ms > rows.now_ms()  # its lease is left to run out
    finally:
        let_go.set()


@pytest.mark.guarantee("G12")
@BOTH
async def test_a_tool_that_blocks_the_event_loop_keeps_its_lease(
    world: World, process: Process, delivery: str
) -> None:
    @tool(delivery=delivery)
    async def act(ctx: ToolContext) -> str:
        world.ledger.starts.append(ctx.attempt)
        threading.Event().wait(4 * SHORT_S)  # async in name only
        return f"attempt {ctx.attempt}"

    guard = GuardConfig(lease_ttl_s=2 * SHORT_S, wait_poll_s=0.05, heartbeat_s=0.05)
    how: dict[str, Any] = {"says": CALLS_ACT, "guard": guard, "worker_ttl_s": 2 * SHORT_S}
    one = await process.do(world.worker("w1", act, **how))
    two = await world.worker("w2", act, **how)
    await acquainted(one, two)
    run_id = run_of("w1", "w2")
    await process.do(one.submit(run_id))
    assert await two.text(run_id) == "attempt 1"
    assert world.ledger.starts == [1]
    assert "tool.fenced" not in await world.types(run_id)
    await process.do(one.engine.kill())


@pytest.mark.guarantee("G12", "G14")
async def test_a_frozen_process_renews_nothing_and_loses_its_call(
    world: World, process: Process
) -> None:
    thaw = threading.Event()
    link = Link(world.store)

    @tool
    async def act(ctx: ToolContext) -> str:
        world.ledger.starts.append(ctx.attempt)
        if ctx.attempt == 1:
            link.cut = True  # its threads stand still as well
            thaw.wait(30)
        return f"attempt {ctx.attempt}"

    how: dict[str, Any] = {"says": CALLS_ACT, "guard": SHORT, "worker_ttl_s": 2 * SHORT_S}
    one = await process.do(world.worker("w1", act, link=link, **how))
    two = await world.worker("w2", act, **how)
    await acquainted(one, two)
    run_id = run_of("w1", "w2")
    await process.do(one.submit(run_id))
    assert await two.text(run_id) == "attempt 2"
    link.cut = False
    thaw.set()
    (stale,) = await world.seen(ev.TOOL_STALE_RESULT, run_id)
    assert stale.data["attempt"] == 1
    assert world.ledger.starts == [1, 2]
    await process.do(one.engine.kill())


@pytest.mark.guarantee("G12")
async def test_a_loop_that_is_blocked_beyond_the_limit_ends_its_worker(
    world: World, process: Process
) -> None:
    let_go = threading.Event()
    blocked: list[float] = []

    @tool
    async def act(ctx: ToolContext) -> str:
        world.ledger.starts.append(ctx.attempt)
        if ctx.attempt == 1:
            let_go.wait(30)
        return f"attempt {ctx.attempt}"

    how: dict[str, Any] = {"says": CALLS_ACT, "guard": SHORT, "worker_ttl_s": 2 * SHORT_S}
    one = await process.do(
        world.worker("w1", act, loop_block_limit_s=0.3, on_blocked=blocked.append, **how)
    )
    try:
        run_id = await process.do(one.submit())
        await until(lambda: bool(blocked), "the verdict that the loop hangs")
        assert blocked[0] >= 0.3
        two = await world.worker("w2", act, **how)
        assert await two.text(run_id) == "attempt 2"  # it renews nothing more
    finally:
        let_go.set()
        await process.do(one.engine.kill())


@pytest.mark.guarantee("G12")
async def test_a_machines_sleep_is_not_taken_for_a_blocked_loop(world: World) -> None:
    @tool
    async def act() -> str:
        return "acted"

    blocked: list[float] = []
    clock, link = Shifted(), Link(world.store)
    one = await world.worker(
        "w1",
        act,
        says=CALLS_ACT,
        clock=clock,
        link=link,
        on_blocked=blocked.append,
        worker_ttl_s=0.3,
    )
    await until(lambda: link.pulses > 1)
    clock.ahead_s += 3_600
    beats = link.pulses
    await until(lambda: link.pulses > beats + 3, "heartbeats after the sleep")
    assert blocked == []
    assert await one.run() == "acted"


@pytest.mark.guarantee("L7")
async def test_one_engine_that_ends_does_not_make_others_on_its_store_deaf(world: World) -> None:
    @tool(requires_approval=True)
    async def act() -> str:
        return "acted"

    one = await world.worker("w1", act, says=CALLS_ACT)
    two = await world.worker("w2", act, says=CALLS_ACT)
    await within(two.engine.stop())
    run_id = await one.submit()
    (asked,) = await world.seen(ev.APPROVAL_REQUESTED)
    await world.client.approve(run_id, asked.data["call_id"], by="me")
    assert await within(one.text(), 3.0) == "acted"  # without waiting for a heartbeat


@pytest.mark.guarantee("G9", "G10")
async def test_a_slot_is_free_again_though_its_own_worker_has_taken_the_call_over(
    world: World,
) -> None:
    """A claim's reply came when its lease had ended, and the heartbeat was cut off meanwhile."""
    began: list[int] = []

    @tool
    async def act(ctx: ToolContext) -> str:
        began.append(ctx.attempt)
        return "acted"

    link = Link(world.store)
    one = await world.worker("w1", act, says=CALLS_ACT, guard=SHORT, link=link, concurrency=4)
    run_id = run_of("w1")
    partition = partition_of(run_id, world.store.partitions)
    link.lose_reply(claims_tool)
    await one.submit(run_id)
    await until(lambda: any(map(claims_tool, link.committed)))
    link.lost_pulses = 1_000_000
    arrived, go = link.hold(claims_tool)  # the same batch again
    await within(arrived.wait())
    await asyncio.sleep(SHORT_S * 1.5)
    go.set()
    await until(lambda: one.engine._executor.busy == 1, "the stale claim")
    one.engine._visits.soon(partition)
    await until(lambda: began == [2], "the second attempt")
    link.lost_pulses = 0
    assert await one.text(run_id) == "acted"
    await until(lambda: one.engine._executor.busy == 0, "free slots")
    assert began == [2]
