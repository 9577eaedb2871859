"""What a model sees of a tool, and what happens to the arguments that it sends."""

from __future__ import annotations

import threading
from datetime import date
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest
from pydantic import BaseModel, Field

from aaa.errors import ConfigError, InvalidArguments
from aaa.tools import ToolContext, tool

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForCheckers


class Speed(StrEnum):
    SLOW = "slow"
    FAST = "fast"


class Address(BaseModel):
    street: str
    city: str = "Bern"


@tool
async def ship(
    order_id: str,
    to: Address,
    ctx: ToolContext,
    *,
    speed: Speed = Speed.SLOW,
    parcels: Annotated[int, Field(gt=0, le=9)] = 1,
    on: date | None = None,
) -> str:
    """Ship an order.

    Uses the cheapest carrier.

    Args:
        order_id: the order's number,
            as printed on the bill
        parcels: how many
    """
    return order_id


def test_the_schema_comes_from_the_hints_and_the_docstring() -> None:
    properties = ship.schema["properties"]
    assert ship.description == "Ship an order.\n\nUses the cheapest carrier."
    assert properties["order_id"] == {
        "type": "string",
        "description": "the order's number, as printed on the bill",
    }
    assert properties["parcels"] == {
        "type": "integer",
        "description": "how many",
        "default": 1,
        "exclusiveMinimum": 0,
        "maximum": 9,
    }
    assert ship.schema["required"] == ["order_id", "to"]
    assert ship.schema["additionalProperties"] is False


def test_arguments_become_python_values_with_the_defaults_filled_in() -> None:
    given = {"order_id": "A-1", "to": {"street": "Marktgasse"}, "on": "2026-01-31"}
    assert ship.validate(given) == {
        "order_id": "A-1",
        "to": Address(street="Marktgasse"),
        "speed": Speed.SLOW,
        "parcels": 1,
        "on": date(2026, 1, 31),
    }


def test_the_message_for_the_model_names_every_bad_field() -> None:
    with pytest.raises(InvalidArguments) as caught:
        ship.validate({"to": {}, "parcels": 10, "speed": "warp", "note": "x"})
    message = str(caught.value)
    assert message.startswith("The arguments of ship do not fit its schema: order_id: is required;")
    for part in ("to.street: is required", "parcels: ", "'slow' or 'fast'", "note: is not an arg"):
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "arguments", [{"order_id": "A", "to": {"street": "x"}, "ctx": {}}, ["A"], "A", None]
)
def test_what_is_no_argument_of_the_tool_is_refused(arguments: Any) -> None:
    with pytest.raises(InvalidArguments):
        ship.validate(arguments)


def test_numbers_that_json_does_not_have_are_refused() -> None:
    def pay(amount: float) -> None: ...

    for amount in (float("nan"), float("inf"), "NaN"):
        with pytest.raises(InvalidArguments, match=r"amount: .*finite"):
            tool(pay).validate({"amount": amount})


def plain(x: int, ctx: ToolContext) -> None: ...
def optional(x: int, ctx: ToolContext | None = None) -> None: ...
def old_optional(x: int, ctx: Optional[ToolContext] = None) -> None: ...  # noqa: UP045
def annotated(x: int, context: Annotated[ToolContext, "the call"]) -> None: ...
def quoted(x: int, ctx: "ToolContext") -> None: ...  # noqa: UP037


@pytest.mark.parametrize("function", [plain, optional, old_optional, annotated, quoted])
@pytest.mark.guarantee("G13")
async def test_the_context_is_injected_and_never_in_the_schema(function: Any) -> None:
    made = tool(function)
    assert list(made.schema["properties"]) == ["x"]
    for name in ("ctx", "context", "idempotency_key"):
        with pytest.raises(InvalidArguments, match=f"{name}: is not an argument"):
            made.validate({"x": 1, name: {"idempotency_key": "mine"}})


@pytest.mark.guarantee("G13")
def test_the_context_cannot_hide_inside_another_type() -> None:
    def sneaky(contexts: list[ToolContext]) -> None: ...
    def either(context: ToolContext | str) -> None: ...

    for function in (sneaky, either):
        with pytest.raises(ConfigError, match="cannot be part of a tool's arguments"):
            tool(function)


def test_an_argument_that_is_called_like_the_contexts_field_is_an_argument() -> None:
    def pay(idempotency_key: str, attempt: int) -> None: ...

    assert list(tool(pay).schema["properties"]) == ["idempotency_key", "attempt"]


def test_argument_names_that_pydantic_models_use_themselves_work() -> None:
    def odd(schema: int, copy: int, _private: int, model_config: int) -> None: ...

    given = {"schema": 1, "copy": 2, "_private": 3, "model_config": 4}
    assert tool(odd).validate(given) == given


def no_hint(x) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
def starred(*x: int) -> None: ...
def double_starred(**x: int) -> None: ...
def positional(x: int, /) -> None: ...
def two_contexts(a: ToolContext, b: ToolContext) -> None: ...
def unknown_name(x: OnlyForCheckers) -> None: ...
def no_schema(x: threading.Thread) -> None: ...
def field_default(x: int = Field(3)) -> None: ...


class Method:
    def method(self, x: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (no_hint, "parameter 'x' has no type annotation"),
        (Method.method, "decorate the bound method"),
        (starred, r"parameter '\*x"),
        (double_starred, r"parameter '\*\*x"),
        (positional, "positional-only"),
        (two_contexts, "only one parameter can be the ToolContext"),
        (unknown_name, "type hint 'OnlyForCheckers' cannot be found"),
        (no_schema, "tool 'no_schema'"),
        (field_default, "write Annotated"),
        (lambda: None, "name must be"),
        (int, "not of <class 'int'>"),
    ],
)
def test_a_signature_that_a_model_cannot_use_is_refused(function: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tool(function)


def test_the_digest_changes_with_the_schema_only() -> None:
    def make(name: str, hint: Any) -> Any:
        def function(x: int) -> None: ...

        function.__annotations__["x"] = hint
        return tool(function, name=name)

    assert make("a", int).schema_digest == make("b", int).schema_digest
    assert make("a", int).schema_digest != make("a", str).schema_digest


def test_a_mutable_default_is_not_shared_between_calls() -> None:
    def gather(items: list[str] = []) -> None: ...  # noqa: B006

    made = tool(gather)
    made.validate({})["items"].append("x")
    assert made.validate({}) == {"items": []}
