"""Model requests, the conversation, and what a person finds out about unknown outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aaa import events as ev
from aaa.client import Client
from aaa.errors import DecisionRefused, ModelRefused, ModelUnavailable, OutcomeUnknown
from aaa.ids import partition_of
from aaa.llm import Message, ModelReply, ModelRequest
from aaa.llm.fake import text, tool_call, tool_calls
from aaa.policy import GuardConfig, OnLostLease
from aaa.runtime import Outcome
from aaa.store import port
from aaa.tools import ToolContext, tool
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

CALLS_ACT = (tool_call("act"),)


def sulking(times: int, answer: ModelReply) -> Callable[[ModelRequest], ModelReply]:
    asked = 0

    def model(request: ModelRequest) -> ModelReply:
        nonlocal asked
        asked += 1
        if asked <= times:
            raise ModelUnavailable("busy")
        return answer

    return model


@pytest.mark.guarantee("G24")
async def test_a_model_is_asked_again_within_bounds_and_its_answer_stands_once(
    world: World,
) -> None:
    link = Link(world.store)
    link.lose_reply(settles)
    one = await world.worker("w1", model=sulking(2, text("hello")), link=link, llm={"retries": 2})
    assert await one.run() == "hello"
    assert one.model.requests == 3
    assert (await world.types()).count("llm.completed") == 1


@pytest.mark.guarantee("G24")
async def test_a_model_that_never_answers_fails_its_run_after_its_retries(world: World) -> None:
    one = await world.worker("w1", model=sulking(99, text("never")), llm={"retries": 2})
    outcome = await one.run()
    assert isinstance(outcome, Outcome)
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert outcome.error.error == "ModelUnavailable"
    assert one.model.requests == 3


@pytest.mark.guarantee("G24")
async def test_a_refused_request_is_not_repeated(world: World) -> None:
    def model(request: ModelRequest) -> ModelReply:
        raise ModelRefused("no such model")

    one = await world.worker("w1", model=model, llm={"retries": 5})
    outcome = await one.run()
    assert outcome.error.error == "ModelRefused"
    assert one.model.requests == 1


@pytest.mark.guarantee("G24", "G14")
@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_dead_workers_model_request_is_leased_to_another_up_to_its_attempts(
    world: World, attempts: int
) -> None:
    async def never(request: ModelRequest) -> ModelReply:
        await asyncio.Event().wait()
        return text("never")

    how = {"lease_ttl_s": SHORT_S, "max_attempts": attempts}
    one = await world.worker("w1", model=never, llm=how, worker_ttl_s=2 * SHORT_S)
    two = await world.worker("w2", says=(text("hello"),), llm=how, worker_ttl_s=2 * SHORT_S)
    await acquainted(one, two)
    run_id = await one.submit(run_of("w1", "w2"))
    await until(lambda: one.model.requests == 1)
    await one.engine.kill()
    ended = await two.text(run_id)
    if attempts == 2:
        assert ended == "hello"
        assert two.model.requests == 1
    else:
        assert isinstance(ended, Outcome), ended
        assert ended.error is not None
        assert ended.error.error == "ExecutionAbandoned"
        assert two.model.requests == 0
    assert (await world.types(run_id)).count("llm.completed") == attempts - 1


@pytest.mark.guarantee("G20")
async def test_a_call_that_raises_leaves_its_neighbours_alone(world: World) -> None:
    @tool
    async def act(number: int) -> int:
        if number == 1:
            raise ValueError("one is bad")
        return number

    told: list[Message] = []

    def model(request: ModelRequest) -> ModelReply:
        if len(request.messages) == 1:
            return tool_calls([tool_call("act", number=n) for n in range(3)])
        told.extend(request.messages)
        return text("done")

    one = await world.worker("w1", act, model=model)
    assert await one.run() == "done"
    answers = {m.tool_call_id: m.content for m in told if m.role == "tool"}
    assert sorted(answers.values()) == ["0", "2", "ToolError: ValueError: one is bad"]
    assert len(answers) == 3


@pytest.mark.guarantee("L10")
async def test_a_run_ends_at_its_turn_limit(world: World) -> None:
    @tool
    async def act() -> str:
        world.ledger.effects.append("act")
        return "acted"

    one = await world.worker("w1", act, says=CALLS_ACT * 9, loop={"max_turns": 3})
    outcome = await one.run()
    assert outcome.error.error == "TurnLimit"
    assert one.model.requests == 3
    assert len(world.ledger.effects) == 3


def doubtful(world: World) -> Any:
    """A tool whose first attempt leaves its effect unknown."""

    @tool(delivery="at_most_once", idempotency_key=lambda args: "refund:A")
    async def act(ctx: ToolContext) -> str:
        world.ledger.effects.append((ctx.call_id, ctx.idempotency_key))
        if len(world.ledger.effects) == 1:
            raise OutcomeUnknown("the line broke.")
        return "acted at last"

    return act


def listening() -> tuple[list[str], Callable[[ModelRequest], ModelReply]]:
    """A model that calls ``act`` first and then only hears."""
    heard: list[str] = []

    def model(request: ModelRequest) -> ModelReply:
        said = [message for message in request.messages if message.role == "assistant"]
        heard[:] = [message.content for message in request.messages if message.role != "assistant"]
        return text(f"heard {len(heard)}") if said else tool_call("act")

    return heard, model


@pytest.mark.guarantee("G4")
async def test_an_unknown_outcome_is_told_to_the_model_at_once_by_default(world: World) -> None:
    heard, model = listening()
    one = await world.worker("w1", doubtful(world), model=model)
    assert await one.run() == "heard 2"
    assert heard[1].startswith("OutcomeUnknown: the line broke.")
    assert "Do not simply repeat it" in heard[1]


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize(
    ("outcome", "result", "told"),
    [
        ("done", "id 7", "it did take effect; its result is: id 7."),
        ("not_done", None, "it did not take effect."),
    ],
)
async def test_a_run_that_waits_goes_on_with_what_a_person_has_found_out(
    world: World, outcome: Any, result: Any, told: str
) -> None:
    heard, model = listening()
    one = await world.worker("w1", doubtful(world), model=model, loop={"on_unknown": "wait"})
    run_id = await one.submit()
    (failed,) = await world.seen(ev.TOOL_FAILED)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert (await world.types())[-1] == "tool.failed"  # parked until it is resolved
    (view,) = await world.client.unknown()
    resolved = await world.client.resolve(run_id, view.call_id, outcome, by="me", result=result)
    assert resolved.id == f"{failed.parent}:resolved"
    assert await one.text() == "heard 3"
    assert heard[2].endswith(told)
    assert len(world.ledger.effects) == 1
    with pytest.raises(DecisionRefused, match="no unknown outcome"):
        await world.client.resolve(run_id, view.call_id, "not_done", by="you")
    assert await world.client.unknown() == []
    (result_,) = await world.of(ev.TOOL_FAILED)  # R's one result stays what it was
    assert result_.data["error"] == "OutcomeUnknown"


@pytest.mark.guarantee("G4", "G13")
async def test_a_retry_is_a_new_request_under_the_old_key(world: World) -> None:
    heard, model = listening()
    one = await world.worker("w1", doubtful(world), model=model, loop={"on_unknown": "wait"})
    run_id = await one.submit()
    (failed,) = await world.seen(ev.TOOL_FAILED)
    await world.client.resolve(run_id, failed.data["call_id"], "retry", by="me")
    await one.text()
    first, second = await world.of(ev.TOOL_REQUESTED)
    assert second.data["retry_of"] == first.id
    assert second.data["call_id"] != first.data["call_id"]
    assert [key for _, key in world.ledger.effects] == ["refund:A"] * 2
    assert len({call_id for call_id, _ in world.ledger.effects}) == 2
    assert heard[-1].endswith("acted at last")
    started = await world.of(ev.TOOL_STARTED)
    assert [(e.parent, e.data["attempt"]) for e in started] == [(first.id, 1), (second.id, 1)]


@pytest.mark.guarantee("G4", "G13")
async def test_fences_rise_under_one_key_from_retry_to_retry(world: World) -> None:
    """A target that applies a write only with the highest fence seen takes each retry."""
    fences: list[tuple[int, int]] = []

    @tool(delivery="at_most_once", idempotency_key=lambda _: "the key")
    async def act(ctx: ToolContext) -> str:
        fences.append((ctx.attempt, ctx.fence))
        if len(fences) < 3:
            raise OutcomeUnknown("the request timed out after it was sent")
        return "acted at last"

    one = await world.worker("w1", act, says=CALLS_ACT, loop={"on_unknown": "wait"})
    run_id = await one.submit()
    for count in (1, 2):
        failed = (await world.seen(ev.TOOL_FAILED, count=count))[-1]
        await world.client.resolve(run_id, failed.data["call_id"], "retry", by="me")
    await one.text()
    assert fences == [(1, 1), (1, 2), (1, 3)]


@pytest.mark.guarantee("G4")
async def test_a_retry_whose_effect_is_unknown_again_is_waited_for_again(world: World) -> None:
    @tool(delivery="at_most_once")
    async def act() -> str:
        world.ledger.effects.append("act")
        raise OutcomeUnknown("the line broke.")

    _, model = listening()
    one = await world.worker("w1", act, model=model, loop={"on_unknown": "wait"})
    run_id = await one.submit()
    (failed,) = await world.seen(ev.TOOL_FAILED)
    await world.client.resolve(run_id, failed.data["call_id"], "retry", by="me")
    failures = await world.seen(ev.TOOL_FAILED, count=2)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert one.model.requests == 1
    await world.client.resolve(run_id, failures[1].data["call_id"], "done", by="me")
    assert (await one.text()).startswith("heard")
    assert len(world.ledger.effects) == 2


@pytest.mark.guarantee("G4")
async def test_a_retry_in_a_run_that_has_ended_is_refused(world: World) -> None:
    """Nobody would run it, and the person would think that somebody does."""
    _, model = listening()
    one = await world.worker("w1", doubtful(world), model=model)
    await one.run()
    (view,) = await world.client.unknown()
    assert not view.retriable
    with pytest.raises(DecisionRefused, match="has ended"):
        await world.client.resolve("run", view.call_id, "retry", by="me")
    await world.client.resolve("run", view.call_id, "done", by="me")
    assert await world.client.unknown() == []


@pytest.mark.guarantee("G4")
async def test_calls_one_after_the_other_stop_at_an_unknown_outcome(world: World) -> None:
    act = doubtful(world)

    @tool
    async def then() -> str:
        world.ledger.effects.append(("then", ""))
        return "then"

    both = tool_calls([tool_call("act"), tool_call("then")])
    one = await world.worker(
        "w1",
        act,
        then,
        says=(both, text("done")),
        loop={"on_unknown": "wait", "parallel": False},
    )
    run_id = await one.submit()
    (failed,) = await world.seen(ev.TOOL_FAILED)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert len(world.ledger.effects) == 1
    await world.client.resolve(run_id, failed.data["call_id"], "not_done", by="me")
    assert await one.text() == "done"
    assert len(world.ledger.effects) == 2


@pytest.mark.guarantee("L9", "L3")
async def test_a_run_of_fifty_thousand_events_goes_on_at_another_worker(world: World) -> None:
    """Folding costs the same for each event, however long the log is."""

    @tool
    async def act() -> str:
        world.ledger.effects.append("act")
        return "acted"

    go = asyncio.Event()

    async def model(request: ModelRequest) -> ModelReply:
        if len(request.messages) == 1:
            await go.wait()
            return tool_call("act")
        return text("done")

    one = await world.worker("w1", act, model=model)
    run_id = await one.submit()
    await until(lambda: one.model.requests == 1)
    rows = world.store._of(run_id)
    from aaa.store.claims import add_event

    run = rows.run(run_id)
    assert run is not None
    parent = rows.events[run_id][0]
    for number in range(50_000):
        add_event(rows, run, parent.caused("note", {"n": number}))
    await one.engine.kill()
    go.set()
    (call,) = rows._calls[run_id].values()
    call.due_ms = rows.now_ms() - 1
    rows.save_call(call)
    for owner in rows._owners.values():
        owner.until_ms = 0
    two = await world.worker("w2", act, model=model)
    world.store._workers.pop("w1", None)  # it is known to be dead
    assert await two.text(run_id) == "done"
    assert world.ledger.effects == ["act"]
    assert len(await world.log(run_id)) > 50_000


@pytest.mark.guarantee("G4")
async def test_a_retry_is_refused_by_a_run_that_ends_before_it_is_written(world: World) -> None:
    """Else it would be recorded, and nobody would ever run the call again."""
    go = asyncio.Event()

    @tool(delivery="at_most_once")
    async def act() -> str:
        raise OutcomeUnknown("no answer came")

    async def model(request: ModelRequest) -> ModelReply:
        if all(message.role != "assistant" for message in request.messages):
            return tool_call("act")
        await go.wait()
        return text("done")

    one = await world.worker("w1", act, model=model)
    await one.submit()
    await world.seen(ev.TOOL_FAILED)
    link = Link(world.store)
    client = Client(link)
    (call,) = await client.unknown("run")
    arrived, on = link.hold(lambda operation: isinstance(operation, port.Append))
    asked = asyncio.create_task(client.resolve("run", call.call_id, "retry", by="ada"))
    await within(arrived.wait())
    go.set()
    assert await one.text() == "done"
    on.set()
    with pytest.raises(DecisionRefused, match="has ended"):
        await within(asked)
    assert [view.call_id for view in await client.unknown("run")] == [call.call_id]
    await client.resolve("run", call.call_id, "done", by="ada")


@pytest.mark.guarantee("G24")
async def test_a_model_is_never_asked_with_what_the_log_does_not_hold(world: World) -> None:
    """Its worker's own outcome came too late, and the store has not said so yet."""
    asked: list[list[str]] = []

    def model(request: ModelRequest) -> ModelReply:
        if all(message.role != "assistant" for message in request.messages):
            return tool_call("act")
        asked.append([m.content for m in request.messages if m.role == "tool"])
        return text("done")

    go = asyncio.Event()

    @tool(delivery="at_most_once", guard={"on_lost_lease": "finish"})
    async def act() -> str:
        await go.wait()
        return "acted"

    link = Link(world.store)
    guard = GuardConfig(lease_ttl_s=SHORT_S, wait_poll_s=0.1, on_lost_lease=OnLostLease.FINISH)
    one = await world.worker("w1", act, model=model, guard=guard, link=link, worker_ttl_s=0.4)
    run_id = await one.submit(run_of("w1"))
    await world.seen(ev.TOOL_STARTED, run_id)
    partition = partition_of(run_id, world.store.partitions)
    link.lost_pulses = 1_000_000
    claiming, claim = link.hold(lambda operation: isinstance(operation, port.Claim))
    one.engine._visits.soon(partition)
    await within(claiming.wait())
    info = await world.store.run(run_id)
    assert info is not None
    app = info.app
    rows = world.store._partitions[partition]

    def lapsed() -> bool:
        owner = rows.owner(app)
        return bool(rows.expired(app, 1)) and owner is not None and owner.until_ms <= rows.now_ms()

    await until(lapsed, "the partition to be free, and the call to be lost")
    go.set()
    await asyncio.sleep(0.05)

    async def never(request: ModelRequest) -> ModelReply:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    two = await world.worker(
        "w0", act, model=never, guard=guard, llm={"lease_ttl_s": SHORT_S}, worker_ttl_s=0.4
    )
    await world.seen(ev.LLM_REQUESTED, run_id, count=2)
    await two.engine.kill()
    await until(lambda: bool(rows.expired(app, 1)), "the end of the model request's lease")
    settling, settle = link.hold(settles_tool)
    claim.set()
    await within(settling.wait())
    link.lost_pulses = 0
    await until(lambda: bool(asked), "the model")
    settle.set()
    assert "OutcomeUnknown" in asked[0][0]
    assert await one.text(run_id) == "done"
