"""Two tools with different delivery, in one program: no manifest, no command, no store to set up.

python examples/guarded_tools.py
"""

from __future__ import annotations

import asyncio

from aaa.algos import ToolLoop
from aaa.llm import FakeLLMClient, LLMHandler, ModelReply, ModelRequest
from aaa.llm.fake import text, tool_call
from aaa.runtime import Engine
from aaa.tools import GuardConfig, ToolContext, ToolHandler, ToolRegistry, tool


@tool(delivery="at_most_once", idempotency_key=lambda args: f"page:{args['team']}")
async def page(team: str, ctx: ToolContext) -> str:
    """Wake the team that is on call."""
    return f"{team} was paged under {ctx.idempotency_key}, attempt {ctx.attempt}"


@tool(guard={"lease_ttl_s": 5})  # a read may be repeated: the default is good enough
async def read_metrics(service: str) -> dict[str, float]:
    """Read a service's error rate."""
    return {"error_rate": 0.31 if service == "checkout" else 0.0}


def model(request: ModelRequest) -> ModelReply:
    """Stands for a language model: look first, then page, then say so."""
    results = [message.content for message in request.messages if message.role == "tool"]
    if not results:
        return tool_call("read_metrics", service="checkout")
    return tool_call("page", team="payments") if len(results) == 1 else text(results[-1])


async def main() -> None:
    """Print how each tool is delivered, then what the agent did."""
    registry = ToolRegistry([page, read_metrics])
    tools = ToolHandler(registry, guard=GuardConfig(max_attempts=2))
    for each in registry:
        config = tools.config_for(each)
        print(f"{each.name}: {config.delivery}, lease {config.lease_ttl_s:g} s")
    async with Engine() as engine:
        LLMHandler(FakeLLMClient(model)).attach(engine)
        tools.attach(engine)
        outcome = await engine.run(ToolLoop(registry), {"task": "checkout fails: do something"})
    print(outcome.value["text"])


if __name__ == "__main__":
    asyncio.run(main())
