"""How attempts end, and what is recorded of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from aaa import events as ev
from aaa.algos import RunState, ToolLoop
from aaa.bus import Bus, Receipt
from aaa.clock import SYSTEM_CLOCK
from aaa.errors import NotExecuted, OutcomeUnknown, StoreUnavailable, ToolError
from aaa.events import Event, run_requested
from aaa.llm import ModelReply, ModelRequest
from aaa.llm.fake import text, tool_call
from aaa.policy import GuardConfig, OnLostLease
from aaa.runtime.submission import new_run
from aaa.store import port
from aaa.tools import Done, NotDone, ToolContext, ToolRegistry, Unknown, tool
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
SHORT = GuardConfig(lease_ttl_s=SHORT_S, wait_poll_s=0.1)


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


def lasting(world: World, **settings: Any) -> tuple[Any, asyncio.Event]:
    """A tool ``act`` that records its starts and effects; its first attempt waits for the event."""
    go = asyncio.Event()

    @tool(**settings)
    async def act(ctx: ToolContext) -> str:
        world.ledger.starts.append(ctx.attempt)
        if ctx.attempt == 1:
            await go.wait()
        world.ledger.effects.append(ctx.attempt)
        return f"attempt {ctx.attempt}"

    return act, go


async def two_workers(world: World, act: Any, link: Link | None = None, **how: Any) -> Any:
    """``w1`` runs the call of the run; ``w2`` may take it over, with its own tool if ``theirs``."""
    how.setdefault("guard", SHORT)
    how.setdefault("says", CALLS_ACT)
    theirs = how.pop("theirs", act)
    one = await world.worker("w1", act, link=link, worker_ttl_s=SHORT_S * 2, **how)
    two = await world.worker("w2", theirs, worker_ttl_s=SHORT_S * 2, **how)
    await acquainted(one, two)
    run_id = run_of("w1", "w2")
    await one.submit(run_id)
    await until(lambda: bool(world.ledger.starts), "the first attempt")
    return one, two, run_id


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("way", ["killed", "cut off"])
async def test_a_lost_attempt_of_an_at_most_once_call_becomes_unknown_and_is_never_repeated(
    world: World, way: str
) -> None:
    act, _ = lasting(world, delivery="at_most_once")
    link = Link(world.store)
    one, two, run_id = await two_workers(world, act, link)
    if way == "killed":
        await one.engine.kill()
    else:
        link.cut = True
    said = await two.text(run_id)
    assert said.startswith("OutcomeUnknown: ")
    assert "may already have taken effect" in said
    assert "Verify" in said
    assert world.ledger.starts == [1]
    (failed,) = await world.of(ev.TOOL_FAILED, run_id)
    assert failed.data["effect"] == "unknown"
    assert failed.id == f"{failed.parent}:result"
    assert len(await world.of(ev.TOOL_STARTED, run_id)) == 1
    assert [view.call_id for view in await world.client.unknown()] == [failed.data["call_id"]]


@pytest.mark.guarantee("G5", "G3", "G13")
@pytest.mark.parametrize("way", ["killed", "cut off"])
async def test_a_lost_attempt_of_an_at_least_once_call_is_repeated_by_another_worker(
    world: World, way: str
) -> None:
    act, _ = lasting(world)
    link = Link(world.store)
    one, two, run_id = await two_workers(world, act, link)
    if way == "killed":
        await one.engine.kill()
    else:
        link.cut = True
    assert await two.text(run_id) == "attempt 2"
    started = await world.of(ev.TOOL_STARTED, run_id)
    assert [each.data["attempt"] for each in started] == [1, 2]
    assert [each.data["worker"] for each in started] == ["w1", "w2"]
    assert len({each.data["idempotency_key"] for each in started}) == 1


@pytest.mark.guarantee("G5")
async def test_a_call_that_keeps_killing_workers_is_given_up_at_its_cap(world: World) -> None:
    @tool(guard={"max_attempts": 2})
    async def act(ctx: ToolContext) -> str:
        world.ledger.starts.append(ctx.attempt)
        await asyncio.Event().wait()
        return "never"

    one, two, run_id = await two_workers(world, act)
    await one.engine.kill()
    await until(lambda: len(world.ledger.starts) == 2, "the second attempt")
    await two.engine.kill()
    three = await world.worker("w3", act, says=CALLS_ACT, guard=SHORT)
    said = await three.text(run_id)
    assert said.startswith("ExecutionAbandoned: ")
    assert world.ledger.starts == [1, 2]
    (failed,) = await world.of(ev.TOOL_FAILED, run_id)
    assert failed.data["effect"] == "unknown"


@pytest.mark.guarantee("G20", "G5")
@BOTH
async def test_a_raised_exception_is_the_result_and_is_not_run_again(
    world: World, delivery: str
) -> None:
    @tool(delivery=delivery)
    async def act() -> str:
        world.ledger.effects.append("act")
        raise ValueError("no such order")

    one = await world.worker("w1", act, says=CALLS_ACT)
    assert await one.run() == "ToolError: ValueError: no such order"
    assert world.ledger.effects == ["act"]
    (failed,) = await world.of(ev.TOOL_FAILED)
    assert "effect" not in failed.data


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize(
    ("raised", "effect"),
    [
        (OutcomeUnknown("the line broke"), "unknown"),
        (NotExecuted("the shop is closed"), None),
        (ToolError("refused"), None),
    ],
)
async def test_a_tool_may_say_itself_whether_it_acted(
    world: World, raised: Exception, effect: str | None
) -> None:
    @tool
    async def act() -> str:
        raise raised

    one = await world.worker("w1", act, says=CALLS_ACT)
    said = await one.run()
    (failed,) = await world.of(ev.TOOL_FAILED)
    assert failed.data["error"] == type(raised).__name__
    assert str(raised) in said
    assert failed.data.get("effect") == effect


@pytest.mark.guarantee("G16")
@pytest.mark.parametrize("value", [object(), float("nan"), "x" * 2_000])
async def test_a_result_that_cannot_be_recorded_fails_and_says_that_the_tool_did_run(
    world: World, value: object
) -> None:
    @tool
    async def act() -> object:
        world.ledger.effects.append("act")
        return value

    one = await world.worker("w1", act, says=CALLS_ACT, handler={"result_limit_bytes": 1_000})
    said = await one.run()
    assert said.startswith("ResultRejected: act did run, but its result")
    assert world.ledger.effects == ["act"]


async def answer_done() -> Any:
    return Done("seen")


async def answer_not_done() -> Any:
    return NotDone()


async def answer_unknown() -> Any:
    return Unknown("the log is gone")


async def answer_nothing() -> Any:
    raise ConnectionError("no answer")


VERDICTS = pytest.mark.parametrize(
    ("verify", "said"),
    [
        (None, "OutcomeUnknown"),
        (answer_done, "seen"),
        (answer_not_done, "had not been seen yet"),
        (answer_unknown, "the log is gone"),
        (answer_nothing, "no answer"),
    ],
)


@pytest.mark.guarantee("G4")
@VERDICTS
async def test_verify_is_asked_before_a_lost_attempt_is_called_unknown(
    world: World, verify: Any, said: str
) -> None:
    act, _ = lasting(world, delivery="at_most_once", verify=verify)
    one, two, run_id = await two_workers(world, act)
    await one.engine.kill()
    assert said in await two.text(run_id)
    assert world.ledger.starts == [1]
    await _one_verdict(world, run_id, verified=verify is answer_done)


def closed(order_id: str) -> str:
    """A rule of a newer version of a tool, which its schema does not show."""
    raise ValueError(f"{order_id} is closed")


@pytest.mark.guarantee("G4")
async def test_a_lost_attempt_whose_arguments_no_longer_fit_is_unknown_and_does_not_hang(
    world: World,
) -> None:
    @tool(name="act", delivery="at_most_once", verify=answer_done)
    async def old(order_id: str) -> str:
        world.ledger.starts.append(1)
        await asyncio.Event().wait()
        return order_id

    @tool(name="act", delivery="at_most_once", verify=answer_done)
    async def new(order_id: Annotated[str, AfterValidator(closed)]) -> str:
        world.ledger.effects.append(order_id)
        return order_id

    one, two, run_id = await two_workers(
        world, old, theirs=new, says=(tool_call("act", order_id="o-1"),)
    )
    await one.engine.kill()
    assert "It could not be looked up" in await two.text(run_id)
    assert world.ledger.effects == []
    await _one_verdict(world, run_id, verified=False)


@pytest.mark.guarantee("G4")
@VERDICTS
async def test_a_timeout_of_an_at_most_once_call_is_a_lost_attempt(
    world: World, verify: Any, said: str
) -> None:
    act, _ = lasting(world, delivery="at_most_once", timeout_s=0.05, verify=verify)
    one = await world.worker("w1", act, says=CALLS_ACT)
    assert said in await one.run()
    assert world.ledger.starts == [1]
    assert world.ledger.effects == []
    await _one_verdict(world, "run", verified=verify is answer_done)


@pytest.mark.guarantee("G4")
@VERDICTS
async def test_a_drain_that_cannot_wait_loses_the_attempt_of_an_at_most_once_call(
    world: World, verify: Any, said: str
) -> None:
    act, _ = lasting(world, delivery="at_most_once", verify=verify)
    one, two, run_id = await two_workers(world, act, guard=GuardConfig(lease_ttl_s=30))
    await within(one.engine.stop(drain_timeout_s=0.02))
    assert said in await two.text(run_id)
    assert world.ledger.starts == [1]
    await _one_verdict(world, run_id, verified=verify is answer_done)


async def _one_verdict(world: World, run_id: str, *, verified: bool) -> None:
    """What became of the lost attempt stands once."""
    done = await world.of(ev.TOOL_COMPLETED, run_id)
    failed = await world.of(ev.TOOL_FAILED, run_id)
    if verified:
        assert [each.data["verified"] for each in done] == [True]
        assert failed == []
    else:
        assert [each.data["error"] for each in failed] == ["OutcomeUnknown"]
        assert [each.data["effect"] for each in failed] == ["unknown"]
        assert done == []


@pytest.mark.guarantee("G5")
async def test_a_timeout_of_an_at_least_once_call_says_that_it_may_have_acted(
    world: World,
) -> None:
    act, _ = lasting(world, timeout_s=0.05)
    one = await world.worker("w1", act, says=CALLS_ACT)
    assert (await one.run()).startswith("ToolTimeout: ")
    (failed,) = await world.of(ev.TOOL_FAILED)
    assert failed.data["effect"] == "unknown"
    assert world.ledger.starts == [1]


@pytest.mark.guarantee("G5", "G14")
async def test_a_drain_hands_an_at_least_once_call_to_another_worker_at_once(
    world: World,
) -> None:
    act, _ = lasting(world)
    one, two, run_id = await two_workers(world, act, guard=GuardConfig(lease_ttl_s=30))
    await within(one.engine.stop(drain_timeout_s=0.02))
    assert await two.text(run_id) == "attempt 2"


@pytest.mark.guarantee("G4", "G5")
@pytest.mark.parametrize(
    ("delivery", "error"), [("at_least_once", "ToolTimeout"), ("at_most_once", "OutcomeUnknown")]
)
async def test_what_a_tool_makes_of_its_cancellation_is_not_taken_for_its_outcome(
    world: World, delivery: str, error: str
) -> None:
    @tool(delivery=delivery, timeout_s=0.05)
    async def act() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as gone:
            raise ConnectionError("connection closed") from gone
        return "never"

    one = await world.worker("w1", act, says=CALLS_ACT)
    assert (await one.run()).startswith(error)
    (failed,) = await world.of(ev.TOOL_FAILED)
    assert failed.data["effect"] == "unknown"


@pytest.mark.guarantee("G6")
@BOTH
async def test_what_a_tool_obtains_while_it_is_being_stopped_is_settled(
    world: World, delivery: str
) -> None:
    @tool(delivery=delivery, timeout_s=0.05)
    async def act() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "acted"
        return "never"

    one = await world.worker("w1", act, says=CALLS_ACT)
    assert await one.run() == "acted"


FINISH = GuardConfig(lease_ttl_s=SHORT_S, wait_poll_s=0.1, on_lost_lease=OnLostLease.FINISH)


@pytest.mark.guarantee("G6", "G9")
@BOTH
async def test_an_outcome_is_applied_although_the_lease_has_lapsed_if_nothing_newer_exists(
    world: World, delivery: str
) -> None:
    @tool(delivery=delivery)
    async def act() -> str:
        call = _tool_call(world, "run")
        call.due_ms = world.store._of("run").now_ms() - 1  # it has just ended at the store
        return "acted"

    one = await world.worker("w1", act, says=CALLS_ACT, guard=FINISH)
    assert await one.run() == "acted"
    assert "tool.stale_result" not in await world.types()


def _tool_call(world: World, run_id: str) -> Any:
    calls = world.store._of(run_id)._calls[run_id].values()
    return next(call for call in calls if call.queue.startswith(port.TOOL_QUEUE))


@pytest.mark.guarantee("G7", "G9")
async def test_a_superseded_attempts_outcome_is_kept_and_not_applied(world: World) -> None:
    act, go = lasting(world)
    link = Link(world.store)
    _one, two, run_id = await two_workers(world, act, link, guard=FINISH)
    link.cut = True
    assert await two.text(run_id) == "attempt 2"
    go.set()
    link.cut = False
    (stale,) = await world.seen(ev.TOOL_STALE_RESULT, run_id)
    assert stale.data["attempt"] == 1
    assert stale.data["outcome"]["result"] == "attempt 1"
    (done,) = await world.of(ev.TOOL_COMPLETED, run_id)
    assert done.data["result"] == "attempt 2"


@pytest.mark.guarantee("G6", "G4")
async def test_a_late_outcome_after_an_unknown_one_is_shown_as_evidence(world: World) -> None:
    act, go = lasting(world, delivery="at_most_once")
    link = Link(world.store)
    _one, two, run_id = await two_workers(world, act, link, guard=FINISH)
    link.cut = True
    assert (await two.text(run_id)).startswith("OutcomeUnknown")
    go.set()
    link.cut = False
    await world.seen(ev.TOOL_STALE_RESULT, run_id)
    (view,) = await world.client.unknown()
    assert [each.data["outcome"]["result"] for each in view.evidence] == ["attempt 1"]


@pytest.mark.guarantee("G8", "L5")
async def test_without_fencing_the_first_finisher_wins(world: World) -> None:
    go, second = asyncio.Event(), asyncio.Event()

    @tool(guard={"fence_results": False, "on_lost_lease": "finish"})
    async def act(ctx: ToolContext) -> str:
        world.ledger.starts.append(ctx.attempt)
        await (go if ctx.attempt == 1 else second).wait()
        return f"attempt {ctx.attempt}"

    link = Link(world.store)
    _one, two, run_id = await two_workers(world, act, link)
    link.cut = True
    await until(lambda: len(world.ledger.starts) == 2, "the second attempt")
    link.cut = False
    go.set()
    (done,) = await world.seen(ev.TOOL_COMPLETED, run_id)
    assert done.data["result"] == "attempt 1"
    second.set()
    assert await two.text(run_id) == "attempt 1"
    (stale,) = await world.seen(ev.TOOL_STALE_RESULT, run_id)
    assert stale.data["attempt"] == 2


class Picky(Link):
    """A way to a store that takes a whole batch or, if such an event is in it, nothing."""

    async def commit(
        self, partition: int, operations: Sequence[port.Operation], *, seen: int = 0
    ) -> port.Committed:
        entries = [e for op in operations if isinstance(op, port.Append) for e in op.entries]
        if any(entry.event.type == "unwanted" for entry in entries):
            raise ValueError("the store cannot hold this")
        return await super().commit(partition, operations, seen=seen)


class Unwanted(ToolLoop):
    """Yields, once its call has ended, what the store cannot hold."""

    def decide(self, event: Event, state: RunState) -> Iterable[Event]:
        if event.type == ev.TOOL_COMPLETED:
            return [event.caused("unwanted", {})]
        return super().decide(event, state)


@pytest.mark.guarantee("G6", "G15")
@BOTH
async def test_an_outcome_is_recorded_though_the_store_cannot_take_what_follows(
    world: World, delivery: str
) -> None:
    @tool(delivery=delivery)
    async def act() -> str:
        world.ledger.effects.append("act")
        return "acted"

    algorithm = Unwanted(ToolRegistry([act]))
    link = Picky(world.store)
    one = await world.worker("w1", act, says=CALLS_ACT, guard=SHORT, link=link, algorithm=algorithm)
    await one.submit()
    await world.seen(ev.TOOL_COMPLETED)
    beats = link.pulses
    await until(lambda: link.pulses > beats + 4, "heartbeats beyond the call's lease")
    assert world.ledger.effects == ["act"]
    assert await world.failures() == []


@pytest.mark.guarantee("G15", "L6")
async def test_what_travels_with_something_the_store_cannot_take_is_stored(world: World) -> None:
    bus = Bus(Picky(world.store), SYSTEM_CLOCK)
    bad = run_requested("bad", {"input": 1}).caused("unwanted", {})
    operations: list[port.Operation] = [
        new_run("first", "app", ToolLoop(ToolRegistry([])), 1),
        port.Append(run_id="first", entries=(port.Entry(bad),)),
        new_run("second", "app", ToolLoop(ToolRegistry([])), 2),
    ]
    receipts = [bus.send(0, [operation]) for operation in operations]
    first, refused, second = await asyncio.gather(*receipts, return_exceptions=True)
    assert isinstance(refused, ValueError)
    for receipt in (first, second):
        assert isinstance(receipt, Receipt)
        assert isinstance(receipt.verdicts[0], port.Appended)
    await bus.close()


async def test_nothing_is_sent_once_the_engine_has_stopped(world: World) -> None:
    link = Link(world.store)
    one = await world.worker("w1", link=link)
    await one.engine.stop()
    link.cut = True  # as a closed store: it would be tried again for ever
    with pytest.raises(StoreUnavailable, match="stopped"):
        await within(one.engine.submit(one.algorithm, {"task": "late"}, "late"))
