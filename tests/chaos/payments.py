"""The agent that the chaos tests run: two payments a run, one of each delivery mode.

Every start of a tool is written to ``CHAOS_LEDGER``, a file outside the store, with one append
that no crash can tear. Some payments outlast the lease, so that a worker that freezes or dies
leaves one behind.
"""

from __future__ import annotations

import asyncio
import json
import os
from hashlib import blake2b

from aaa.algos import ToolLoop
from aaa.app import App
from aaa.llm import FakeLLMClient, LLMHandler, ModelReply, ModelRequest
from aaa.llm.fake import text, tool_call, tool_calls
from aaa.tools import GuardConfig, ToolContext, ToolHandler, ToolRegistry, tool

LEASE_TTL_S = 1.0
MAX_ATTEMPTS = 50


@tool(delivery="at_most_once", idempotency_key=lambda args: f"once:{args['order']}")
async def pay_once(order: str, ctx: ToolContext) -> str:
    """Pay; never twice."""
    return await _pay("pay_once", order, ctx)


@tool(idempotency_key=lambda args: f"often:{args['order']}")
async def pay_often(order: str, ctx: ToolContext) -> str:
    """Pay, again if need be."""
    return await _pay("pay_often", order, ctx)


async def _pay(name: str, order: str, ctx: ToolContext) -> str:
    _note(name, ctx)
    # A payment in twenty outlasts the lease; the others take up to 20 ms.
    lot = blake2b(f"{name}{order}".encode(), digest_size=2).digest()
    await asyncio.sleep(LEASE_TTL_S * 1.5 if lot[0] < 13 else lot[1] / 12_800)
    return "paid"


def _note(name: str, ctx: ToolContext) -> None:
    record = {
        "tool": name,
        "run_id": ctx.run_id,
        "call_id": ctx.call_id,
        "key": ctx.idempotency_key,
        "attempt": ctx.attempt,
        "pid": os.getpid(),
    }
    ledger = os.open(os.environ["CHAOS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(ledger, json.dumps(record).encode() + b"\n")
    finally:
        os.close(ledger)


def model(request: ModelRequest) -> ModelReply:
    """Ask for both payments in one turn, then end."""
    if request.messages[-1].role == "user":
        order = request.messages[-1].content
        return tool_calls([tool_call("pay_once", order=order), tool_call("pay_often", order=order)])
    return text("settled")


registry = ToolRegistry([pay_once, pay_often])
app = App(
    algorithm=ToolLoop(registry),
    handlers=[
        LLMHandler(FakeLLMClient(model), lease_ttl_s=LEASE_TTL_S, max_attempts=MAX_ATTEMPTS),
        ToolHandler(
            registry,
            guard=GuardConfig(lease_ttl_s=LEASE_TTL_S, wait_poll_s=0.1, max_attempts=MAX_ATTEMPTS),
        ),
    ],
)
