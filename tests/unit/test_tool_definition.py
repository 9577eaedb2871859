"""Defining tools: every form of @tool, and every setting that is refused on the spot."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from aaa.errors import ConfigError
from aaa.tools import Delivery, Done, Tool, ToolContext, ToolRegistry, Verdict, tool


async def pay(order_id: str, ctx: ToolContext) -> str:
    """Pay an order."""
    return f"paid {order_id} under {ctx.idempotency_key}"


async def paid(order_id: str) -> Verdict:
    return Done(f"paid {order_id}")


def context(**changes: Any) -> ToolContext:
    return ToolContext(**{"run_id": "r", "call_id": "c1-0", "idempotency_key": "k", **changes})


def test_every_form_of_the_decorator_makes_the_same_tool() -> None:
    forms = [tool(pay), tool()(pay), tool(delivery="at_most_once")(pay), tool(pay, timeout_s=3)]
    assert {form.name for form in forms} == {"pay"}
    assert {form.description for form in forms} == {"Pay an order."}
    assert len({form.schema_digest for form in forms}) == 1


async def test_a_tool_is_still_the_function_that_it_was_made_of() -> None:
    made = tool(pay)
    assert await made("A-1", ctx=context()) == "paid A-1 under k"
    assert (made.__name__, made.__doc__, made.function) == ("pay", "Pay an order.", pay)
    with pytest.raises(AttributeError, match="cannot be changed"):
        made.name = "other"


def test_only_the_settings_given_become_overrides() -> None:
    assert dict(tool(pay).overrides) == {}
    made = tool(pay, delivery="at_most_once", guard={"lease_ttl_s": 60})
    assert dict(made.overrides) == {"delivery": Delivery.AT_MOST_ONCE, "lease_ttl_s": 60}


def test_a_bound_method_can_be_a_tool() -> None:
    made = tool(Shop().price)
    assert list(made.schema["properties"]) == ["item"]
    assert made("abc") == 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"guard": {"max_attempts": 0}}, r"tool 'pay': guard.max_attempts .* between 1 and 1000"),
        ({"guard": {"lease_ttl_s": float("nan")}}, r"tool 'pay': guard.lease_ttl_s"),
        ({"guard": {"lease_ttl": 3}}, r"tool 'pay': guard has no field 'lease_ttl'"),
        ({"guard": 3}, r"tool 'pay': guard must be a mapping"),
        ({"delivery": "exactly_once"}, r"tool 'pay': guard.delivery must be 'at_least_once' or"),
        (
            {"delivery": "at_most_once", "guard": {"delivery": "at_least_once"}},
            r"tool 'pay': delivery='at_most_once' contradicts",
        ),
        (
            {"guard": {"heartbeat_s": 20, "lease_ttl_s": 10}},
            r"tool 'pay': guard.heartbeat_s \(20\) must be smaller",
        ),
        ({"guard": {"enabled": False}, "delivery": "at_most_once"}, r"guard.enabled=False"),
        ({"guard": {"enabled": False}, "requires_approval": True}, r"with requires_approval"),
        ({"guard": {"enabled": False}, "verify": paid}, r"with verify"),
        ({"requires_approval": "yes"}, r"tool 'pay': requires_approval must be true or false"),
        ({"timeout_s": 0}, r"tool 'pay': timeout_s must be between 0.001 and 604800"),
        ({"timeout_s": True}, r"tool 'pay': timeout_s"),
        ({"isolation": "thread"}, r"tool 'pay': isolation must be None or 'process'"),
        ({"on_repeat": "merge"}, r"tool 'pay': on_repeat must be 'fail' or 'ask'"),
        ({"idempotency_key": "order_id"}, r"tool 'pay': idempotency_key must be a plain function"),
        ({"idempotency_key": paid}, r"tool 'pay': idempotency_key must be a plain function"),
        ({"verify": lambda order_id: Done()}, r"tool 'pay': verify must be an async function"),
        ({"name": "pay it"}, r"tool 'pay it': name must be 1 to 64"),
        ({"retries": 3}, r"no setting 'retries'"),
    ],
)
@pytest.mark.guarantee("G17", "G18")
def test_a_bad_setting_fails_where_the_tool_is_defined(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tool(**settings)(pay)


@pytest.mark.guarantee("G17")
def test_what_only_the_handlers_default_can_contradict_is_left_to_attach() -> None:
    assert dict(tool(pay, guard={"heartbeat_s": 20}).overrides) == {"heartbeat_s": 20}


def test_a_verify_function_can_only_ask_for_what_the_tool_was_given() -> None:
    async def look(order: str) -> Verdict:
        return Done(order)

    with pytest.raises(ConfigError, match="verify takes 'order', which the tool does not have"):
        tool(pay, verify=look)


class Shop:
    def price(self, item: str) -> int:
        return len(item)


def test_what_runs_in_a_child_process_must_be_importable() -> None:
    def local(text: str) -> str:
        return text

    assert tool(pay, isolation="process").isolation == "process"
    for function in (local, Shop().price):
        with pytest.raises(ConfigError, match="top level of a module"):
            tool(function, isolation="process")


def test_a_registry_refuses_two_tools_of_one_name() -> None:
    def first(text: str) -> str:
        return text

    registry = ToolRegistry([tool(pay), first])
    assert [each.name for each in registry] == ["pay", "first"]
    assert isinstance(registry.get("first"), Tool)
    assert registry.get("missing") is None
    with pytest.raises(ConfigError, match="two tools are called 'pay'"):
        ToolRegistry([pay, tool(pay)])


def test_the_registrys_digest_follows_the_schemas_and_not_their_order() -> None:
    def first(text: str) -> str:
        return text

    def changed(text: str, more: int) -> str:
        return text * more

    one = ToolRegistry([pay, first])
    assert one.digest == ToolRegistry([first, pay]).digest
    assert one.digest != ToolRegistry([pay, tool(changed, name="first")]).digest
    assert one.digests() == {each.name: each.schema_digest for each in one}


@pytest.mark.parametrize(
    ("module", "heavy"), [("aaa.tools", "pydantic"), ("aaa.llm", "pydantic_ai")]
)
def test_importing_the_package_does_not_import_what_it_may_never_need(
    module: str, heavy: str
) -> None:
    program = f"import sys, {module}; sys.exit({heavy!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == 0
