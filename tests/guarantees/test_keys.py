"""Idempotency keys and repeated intents."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aaa import events as ev
from aaa.errors import OutcomeUnknown
from aaa.llm.fake import text, tool_call, tool_calls
from aaa.llm.messages import ToolCall
from aaa.tools import ToolContext, tool
from guarantees.world import World, until


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize("provider_ids", [("same", "same"), (None, None)])
async def test_call_ids_are_ours_whatever_the_provider_calls_them(
    world: World, provider_ids: tuple[str | None, ...]
) -> None:
    @tool
    async def act(number: int, ctx: ToolContext) -> int:
        world.ledger.effects.append((number, ctx.call_id, ctx.idempotency_key))
        return number

    reply = tool_calls(
        [ToolCall("act", {"number": n}, id=each) for n, each in enumerate(provider_ids)]
    )
    one = await world.worker("w1", act, says=(reply, reply, text("done")))
    assert await one.run() == "done"
    requests = await world.of(ev.TOOL_REQUESTED)
    turns = [event.seq for event in (await world.of(ev.LLM_COMPLETED))[:2]]
    wanted = [f"c{seq}-{index}" for seq in turns for index in (0, 1)]
    assert [each.data["call_id"] for each in requests] == wanted
    assert [each.data.get("provider_call_id") for each in requests] == [*provider_ids] * 2
    assert sorted(world.ledger.effects) == sorted(
        (n, call_id, f"run/{call_id}") for n, call_id in zip([0, 1, 0, 1], wanted, strict=True)
    )


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize("name", ["idempotency_key", "ctx", "attempt"])
async def test_a_model_cannot_see_or_set_the_key(world: World, name: str) -> None:
    @tool(idempotency_key=lambda args: f"refund:{args['order']}")
    async def act(order: str, ctx: ToolContext) -> str:
        world.ledger.effects.append(ctx.idempotency_key)
        return "acted"

    forged = tool_call("act", order="A", **{name: "mine"})
    one = await world.worker("w1", act, says=(forged, tool_call("act", order="A"), text("done")))
    assert await one.run() == "done"
    assert await world.failures() == ["InvalidArguments"]
    assert world.ledger.effects == ["refund:A"]
    assert name not in act.schema["properties"]
    (started,) = await world.of(ev.TOOL_STARTED)
    assert started.data["idempotency_key"] == "refund:A"


@pytest.mark.guarantee("G13")
async def test_a_key_function_that_gives_none_means_that_nothing_has_begun(world: World) -> None:
    @tool(idempotency_key=lambda args: args["nothing"])
    async def act(order: str) -> str:
        world.ledger.effects.append(order)
        return "acted"

    one = await world.worker("w1", act, says=(tool_call("act", order="A"),))
    assert (await one.run()).startswith("NotExecuted")
    assert world.ledger.effects == []


def acting(world: World, *, ends: str, **settings: Any) -> Any:
    """A tool whose effect stays unknown, or that stays in flight until the event of the ledger."""

    @tool(**settings)
    async def act(order: str, note: str = "") -> str:
        world.ledger.effects.append((order, note))
        if ends == "unknown" and len(world.ledger.effects) == 1:
            raise OutcomeUnknown("the line broke.")
        return f"acted on {order}"

    return act


KINDS = pytest.mark.parametrize(
    "settings",
    [
        {"delivery": "at_most_once"},
        {"idempotency_key": lambda args: f"refund:{args['order']}"},
    ],
    ids=["at_most_once", "business key"],
)


@pytest.mark.guarantee("G21")
@KINDS
async def test_a_call_that_repeats_one_of_unknown_effect_is_not_run(
    world: World, settings: dict[str, Any]
) -> None:
    act = acting(world, ends="unknown", **settings)
    call = tool_call("act", order="A")
    one = await world.worker("w1", act, says=(call, call, text("done")))
    assert await one.run() == "done"
    assert world.ledger.effects == [("A", "")]
    assert await world.failures() == ["OutcomeUnknown", "RepeatedIntent"]
    first, second = await world.of(ev.TOOL_FAILED)
    assert second.data["first"] == first.data["call_id"]
    assert first.data["call_id"] in second.data["message"]
    assert len(await world.of(ev.TOOL_STARTED)) == 1


@pytest.mark.guarantee("G21")
@KINDS
async def test_a_call_that_repeats_one_of_the_same_turn_is_not_run(
    world: World, settings: dict[str, Any]
) -> None:
    act = acting(world, ends="well", **settings)
    twice = tool_calls([tool_call("act", order="A"), tool_call("act", order="A")])
    one = await world.worker("w1", act, says=(twice, text("done")))
    assert await one.run() == "done"
    assert world.ledger.effects == [("A", "")]
    assert await world.failures() == ["RepeatedIntent"]


@pytest.mark.guarantee("G21")
async def test_a_business_key_is_one_intent_whatever_the_other_arguments(world: World) -> None:
    act = acting(world, ends="well", idempotency_key=lambda args: f"refund:{args['order']}")
    calls = tool_calls(
        [tool_call("act", order="A", note="x"), tool_call("act", order="A", note="y")]
    )
    one = await world.worker("w1", act, says=(calls, text("done")))
    await one.run()
    assert world.ledger.effects == [("A", "x")]
    assert await world.failures() == ["RepeatedIntent"]


@pytest.mark.guarantee("G21")
async def test_other_orders_reads_and_settled_calls_are_no_repeats(world: World) -> None:
    act = acting(world, ends="well", delivery="at_most_once")

    @tool
    async def look(order: str) -> str:
        world.ledger.effects.append(("look", order))
        return "looked"

    calls = tool_calls(
        [
            tool_call("act", order="A"),
            tool_call("act", order="B"),
            tool_call("look", order="A"),
            tool_call("look", order="A"),
        ]
    )
    one = await world.worker(
        "w1", act, look, says=(calls, tool_call("act", order="A"), text("done"))
    )
    assert await one.run() == "done"
    assert await world.failures() == []
    assert len(world.ledger.effects) == 5


@pytest.mark.guarantee("G21", "G19")
async def test_a_repeat_may_ask_a_person_instead(world: World) -> None:
    act = acting(world, ends="unknown", delivery="at_most_once", on_repeat="ask")
    call = tool_call("act", order="A")
    one = await world.worker("w1", act, says=(call, call, text("done")))
    run_id = await one.submit()
    (asked,) = await world.seen(ev.APPROVAL_REQUESTED)
    first = (await world.of(ev.TOOL_REQUESTED))[0]
    assert asked.data["reason"] == f"repeats {first.data['call_id']}"
    assert world.ledger.effects == [("A", "")]
    await world.client.approve(run_id, asked.data["call_id"], by="me")
    assert await one.text() == "done"
    assert world.ledger.effects == [("A", ""), ("A", "")]


@pytest.mark.guarantee("G21")
async def test_what_repeats_an_approved_repeat_is_seen_although_the_first_has_ended(
    world: World,
) -> None:
    """First, its approved repeat, and a third one while only the second is in flight."""
    second = asyncio.Event()

    @tool(delivery="at_most_once", on_repeat="ask")
    async def act(order: str) -> str:
        world.ledger.effects.append(order)
        if len(world.ledger.effects) == 1:
            raise OutcomeUnknown("the line broke.")
        await second.wait()
        return "acted"

    both = tool_calls([tool_call("act", order="A"), tool_call("act", order="A")])
    one = await world.worker("w1", act, says=(tool_call("act", order="A"), both, text("done")))
    run_id = await one.submit()
    asked = await world.seen(ev.APPROVAL_REQUESTED, count=2)
    (unknown,) = await world.client.unknown()
    await world.client.resolve(run_id, unknown.call_id, "not_done", by="me")
    await world.client.approve(run_id, asked[0].data["call_id"], by="me")
    await until(lambda: len(world.ledger.effects) == 2)
    state = await world.client.state(run_id)
    (having,) = state.intents.values()
    assert [state.calls[each].call_id for each in having] == [
        each.data["call_id"] for each in asked
    ]
    second.set()
    await world.client.reject(run_id, asked[1].data["call_id"], by="me", reason="once is enough")
    assert await one.text() == "done"
