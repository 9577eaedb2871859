"""The app of the command's tests: the task names the tools to call, one after the other."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from aaa.algos import ToolLoop
from aaa.app import App
from aaa.llm import FakeLLMClient, LLMHandler, ModelReply, ModelRequest, ProviderClient
from aaa.llm.fake import text, tool_call
from aaa.tools import GuardConfig, ToolContext, ToolHandler, ToolRegistry, tool

EFFECTS = Path("effects")
GO = Path("go")


def _note(what: str) -> None:
    with EFFECTS.open("a") as file:
        file.write(f"{what}\n")


@tool
async def look(thing: str = "it") -> str:
    """Look at something."""
    _note("look")
    return f"seen {thing}"


@tool
async def hang(ctx: ToolContext) -> str:
    """Hang, unless the file ``go`` is there."""
    _note("hang")
    ctx.progress("hanging \x1b]0;stolen title\x07\x1b[31mred", fraction=0.5)
    if not GO.exists():
        await asyncio.Event().wait()
    return "went on"


@tool(delivery="at_most_once")
async def once() -> str:
    """Hang for good; never to be run twice."""
    _note("once")
    if not GO.exists():
        await asyncio.Event().wait()
    return "went on"


@tool(requires_approval=True)
async def blast(depth: int = 1) -> str:
    """Do something that a person approves."""
    _note("blast")
    return f"blasted {depth}"


@tool(timeout_s=0.2)
def stuck() -> str:
    """A thread that nobody can stop."""
    threading.Event().wait()
    return "never"


@tool
async def evil() -> str:
    """Try to act on the terminal."""
    return "\x1b[2J\x1b]0;stolen title\x07plain\x9b31m\u202e"


def model(request: ModelRequest) -> ModelReply:
    """Each word of the task is a tool; ``break`` is a model that fails."""
    words = next(each.content for each in request.messages if each.role == "user").split()
    done = sum(each.role == "tool" for each in request.messages)
    if done == len(words):
        return text(f"done: {request.messages[-1].content}")
    if words[done] == "break":
        raise RuntimeError("the model is broken")
    return tool_call(words[done])


registry = ToolRegistry([look, hang, once, blast, stuck, evil])
guard = GuardConfig(lease_ttl_s=1)
app = App(
    algorithm=ToolLoop(registry),
    handlers=[
        LLMHandler(FakeLLMClient(model)),
        ToolHandler(registry, guard=guard, cancel_grace_s=0.1),
    ],
)
patient = App(
    algorithm=ToolLoop(registry, on_unknown="wait"),
    handlers=[
        LLMHandler(FakeLLMClient(model)),
        ToolHandler(registry, guard=guard, cancel_grace_s=0.1),
    ],
)
# A provider's model; its key stands in the environment, or not.
remote = App(
    algorithm=ToolLoop(registry),
    handlers=[LLMHandler(ProviderClient("openai:m")), ToolHandler(registry, guard=guard)],
)
