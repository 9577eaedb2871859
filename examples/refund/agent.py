"""A support agent that refunds orders: two tools, a policy for each, and a scripted model.

``PAYMENTS_URL`` is the payment provider's address (see provider.py). The model is a function, so
that the example needs no account anywhere; put a real client in its place to use a real one.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

import httpx2

from aaa.algos import ToolLoop
from aaa.app import App
from aaa.llm import FakeLLMClient, LLMHandler, ModelReply, ModelRequest
from aaa.llm.fake import text, tool_call
from aaa.tools import (
    Done,
    GuardConfig,
    NotDone,
    ToolContext,
    ToolHandler,
    ToolRegistry,
    Verdict,
    tool,
)

ORDERS = {"A-100": {"item": "espresso machine", "amount": 19_900}}


@tool  # a read: safe to repeat, so the handler's default is good enough
async def look_up_order(order_id: str) -> dict[str, Any]:
    """Look up an order: what was bought and how much was paid, in cents."""
    return {"order_id": order_id, **ORDERS[order_id]}


async def refund_was_made(order_id: str, ctx: ToolContext) -> Verdict:
    """Look the refund up at the provider: asked when an attempt was lost, before anybody is told."""
    async with _payments() as payments:
        answer = await payments.get("/refunds", params={"order_id": order_id})
        answer.raise_for_status()
    ours = [made for made in answer.json()["refunds"] if made["key"] == ctx.idempotency_key]
    return Done(ours[0]) if ours else NotDone()


@tool(
    delivery="at_most_once",  # money: a lost attempt is looked into, never simply run again
    idempotency_key=lambda args: f"refund:{args['order_id']}",  # one refund an order, however asked
    verify=refund_was_made,
)
async def refund(order_id: str, amount: int, ctx: ToolContext) -> dict[str, Any]:
    """Refund an order; the amount is in cents."""
    async with _payments() as payments:
        answer = await payments.post(
            "/refunds",
            json={"order_id": order_id, "amount": amount},
            headers={"Idempotency-Key": ctx.idempotency_key},
        )
        answer.raise_for_status()
    made: dict[str, Any] = answer.json()
    return made


def model(request: ModelRequest) -> ModelReply:
    """Look the order up, refund it, say so: what a language model would do, without one."""
    order_id = _order_in(request)
    results = [message.content for message in request.messages if message.role == "tool"]
    if not results:
        return tool_call("look_up_order", order_id=order_id)
    if len(results) == 1 and order_id in ORDERS:
        return tool_call("refund", order_id=order_id, amount=ORDERS[order_id]["amount"])
    if "OutcomeUnknown" in results[-1]:
        return text(f"The refund of order {order_id} may have been made; a person has to check.")
    try:
        made = json.loads(results[-1])
    except ValueError:  # an error in words
        return text(f"Order {order_id} was not refunded: {results[-1]}")
    return text(f"Refunded order {order_id}: {made['amount'] / 100:.2f}, refund {made['id']}.")


def _order_in(request: ModelRequest) -> str:
    asked = next(message.content for message in request.messages if message.role == "user")
    found = re.search(r"[A-Z]-\d+", asked)
    return found[0] if found else "unknown"


def _payments() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=os.environ["PAYMENTS_URL"], timeout=60)


registry = ToolRegistry([look_up_order, refund])
client = FakeLLMClient(model)
app = App(
    algorithm=ToolLoop(registry, system="You refund orders. Verify before you repeat anything."),
    handlers=[LLMHandler(client), ToolHandler(registry, guard=GuardConfig(max_attempts=3))],
)
