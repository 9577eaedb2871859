"""Cancelling, timers and deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from aaa import events as ev
from aaa.algos import RunState, complete, set_timer
from aaa.errors import DecisionRefused
from aaa.events import Event
from aaa.llm import ModelReply, ModelRequest
from aaa.llm.fake import text, tool_call, tool_calls
from aaa.store import port
from aaa.tools import Done, NotDone, tool
from guarantees.world import SHORT_S, Link, World, until, within

CALLS_ACT = (tool_call("act"),)


async def seen_done() -> Any:
    return Done("seen")


async def not_seen() -> Any:
    return NotDone()


@pytest.mark.guarantee("L13", "G4", "G5")
@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"delivery": "at_least_once"}, "Cancelled"),
        ({"delivery": "at_most_once"}, "OutcomeUnknown"),
        ({"delivery": "at_most_once", "verify": not_seen}, "OutcomeUnknown"),
        ({"delivery": "at_most_once", "verify": seen_done}, None),
    ],
    ids=["at_least_once", "at_most_once", "not seen", "seen"],
)
async def test_cancelling_stops_a_tool_in_flight_and_ends_when_its_outcome_is_known(
    world: World, settings: dict[str, Any], wanted: str | None
) -> None:
    stopped: list[bool] = []

    @tool(**settings)
    async def act() -> str:
        world.ledger.starts.append(1)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)
        return "never"

    one = await world.worker("w1", act, says=CALLS_ACT)
    run_id = await one.submit()
    await until(lambda: bool(world.ledger.starts))
    await world.client.cancel(run_id, by="me", reason="enough")
    outcome = await one.text()
    assert outcome.status == "cancelled"
    assert stopped == [True]
    types = await world.types()
    result = types.index("tool.completed" if wanted is None else "tool.failed")
    assert types.index("run.cancel_requested") < result < types.index("run.cancelled")
    assert types[-1] == "run.cancelled"
    assert await world.failures() == ([] if wanted is None else [wanted])
    for failed in await world.of(ev.TOOL_FAILED):
        assert failed.data["effect"] == "unknown"
    assert world.ledger.starts == [1]


@pytest.mark.guarantee("L13", "G19")
async def test_cancelling_ends_calls_that_wait_for_a_person(world: World) -> None:
    @tool(requires_approval=True)
    async def act() -> str:
        world.ledger.starts.append(1)
        return "acted"

    one = await world.worker("w1", act, says=CALLS_ACT)
    run_id = await one.submit()
    (asked,) = await world.seen(ev.APPROVAL_REQUESTED)
    await world.client.cancel(run_id, by="me")
    assert (await one.text()).status == "cancelled"
    assert await world.failures() == ["NotExecuted"]
    with pytest.raises(DecisionRefused, match="does not wait"):
        await world.client.approve(run_id, asked.data["call_id"], by="me")
    assert world.ledger.starts == []
    assert await world.client.pending() == []


@pytest.mark.guarantee("L13")
async def test_cancelling_starts_nothing_that_had_not_begun(world: World) -> None:
    @tool
    async def act(number: int) -> str:
        world.ledger.starts.append(number)
        await asyncio.Event().wait()
        return "never"

    calls = tool_calls([tool_call("act", number=n) for n in range(5)])
    one = await world.worker("w1", act, says=(calls,), concurrency=2)
    run_id = await one.submit()
    await until(lambda: len(world.ledger.starts) == 2)
    await world.client.cancel(run_id, by="me")
    assert (await one.text()).status == "cancelled"
    assert sorted(await world.failures()) == ["Cancelled"] * 2 + ["NotExecuted"] * 3
    assert len(world.ledger.starts) == 2


@pytest.mark.guarantee("L13", "G18")
async def test_cancelling_waits_for_unguarded_calls_without_turning_round(world: World) -> None:
    """The log does not show that they have begun; the store knows it."""
    go = asyncio.Event()

    @tool(guard={"enabled": False})
    async def act(number: int) -> str:
        world.ledger.starts.append(number)
        try:
            await go.wait()
        except asyncio.CancelledError:
            await go.wait()
        return "acted"

    link = Link(world.store)
    calls = tool_calls([tool_call("act", number=n) for n in range(3)])
    one = await world.worker("w1", act, says=(calls,), concurrency=2, link=link)
    run_id = await one.submit()
    await until(lambda: len(world.ledger.starts) == 2)
    before = len(link.committed)
    await world.client.cancel(run_id, by="me")
    await world.seen(ev.RUN_CANCEL_REQUESTED)
    for _ in range(100):
        await asyncio.sleep(0.001)
    assert len(link.committed) - before < 30
    assert await world.of(ev.RUN_CANCELLED) == []
    go.set()
    assert (await one.text()).status == "cancelled"
    assert len(world.ledger.starts) == 2


@pytest.mark.guarantee("L13")
async def test_a_cancelled_run_does_not_wait_for_a_models_answer(world: World) -> None:
    asked = asyncio.Event()

    async def model(request: ModelRequest) -> ModelReply:
        asked.set()
        await asyncio.Event().wait()
        return text("never")

    one = await world.worker("w1", model=model)
    run_id = await one.submit()
    await within(asked.wait())
    await world.client.cancel(run_id, by="me")
    assert (await one.text()).status == "cancelled"
    assert (await world.types())[-1] == "run.cancelled"


@pytest.mark.guarantee("L14", "L13")
async def test_a_runs_deadline_cancels_it(world: World) -> None:
    @tool
    async def act() -> str:
        await asyncio.Event().wait()
        return "never"

    one = await world.worker("w1", act, says=CALLS_ACT)
    await one.submit(deadline_s=0.1)
    assert (await one.text()).status == "cancelled"
    (asked,) = await world.of(ev.RUN_CANCEL_REQUESTED)
    assert asked.data == {"by": "aaa", "reason": "deadline"}
    (fired,) = await world.of(ev.TIMER_FIRED)
    assert fired.id == f"{fired.parent}:fired"


class Timed:
    """Sets a timer, and ends when it has fired."""

    name, version = "timed", "1"

    def __init__(self, after_s: float) -> None:
        self.after_s = after_s

    def decide(self, event: Event, state: RunState) -> Iterable[Event]:
        assert state.root is not None
        if state.seq == 1:
            return [set_timer(state.root, name="alarm", after_s=self.after_s)]
        if state.timers_fired:
            return [complete(state.timers_fired[0], {"text": "woken"})]
        return []


@pytest.mark.guarantee("L14", "L9")
async def test_a_timer_outlives_its_owner_and_fires_once(world: World) -> None:
    one = await world.worker("w1", algorithm=Timed(0.3), worker_ttl_s=SHORT_S)
    run_id = await one.submit()
    await world.seen(ev.TIMER_SET)
    await one.engine.kill()
    two = await world.worker("w2", algorithm=Timed(0.3), worker_ttl_s=SHORT_S)
    three = await world.worker("w3", algorithm=Timed(0.3), worker_ttl_s=SHORT_S)
    assert await two.text(run_id) == "woken"
    assert await three.text(run_id) == "woken"
    assert (await world.types(run_id)) == [
        "run.requested",
        "timer.set",
        "timer.fired",
        "run.completed",
    ]
    set_, fired = (await world.log(run_id))[1:3]
    assert fired.id == f"{set_.id}:fired"
    assert fired.time - set_.time >= 300


@pytest.mark.guarantee("L14")
async def test_a_lost_reply_fires_a_timer_once(world: World) -> None:
    link = Link(world.store)

    def fires(operation: port.Operation) -> bool:
        rows = world.store._of("run")
        return any(e.type == ev.TIMER_FIRED for e in rows.events.get("run", ())) and isinstance(
            operation, port.Take
        )

    link.lose_reply(fires)
    one = await world.worker("w1", algorithm=Timed(0.02), link=link)
    assert await one.run() == "woken"
    assert len(await world.of(ev.TIMER_FIRED)) == 1


@pytest.mark.guarantee("L13")
async def test_a_suspended_run_goes_on_only_when_it_is_resumed(world: World) -> None:
    go = asyncio.Event()

    @tool
    async def act() -> str:
        world.ledger.starts.append(1)
        await go.wait()
        return "acted"

    one = await world.worker("w1", act, says=(*CALLS_ACT, *CALLS_ACT, text("done")))
    run_id = await one.submit()
    await until(lambda: bool(world.ledger.starts))
    await world.client.suspend(run_id, by="me")
    go.set()
    await world.seen(ev.TOOL_COMPLETED)  # what runs ends; nothing new begins
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert (await world.types())[-1] == "tool.completed"
    await world.client.resume(run_id, by="me")
    assert await one.text() == "done"
    assert len(world.ledger.starts) == 2
