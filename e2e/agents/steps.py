"""The tests' agent: it calls the tools that its task names, one after the other.

A task is words such as ``pay:o-1 transfer:o-2``: a tool and an order. A ledger outside the cluster
hears of each start, says when an attempt may go on, and counts effects.
"""

import os

import httpx2

from aaa.algos import ToolLoop
from aaa.app import App
from aaa.llm import FakeLLMClient, LLMHandler, ModelReply, ModelRequest
from aaa.llm.fake import text, tool_call
from aaa.tools import ToolContext, ToolHandler, ToolRegistry, tool

LEDGER = os.environ["LEDGER_URL"]
POD = os.environ["AAA_POD_NAME"]


async def act(name: str, order_id: str, ctx: ToolContext) -> str:
    about = {"tool": name, "order": order_id, "attempt": ctx.attempt, "pod": POD}
    async with httpx2.AsyncClient(base_url=LEDGER, timeout=600) as ledger:
        (await ledger.post("/start", json=about)).raise_for_status()
        (await ledger.post("/effect", json=about)).raise_for_status()
    return f"{name} {order_id} attempt {ctx.attempt}"


@tool
async def pay(order_id: str, ctx: ToolContext) -> str:
    """Pay an order; its author says nothing about delivery."""
    return await act("pay", order_id, ctx)


@tool(delivery="at_most_once")
async def transfer(order_id: str, ctx: ToolContext) -> str:
    """Move money: never twice."""
    return await act("transfer", order_id, ctx)


def model(request: ModelRequest) -> ModelReply:
    """The next step of the task, or what became of the last."""
    asked = next(each for each in request.messages if each.role == "user")
    done = [each.content for each in request.messages if each.role == "tool"]
    steps = str(asked.content).split()
    if len(done) == len(steps):
        return text(str(done[-1]))
    name, _, order_id = steps[len(done)].partition(":")
    return tool_call(name, order_id=order_id)


tools = ToolRegistry([pay, transfer])
app = App(
    algorithm=ToolLoop(tools),
    handlers=[LLMHandler(FakeLLMClient(model)), ToolHandler(tools)],
)
