"""Calling a tool's function: threads, context, keys, verdicts, results."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from aaa.errors import ConfigError, NotExecuted, ResultRejected, ToolError
from aaa.tools import Done, ToolContext, Unknown, Verdict, encode_result, tool

WHO = contextvars.ContextVar("WHO", default="nobody")
BOUND_S = 10


def context(**changes: Any) -> ToolContext:
    return ToolContext(**{"run_id": "r", "call_id": "c1-0", "idempotency_key": "k", **changes})


async def test_an_async_tool_gets_its_arguments_and_the_context() -> None:
    @tool
    async def pay(amount: int, ctx: ToolContext) -> str:
        return f"{amount} {ctx.idempotency_key} {ctx.attempt} {ctx.fence}"

    assert await pay.call(pay.validate({"amount": 3}), context(attempt=2)) == "3 k 2 2"


async def test_a_sync_tool_runs_in_the_given_threads_with_the_callers_context_variables() -> None:
    @tool
    def where(ctx: ToolContext) -> str:
        return f"{threading.current_thread().name} {WHO.get()}"

    WHO.set("me")
    with ThreadPoolExecutor(1, thread_name_prefix="tools") as executor:
        assert await where.call({}, context(), executor=executor) == "tools_0 me"


async def test_a_sync_function_that_returns_a_coroutine_is_awaited() -> None:
    async def later(x: int) -> int:
        return x + 1

    def wrapper(x: int) -> Any:
        return later(x)

    assert await tool(wrapper).call({"x": 1}, context()) == 2


async def test_a_stop_iteration_in_a_thread_does_not_hang_the_caller() -> None:
    @tool
    def first() -> str:
        nothing: Iterator[str] = iter(())
        return next(nothing)

    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(first.call({}, context()), BOUND_S)


@pytest.mark.parametrize("in_thread", [True, False])
async def test_a_tool_cannot_exit_the_process(in_thread: bool) -> None:
    def leave() -> None:
        sys.exit(3)

    async def leave_async() -> None:
        sys.exit(3)

    with pytest.raises(ToolError, match=r"tried to exit the process \(3\)"):
        await tool(leave if in_thread else leave_async).call({}, context())


@pytest.mark.guarantee("G13")
def test_without_a_business_key_the_default_is_the_key() -> None:
    def pay(order_id: str) -> None: ...

    assert tool(pay).key_for({"order_id": "A"}, default="r/c1-0") == "r/c1-0"
    keyed = tool(pay, idempotency_key=lambda args: f"pay:{args['order_id']}")
    assert keyed.key_for({"order_id": "A"}, default="r/c1-0") == "pay:A"


@pytest.mark.parametrize(
    "key", [lambda args: args["missing"], lambda args: "", lambda args: 7, lambda args: "a\n" * 3]
)
def test_a_key_function_that_gives_no_key_means_that_nothing_ran(key: Any) -> None:
    def pay(order_id: str) -> None: ...

    with pytest.raises(NotExecuted, match="pay was not run: its idempotency_key function"):
        tool(pay, idempotency_key=key).key_for({"order_id": "A"}, default="r/c1-0")


async def test_verify_is_asked_with_the_arguments_that_it_names() -> None:
    async def look(order_id: str, ctx: ToolContext) -> Verdict:
        return Done(f"{order_id} {ctx.idempotency_key}")

    async def confused(order_id: str) -> Any:
        return True

    def pay(order_id: str, amount: int) -> None: ...

    arguments = {"order_id": "A", "amount": 3}
    assert await tool(pay, verify=look).ask(arguments, context()) == Done("A k")
    assert isinstance(await tool(pay, verify=confused).ask(arguments, context()), Unknown)
    assert isinstance(await tool(pay).ask(arguments, context()), Unknown)


def test_the_context_counts_down_reports_and_says_when_to_stop() -> None:
    said: list[tuple[str, float | None]] = []
    now = iter([10.0, 99.0])
    ctx = context(
        deadline=12.5,
        clock=lambda: next(now),
        on_progress=lambda message, fraction: said.append((message, fraction)),
    )
    assert (ctx.remaining_s(), ctx.remaining_s()) == (2.5, 0.0)
    assert context().remaining_s() is None
    ctx.progress("half", fraction=0.5)
    ctx.progress("much", fraction=7)
    assert said == [("half", 0.5), ("much", 1.0)]
    assert not ctx.cancel_requested
    ctx.cancellation.set()
    assert ctx.cancel_requested
    with pytest.raises(ConfigError, match="deadline needs the clock"):
        context(deadline=1.0)


@dataclass
class Receipt:
    day: date
    amount: Decimal


class Refund(BaseModel):
    id: str


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ("done", "done"),
        (None, None),
        ({"a": [1, 2.5, True]}, {"a": [1, 2.5, True]}),
        (Receipt(date(2026, 1, 31), Decimal("1.10")), {"day": "2026-01-31", "amount": "1.10"}),
        ([Refund(id="x")], [{"id": "x"}]),
        ((1, 2), [1, 2]),
    ],
)
def test_results_become_plain_json(value: Any, plain: Any) -> None:
    assert encode_result(value) == plain


def circular() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    "value",
    [object(), float("nan"), {"x": float("inf")}, circular(), b"\xff", "\ud800", 2**70],
    ids=["object", "nan", "inf", "circular", "bytes", "surrogate", "huge integer"],
)
@pytest.mark.guarantee("G16")
def test_a_result_that_is_not_json_says_that_the_tool_did_run(value: Any) -> None:
    with pytest.raises(ResultRejected, match=r"pay did run, but its result .* is not JSON"):
        encode_result(value, tool="pay")


@pytest.mark.guarantee("G16")
def test_a_result_over_the_limit_says_that_the_tool_did_run() -> None:
    assert encode_result("é" * 49, limit_bytes=100) == "é" * 49
    with pytest.raises(ResultRejected, match="pay did run, but its result of 102 bytes is over"):
        encode_result("é" * 50, limit_bytes=100, tool="pay")
