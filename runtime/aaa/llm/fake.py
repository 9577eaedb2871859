"""A model made of a function, for tests, examples and trying things out without a provider.

The function gets the :class:`ModelRequest` and returns ``text(...)``, ``tool_call(...)`` or
``tool_calls([...])``. It may be async, and may raise what a real client raises.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aaa.errors import ConfigError
from aaa.llm.messages import ModelReply, ModelRequest, ToolCall


def text(content: str) -> ModelReply:
    """The model says something."""
    return ModelReply(content=content, finish_reason="stop")


def tool_call(name: str, /, **arguments: Any) -> ModelReply:
    """The model calls one tool."""
    return ModelReply(tool_calls=(ToolCall(name, arguments),), finish_reason="tool_call")


def tool_calls(calls: Iterable[ToolCall | ModelReply]) -> ModelReply:
    """The model calls several tools in one turn: ``tool_calls([tool_call("a"), tool_call("b")])``."""
    wanted: list[ToolCall] = []
    for call in calls:
        wanted.extend(call.tool_calls if isinstance(call, ModelReply) else (call,))
    return ModelReply(tool_calls=tuple(wanted), finish_reason="tool_call")


class FakeLLMClient:
    """An LLMClient that asks ``function``; ``requests`` counts how often it was asked."""

    def __init__(
        self, function: Callable[[ModelRequest], ModelReply | Awaitable[ModelReply]]
    ) -> None:
        if not callable(function):
            raise ConfigError(
                f"FakeLLMClient needs a function of the request, not {function!r:.80}"
            )
        self._function = function
        self.requests = 0

    def __repr__(self) -> str:
        return f"<FakeLLMClient {getattr(self._function, '__name__', 'function')}>"

    async def complete(self, request: ModelRequest) -> ModelReply:
        """What the function returns; what it raises comes through."""
        self.requests += 1
        answer = self._function(request)
        reply: object = await answer if inspect.isawaitable(answer) else answer
        if not isinstance(reply, ModelReply):
            raise ConfigError(
                f"the function of a FakeLLMClient must return text(...) or tool_call(...), "
                f"not {type(reply).__name__}"
            )
        return reply
