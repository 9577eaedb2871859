"""The log: what stands in it, in which order, and who may decide."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

import pytest

from aaa import events as ev
from aaa.algos import RunState, ToolLoop, complete
from aaa.errors import RunConflict, RunDeleted, RunNotFound, StoreUnavailable
from aaa.events import Event
from aaa.ids import canonical, derive
from aaa.llm import ModelReply, ModelRequest
from aaa.llm.fake import text, tool_call, tool_calls
from aaa.store import port
from aaa.tools import ToolContext, ToolRegistry, tool
from guarantees.world import (
    SHORT_S,
    Link,
    World,
    acquainted,
    claims_tool,
    until,
    within,
)

CALLS_ACT = (tool_call("act"),)


@pytest.mark.guarantee("L1")
async def test_no_effect_starts_before_its_cause_is_in_the_store(world: World) -> None:
    @tool
    async def act(ctx: ToolContext) -> str:
        events = await world.store.read(ctx.run_id)
        request = next(e for e in events if e.type == ev.TOOL_REQUESTED)
        assert request.data["call_id"] == ctx.call_id
        assert any(e.type == ev.TOOL_STARTED and e.parent == request.id for e in events)
        return "acted"

    link = Link(world.store)
    one = await world.worker("w1", act, says=CALLS_ACT, link=link)
    arrived, go = link.hold(claims_tool)
    await one.submit()
    await within(arrived.wait())
    for _ in range(20):
        await asyncio.sleep(0)
    assert await world.of(ev.TOOL_REQUESTED) == []
    go.set()
    assert await one.text() == "acted"


@pytest.mark.guarantee("L2", "L10")
async def test_replies_lost_at_every_step_leave_each_event_once(world: World) -> None:
    @tool
    async def act() -> str:
        world.ledger.effects.append("act")
        return "acted"

    link = Link(world.store)
    for _ in range(4):
        link.lose_reply(lambda op: not isinstance(op, port.Claim | port.Take))
    one = await world.worker("w1", act, says=CALLS_ACT, link=link)
    assert await one.run() == "acted"
    events = await world.log()
    assert len({event.id for event in events}) == len(events)
    assert [event.type.removeprefix("aaa.") for event in events] == [
        "run.requested",
        "llm.requested",
        "llm.completed",
        "tool.requested",
        "tool.started",
        "tool.completed",
        "llm.requested",
        "llm.completed",
        "run.completed",
    ]
    assert world.ledger.effects == ["act"]


@pytest.mark.guarantee("L2")
async def test_submitting_a_run_again_is_the_same_run_and_other_input_is_refused(
    world: World,
) -> None:
    one = await world.worker("w1", says=(text("hello"),))
    first = await one.engine.submit(one.algorithm, {"task": "go"}, "run")
    again = await one.engine.submit(one.algorithm, {"task": "go"}, "run")
    assert (first.dup, again.dup) == (False, True)
    with pytest.raises(RunConflict, match="other input"):
        await one.engine.submit(one.algorithm, {"task": "stay"}, "run")
    assert await one.text() == "hello"
    assert (await world.types()).count("run.requested") == 1


@pytest.mark.guarantee("L3")
async def test_seqs_are_dense_in_every_run_however_many_calls_run_at_once(world: World) -> None:
    @tool
    async def act(number: int) -> int:
        await asyncio.sleep(0)
        return number

    calls = tool_calls([tool_call("act", number=n) for n in range(8)])
    one = await world.worker("w1", act, says=(calls, calls))
    await asyncio.gather(*(one.run(f"run-{n}") for n in range(5)))
    for n in range(5):
        events = await world.log(f"run-{n}")
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert {event.run_id for event in events} == {f"run-{n}"}


@pytest.mark.guarantee("L4")
async def test_the_same_run_gets_the_same_ids_in_every_world() -> None:
    async def ids() -> list[tuple[str, str]]:
        made = World()

        @tool
        async def act(order: str) -> str:
            return f"acted on {order}"

        one = await made.worker("w1", act, says=(tool_call("act", order="é"),))
        await one.run()
        events = await made.log()
        await made.close()
        return [(event.type, event.id) for event in events]

    assert await ids() == await ids()
    parent = Event(id="p", run_id="r", type="t", raw=b"{}", parent=None)
    caused = parent.caused("aaa.x", {"b": 1, "a": [1.5, None, "é"]})
    assert caused.raw == '{"a":[1.5,null,"é"],"b":1}'.encode()
    assert caused.id == derive("p", "aaa.x", canonical({"a": [1.5, None, "é"], "b": 1}))
    assert caused.id != parent.caused("aaa.x", {"b": 1.0, "a": [1.5, None, "é"]}).id
    assert caused.id == "079e80df5dc1173ab311f4f3337dc9af"


@pytest.mark.guarantee("L6", "L7")
async def test_a_stored_request_is_always_on_the_bus_until_it_has_its_result(
    world: World,
) -> None:
    """Its worker dies before, during and after the attempt; each time another one goes on."""

    @tool
    async def act(ctx: ToolContext) -> str:
        world.ledger.starts.append(ctx.attempt)
        if len(world.ledger.starts) == 1:
            await asyncio.Event().wait()
        return "acted"

    one = await world.worker("w1", act, says=CALLS_ACT, worker_ttl_s=SHORT_S)
    run_id = await one.submit()
    await until(lambda: bool(world.ledger.starts))
    rows = world.store._of(run_id)
    calls = [c for c in rows._calls[run_id].values() if c.queue.startswith(port.TOOL_QUEUE)]
    assert [call.state for call in calls] == ["leased"]
    await one.engine.kill()
    calls[0].due_ms = rows.now_ms()  # its lease ends
    rows.save_call(calls[0])
    two = await world.worker("w2", act, says=CALLS_ACT, worker_ttl_s=SHORT_S)
    assert await two.text(run_id) == "acted"
    assert world.ledger.starts == [1, 2]
    assert [call.state for call in calls] == ["settled"]


@pytest.mark.guarantee("L5")
async def test_of_two_outcomes_of_one_request_the_first_is_the_result(world: World) -> None:
    go = asyncio.Event()

    @tool(delivery="at_most_once", guard={"on_lost_lease": "finish"})
    async def act() -> str:
        await go.wait()
        return "late"

    one = await world.worker("w1", act, says=CALLS_ACT)
    run_id = await one.submit()
    (started,) = await world.seen(ev.TOOL_STARTED)
    call = world.store._of(run_id).call(run_id, started.parent or "")
    assert call is not None
    # Another worker of the pool settles the same request first.
    outcome = (await world.of(ev.TOOL_REQUESTED))[0].named(
        f"{started.parent}:result",
        ev.TOOL_COMPLETED,
        {"attempt": 1, "call_id": "c3-0", "name": "act", "result": "first"},
    )
    partition = world.store._partitions.index(world.store._of(run_id))
    settle = port.Settle(
        run_id=run_id,
        request_id=started.parent or "",
        attempt=1,
        worker="w1",
        outcome=outcome,
    )
    await world.store.commit(partition, [settle])
    go.set()
    assert await one.text() == "first"
    await world.seen(ev.TOOL_STALE_RESULT)
    assert [e.data["result"] for e in await world.of(ev.TOOL_COMPLETED)] == ["first"]


@pytest.mark.guarantee("L8", "L9")
async def test_an_owner_that_has_lost_its_partition_decides_nothing_more(world: World) -> None:
    """Its decision is on its way while the partition moves to another worker."""

    @tool
    async def act(ctx: ToolContext) -> str:
        world.ledger.effects.append(ctx.call_id)
        return "acted"

    link = Link(world.store)
    short: dict[str, Any] = {"worker_ttl_s": SHORT_S, "llm": {"lease_ttl_s": SHORT_S}}
    one = await world.worker("w1", act, says=CALLS_ACT, link=link, **short)
    arrived, go = link.hold(claims_tool)
    run_id = await one.submit()
    await within(arrived.wait())
    link.lost_pulses = 1_000_000  # it is cut off, and its ownership runs out
    two = await world.worker("w2", act, says=CALLS_ACT, **short)
    assert await two.text(run_id) == "acted"
    before = await world.log(run_id)
    go.set()
    await until(lambda: any(map(claims_tool, link.committed)), "the late decision")
    for _ in range(20):
        await asyncio.sleep(0)
    assert await world.log(run_id) == before
    assert len(world.ledger.effects) == 1


@pytest.mark.guarantee("L8")
async def test_a_decision_taken_at_a_head_that_has_moved_is_refused_and_taken_again(
    world: World,
) -> None:
    @tool
    async def act(ctx: ToolContext) -> str:
        world.ledger.effects.append(ctx.call_id)
        return "acted"

    link = Link(world.store)
    one = await world.worker("w1", act, says=CALLS_ACT, link=link)
    arrived, go = link.hold(claims_tool)
    run_id = await one.submit()
    await within(arrived.wait())
    await world.client.cancel(run_id, by="me")  # meanwhile
    go.set()
    outcome = await one.text()
    assert outcome.status == "cancelled"
    assert world.ledger.effects == []
    assert await world.of(ev.TOOL_REQUESTED) == []


@pytest.mark.guarantee("L9", "L8")
async def test_a_moving_partition_skips_nothing_and_repeats_nothing(world: World) -> None:
    """Workers come and die while many runs go on; every call has one effect for each attempt."""

    @tool
    async def act(number: int, ctx: ToolContext) -> str:
        world.ledger.effects.append((ctx.run_id, number))
        await asyncio.sleep(0.002)
        return str(number)

    def model(request: ModelRequest) -> ModelReply:
        said = sum(message.role == "assistant" for message in request.messages)
        return tool_call("act", number=said) if said < 4 else text("done")

    how: dict[str, Any] = {"model": model, "worker_ttl_s": SHORT_S * 2}
    how["llm"] = {"lease_ttl_s": SHORT_S, "max_attempts": 10}
    one = await world.worker("w1", act, **how)
    runs = [await one.submit(f"run-{n}") for n in range(12)]
    two = await world.worker("w2", act, **how)
    three = await world.worker("w3", act, **how)
    await acquainted(one, two, three)
    await within(one.engine.stop())  # a clean move
    for run_id in runs:
        assert await two.text(run_id) == "done"
    for run_id in runs:
        events = await world.log(run_id)
        assert sum(e.type == ev.TOOL_REQUESTED for e in events) == 4
        assert sum(e.type == ev.RUN_COMPLETED for e in events) == 1
        assert len({e.id for e in events}) == len(events)
    started = 0
    for run_id in runs:
        started += len(await world.of(ev.TOOL_STARTED, run_id))
    assert len(world.ledger.effects) == started


@pytest.mark.guarantee("L9")
async def test_who_waits_at_the_old_owner_hears_of_an_end_at_the_new_one(world: World) -> None:
    go = asyncio.Event()

    @tool
    async def act() -> str:
        await go.wait()
        return "acted"

    link = Link(world.store)
    one = await world.worker("w1", act, says=CALLS_ACT, link=link, worker_ttl_s=SHORT_S)
    run_id = await one.submit()
    waiting = asyncio.create_task(one.text(run_id))
    await world.seen(ev.TOOL_STARTED)
    link.lost_pulses = 1_000_000
    rows = world.store._of(run_id)
    await until(lambda: all(o.until_ms <= rows.now_ms() for o in rows._owners.values()))
    two = await world.worker("w2", act, says=CALLS_ACT, worker_ttl_s=SHORT_S)
    link.lost_pulses = 0
    go.set()
    assert await two.text(run_id) == "acted"
    assert await within(waiting) == "acted"


@pytest.mark.guarantee("L10")
async def test_asking_an_algorithm_again_about_any_event_yields_nothing_new(
    world: World,
) -> None:
    @tool
    async def act() -> str:
        return "acted"

    one = await world.worker("w1", act, says=CALLS_ACT)
    await one.run()
    events = await world.log()
    state = RunState("run")
    for event in events:
        state.fold(event)
        if state.status == "open" and event.type not in (ev.TOOL_COMPLETED, ev.LLM_COMPLETED):
            drafts = list(one.algorithm.decide(event, state))
            known = {each.id for each in events}
            for draft in drafts:  # what it still wants is what the log has next
                assert draft.type == events[event.seq].type
                assert draft.id in known or draft.type == ev.TOOL_REQUESTED
    # Waking the owner for no reason, and asking twice, appends nothing.
    seen = len(await world.log())
    for _ in range(3):
        one.engine._on_wake(world.store._partitions.index(world.store._of("run")))
        await asyncio.sleep(0)
    assert len(await world.log()) == seen


class Stubborn:
    """Yields its request again whatever the state says: it breaks the contract."""

    name, version = "stubborn", "1"

    def decide(self, event: Event, state: RunState) -> Iterable[Event]:
        assert state.root is not None
        return [state.root.caused("note", {"n": 1})]


@pytest.mark.guarantee("L10", "L11")
async def test_an_algorithm_that_never_has_enough_is_parked_and_adds_no_event_twice(
    world: World,
) -> None:
    one = await world.worker("w1", algorithm=Stubborn())
    await one.submit()
    await world.seen(ev.RUN_PARKED)
    events = await world.log()
    assert len({event.id for event in events}) == len(events)


class Raising:
    """Raises as long as it is told to."""

    name, version = "raising", "1"

    def __init__(self, how: str = "raise") -> None:
        self.asked, self.how = 0, how

    def decide(self, event: Event, state: RunState) -> Any:
        self.asked += 1
        assert state.root is not None
        match self.how:
            case "raise":
                raise ZeroDivisionError("what was that")
            case "half a character":
                raise ValueError("the log cannot hold \ud800")
            case "nonsense":
                return [{"type": "not an event"}]
            case "foreign":
                return [Event(id="x", run_id="other", type="note", raw=b"{}", parent=None)]
            case "incomplete":
                return [state.root.caused(ev.LLM_REQUESTED, {"call_id": "m1"})]
            case "reserved":
                return [state.root.caused(ev.TOOL_COMPLETED, {"result": 1})]
            case "unending":
                return [state.root.caused(ev.TIMER_SET, {"after_ms": 1 << 62, "name": "x"})]
            case "halves":
                return [state.root.caused(ev.TIMER_SET, {"after_ms": 1.5, "name": "x"})]
            case "unnamed":
                return [state.root.caused("two\nlines\0", {})]
        return [complete(state.root, {"text": f"by version {self.version}"})]


@pytest.mark.guarantee("L11")
@pytest.mark.parametrize(
    "how",
    [
        "raise",
        "half a character",
        "nonsense",
        "foreign",
        "incomplete",
        "reserved",
        "unending",
        "halves",
        "unnamed",
    ],
)
async def test_an_algorithm_that_fails_three_times_has_its_run_parked_and_others_go_on(
    world: World, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "aaa.owner")  # a report can hold no half of a character
    algorithm = Raising(how)
    one = await world.worker("w1", algorithm=algorithm, says=(text("hello"),))
    loop = ToolLoop(ToolRegistry([]))
    one.engine.serve(loop)
    run_id = await one.submit()
    (parked,) = await world.seen(ev.RUN_PARKED)
    assert parked.data["error"] == "AlgorithmError"
    assert "raising" in parked.data["message"]
    assert algorithm.asked == 3
    # The same partition's other runs go on.
    other = next(
        f"other-{n}" for n in range(100) if world.store._of(f"other-{n}") is world.store._of(run_id)
    )
    outcome = await within(one.engine.run(loop, {"task": "x"}, other))
    assert outcome.value == {"text": "hello"}
    assert (await world.client.info(run_id)).parked
    # Mended, and resumed by a person.
    algorithm.how = "fine"
    await world.client.resume(run_id, by="me")
    assert await one.text(run_id) == "by version 1"


class Versioned(Raising):
    """Another release of the same algorithm."""

    def __init__(self, version: str) -> None:
        super().__init__("fine")
        self.version = version


@pytest.mark.guarantee("L11")
@pytest.mark.parametrize("both", [False, True])
async def test_a_run_is_decided_by_the_version_that_it_was_begun_with(
    world: World, both: bool
) -> None:
    """Submitting it again at a worker with another version does not change that."""
    old, new = Versioned("1"), Versioned("2")
    old.how = "raise"
    one = await world.worker("w1", algorithm=old)
    run_id = await one.submit()
    await world.seen(ev.RUN_PARKED)
    old.how = "fine"
    if both:
        one.engine.serve(new)
        two = one.engine
    else:
        await one.engine.stop()
        two = (await world.worker("w2", algorithm=new)).engine
    await world.client.resume(run_id, by="me")
    again = await within(two.submit(new, {"task": "go"}, run_id))
    assert again.dup
    if both:
        assert await one.text(run_id) == "by version 1"
    else:
        for _ in range(3):
            two._on_wake(world.store._partitions.index(world.store._of(run_id)))
            await asyncio.sleep(0.01)
        assert (await world.client.info(run_id)).status == "open"


@pytest.mark.guarantee("L12")
async def test_a_deleted_run_stays_deleted(world: World) -> None:
    go = asyncio.Event()

    @tool
    async def act() -> str:
        world.ledger.starts.append(1)
        await go.wait()
        return "acted"

    one = await world.worker("w1", act, says=CALLS_ACT)
    run_id = await one.submit()
    waiting = asyncio.create_task(one.engine.wait(run_id))
    await until(lambda: bool(world.ledger.starts))
    assert await world.client.delete(run_id, force=True)
    go.set()  # its late outcome recreates nothing
    with pytest.raises(RunDeleted, match="deleted"):
        await within(waiting)
    assert await world.log(run_id) == []
    for _ in range(2):
        with pytest.raises(RunDeleted, match="deleted"):
            await one.submit(run_id)
        with pytest.raises(RunDeleted, match="deleted"):
            await one.engine.submit(one.algorithm, {"task": "another"}, run_id)
    assert await world.client.delete(run_id) is False
    assert await world.log(run_id) == []


async def test_following_a_run_from_beyond_its_end_ends_at_once(world: World) -> None:
    one = await world.worker("w1", says=(text("hello"),))
    run_id = await one.submit()
    await within(one.engine.wait(run_id))
    after = (await one.engine.events(run_id))[-1].seq

    async def rest() -> list[Event]:
        return [event async for event in one.engine.follow(run_id, after=after)]

    assert await within(rest()) == []


@pytest.mark.guarantee("L1")
async def test_who_waits_at_an_engine_that_stops_is_told(world: World) -> None:
    @tool
    async def act() -> str:
        await asyncio.Event().wait()
        return "never"

    one = await world.worker("w1", act, says=CALLS_ACT)
    run_id = await one.submit()
    waiting = asyncio.create_task(one.engine.wait(run_id))
    await world.seen(ev.TOOL_STARTED)
    await one.engine.kill()
    with pytest.raises(StoreUnavailable, match="stopped"):
        await within(waiting)


async def test_nothing_is_kept_for_those_who_have_stopped_waiting(world: World) -> None:
    """A service that follows runs for months must not grow by each of them."""
    one = await world.worker("w1", says=(text("hello"),))
    await one.run("run")
    for number in range(3):
        with pytest.raises(RunNotFound):
            await one.engine.wait(f"none-{number}")
        with pytest.raises(RunConflict):
            await one.engine.run(one.algorithm, {"task": "other"}, "run")
        assert [event.seq async for event in one.engine.follow("run")] == [1, 2, 3, 4]
    waiting = asyncio.create_task(one.engine.wait("run"))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert one.engine._endings._endings == {}
    assert not any(one.engine._endings._wakes.values())
