"""The app of the tests of a worker in a pod: one tool that waits for a file, one for a person."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aaa.algos import ToolLoop
from aaa.app import App
from aaa.llm import FakeLLMClient, LLMHandler, ModelReply, ModelRequest
from aaa.llm.fake import text, tool_call
from aaa.tools import ToolHandler, ToolRegistry, tool


@tool
async def work() -> str:
    """Begin, and go on when the file ``go`` is there."""
    with Path("effects").open("a") as file:
        file.write("work\n")
    while not Path("go").exists():
        await asyncio.sleep(0.02)
    return "worked"


@tool(requires_approval=True)
async def blast() -> str:
    """Do something that a person approves."""
    return "blasted"


def model(request: ModelRequest) -> ModelReply:
    words = next(each.content for each in request.messages if each.role == "user").split()
    done = sum(each.role == "tool" for each in request.messages)
    return text("done") if done == len(words) else tool_call(words[done])


registry = ToolRegistry([work, blast])
app = App(
    algorithm=ToolLoop(registry),
    handlers=[LLMHandler(FakeLLMClient(model)), ToolHandler(registry)],
)
