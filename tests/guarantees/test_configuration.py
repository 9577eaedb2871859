"""Settings that do not fit fail where they are given; what a tool without a guard still has."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aaa import events as ev
from aaa.algos import ToolLoop
from aaa.app import App
from aaa.errors import ConfigError, PolicyConflict
from aaa.llm import LLMHandler
from aaa.llm.fake import FakeLLMClient, tool_call
from aaa.policy import GuardConfig, ToolEntry, ToolPolicyRules
from aaa.runtime import Engine
from aaa.store import port
from aaa.tools import Done, ToolHandler, ToolRegistry, tool
from guarantees.world import SHORT_S, World, acquainted, run_of, until

CALLS_ACT = (tool_call("act"),)


async def look() -> Any:
    return Done()


async def plain() -> str:
    return "acted"


@pytest.mark.guarantee("G17")
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"delivery": "exactly_once"}, "delivery"),
        ({"guard": {"max_attempts": 0}}, "max_attempts"),
        ({"guard": {"lease_ttl_s": -1}}, "lease_ttl_s"),
        ({"guard": {"lease_ttl_s": 5, "heartbeat_s": 5}}, "heartbeat_s"),
        ({"guard": {"nonsense": 1}}, "nonsense"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"on_repeat": "maybe"}, "on_repeat"),
    ],
)
def test_a_bad_value_fails_where_the_tool_is_defined(settings: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        tool(plain, **settings)


@pytest.mark.guarantee("G17")
def test_a_conflict_with_the_handlers_default_fails_at_attach() -> None:
    slow = tool(plain, guard={"heartbeat_s": 20})
    handler = ToolHandler(ToolRegistry([slow]), guard=GuardConfig(lease_ttl_s=15))
    with pytest.raises(ConfigError, match="heartbeat_s"):
        handler.attach(Engine())


@pytest.mark.guarantee("G17", "G22")
async def test_policies_that_do_not_fit_are_refused_and_change_nothing(world: World) -> None:
    act = tool(plain, name="act")
    one = await world.worker("w1", act, says=CALLS_ACT)
    before = one.handler.settings_for("act").hash

    def policy(name: str, **settings: Any) -> ToolPolicyRules:
        return ToolPolicyRules(name=name, tools=[ToolEntry(name="act", settings=settings)])

    with pytest.raises(PolicyConflict, match="disagree about max_attempts"):
        one.handler.use_policies([policy("p", max_attempts=1), policy("q", max_attempts=2)])
    with pytest.raises(PolicyConflict, match="enabled"):
        one.handler.use_policies([policy("p", enabled=False), policy("q", delivery="at_most_once")])
    assert one.handler.settings_for("act").hash == before
    assert await one.run() == "acted"


def test_policies_that_bind_a_run_hold_beside_those_of_the_code() -> None:
    registry = ToolRegistry([tool(plain, name="act")])
    own = ToolPolicyRules(
        name="own", tools=[ToolEntry(name="act", settings={"requires_approval": True})]
    )
    binding = ToolPolicyRules(
        name="binding", tools=[ToolEntry(name="act", settings={"max_attempts": 1})]
    )
    handler = ToolHandler(registry, policies=[own])
    model = LLMHandler(FakeLLMClient(lambda request: CALLS_ACT[0]))
    app = App(algorithm=ToolLoop(registry), handlers=[model, handler])
    app.attach(Engine(), policies=[binding])
    settings = handler.settings_for("act")
    assert settings.requires_approval
    assert settings.guard.max_attempts == 1


@pytest.mark.guarantee("G18", "G17")
@pytest.mark.parametrize(
    "settings",
    [{"delivery": "at_most_once"}, {"requires_approval": True}, {"verify": look}],
    ids=["at_most_once", "approval", "verify"],
)
def test_without_a_guard_nothing_is_promised_that_needs_one(settings: Any) -> None:
    with pytest.raises(ConfigError, match="enabled"):
        tool(plain, guard={"enabled": False}, **settings)


@pytest.mark.guarantee("G18", "L7")
async def test_an_unguarded_call_has_no_record_and_is_still_never_forgotten(world: World) -> None:
    starts: list[str] = []

    @tool(guard={"enabled": False})
    async def act() -> str:
        starts.append("act")
        if len(starts) == 1:
            await asyncio.Event().wait()
        return "acted"

    guard = GuardConfig(lease_ttl_s=SHORT_S, wait_poll_s=0.1)
    how: dict[str, Any] = {"says": CALLS_ACT, "guard": guard, "worker_ttl_s": 2 * SHORT_S}
    one = await world.worker("w1", act, **how)
    two = await world.worker("w2", act, **how)
    await acquainted(one, two)
    run_id = await one.submit(run_of("w1", "w2"))
    await until(lambda: len(starts) == 1)
    await one.engine.kill()
    assert await two.text(run_id) == "acted"
    assert starts == ["act", "act"]
    assert await world.of(ev.TOOL_STARTED, run_id) == []
    assert await world.of(ev.TOOL_STALE_RESULT, run_id) == []
    calls = world.store._of(run_id)._calls[run_id].values()
    assert {call.state for call in calls if call.queue.startswith(port.TOOL_QUEUE)} == {"settled"}
