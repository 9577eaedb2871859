"""An agent that needs no model and no account: it calls one tool, then repeats what that said."""

from typing import Any

from aaa.algos import ToolLoop
from aaa.app import App
from aaa.llm import FakeLLMClient, LLMHandler
from aaa.llm.fake import text, tool_call
from aaa.tools import ToolHandler, ToolRegistry, tool


@tool(delivery="at_most_once")
async def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}."


def model(request: Any) -> Any:
    """Stands for a language model."""
    last = request.messages[-1]
    return tool_call("greet", name="world") if last.role == "user" else text(last.content)


tools = ToolRegistry([greet])
app = App(
    algorithm=ToolLoop(tools),
    handlers=[LLMHandler(FakeLLMClient(model)), ToolHandler(tools)],
)
