"""Between our conversation and pydantic-ai's.

Call ids in our messages are ours. A provider gets its own back where the reply that made the call
is kept whole (``continuation``), since some check them; otherwise it gets ours. Two calls of one
turn that share an id are answered in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_ai import messages as wire
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from aaa.errors import ConfigError
from aaa.llm.arguments import read_call
from aaa.llm.messages import Message, ModelReply, ToolSpec, Usage


@dataclass(frozen=True, slots=True)
class _Open:
    """A call that has no answer yet: its id in our messages and on the wire."""

    ours: str | None
    theirs: str
    name: str


def to_parameters(tools: Sequence[ToolSpec]) -> ModelRequestParameters:
    """The tools as the library wants them."""
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=dict(tool.schema),
            )
            for tool in tools
        ]
    )


def to_provider(messages: Sequence[Message], system: str) -> list[wire.ModelMessage]:
    """The conversation for the provider ``system``; raises ConfigError if it makes no sense."""
    result: list[wire.ModelMessage] = []
    parts: list[wire.ModelRequestPart] = []
    waiting: list[_Open] = []
    for index, message in enumerate(messages):
        if message.role == "assistant":
            if parts:
                result.append(wire.ModelRequest(parts=parts))
                parts = []
            response = _response(message, index, system)
            if response.parts:
                result.append(response)
            waiting = _calls(message, response)
        elif message.role == "tool":
            call = _answered(message, waiting)
            parts.append(wire.ToolReturnPart(call.name, message.content, call.theirs))
        elif message.role == "user":
            parts.append(wire.UserPromptPart(message.content))
        else:
            parts.append(wire.SystemPromptPart(message.content))
    if parts:
        result.append(wire.ModelRequest(parts=parts))
    return result


def to_reply(response: wire.ModelResponse, system: str) -> ModelReply:
    """The provider's answer as ours; broken arguments are in their ToolCall, nothing raises."""
    calls = tuple(
        read_call(part.tool_name, part.args, id=part.tool_call_id)
        for part in response.parts
        if isinstance(part, wire.ToolCallPart)
    )
    text = "".join(part.content for part in response.parts if isinstance(part, wire.TextPart))
    return ModelReply(
        content=text,
        tool_calls=calls,
        usage=Usage(response.usage.input_tokens, response.usage.output_tokens),
        finish_reason=response.finish_reason,
        model=response.model_name,
        continuation=None if _is_plain(response) else _continuation(response, system),
    )


def _response(message: Message, index: int, system: str) -> wire.ModelResponse:
    kept = message.continuation
    if kept is not None and kept.get("system") == system:
        (response,) = wire.ModelMessagesTypeAdapter.validate_python([kept["response"]])
        if isinstance(response, wire.ModelResponse):
            return response
    parts: list[wire.ModelResponsePart] = []
    if message.content:
        parts.append(wire.TextPart(message.content))
    for place, call in enumerate(message.tool_calls):
        arguments: Any = dict(call.arguments) if call.raw_arguments is None else call.raw_arguments
        identity = call.id or f"call_{index}_{place}"
        parts.append(wire.ToolCallPart(call.name, arguments, identity))
    return wire.ModelResponse(parts=parts)


def _calls(message: Message, response: wire.ModelResponse) -> list[_Open]:
    theirs = [part for part in response.parts if isinstance(part, wire.ToolCallPart)]
    return [
        _Open(call.id, part.tool_call_id, part.tool_name)
        for call, part in zip(message.tool_calls, theirs, strict=True)
    ]


def _answered(message: Message, waiting: list[_Open]) -> _Open:
    for place, call in enumerate(waiting):
        if message.tool_call_id is None or message.tool_call_id == call.ours:
            return waiting.pop(place)
    raise ConfigError(
        f"the conversation answers call {message.tool_call_id!r}, which the turn before it did not "
        "make or which is answered already"
    )


def _is_plain(response: wire.ModelResponse) -> bool:
    """Whether text and calls say everything, so that the answer need not be kept whole."""
    return all(
        isinstance(part, (wire.TextPart, wire.ToolCallPart))
        and part.id is None
        and part.provider_details is None
        for part in response.parts
    )


def _continuation(response: wire.ModelResponse, system: str) -> dict[str, Any]:
    (whole,) = wire.ModelMessagesTypeAdapter.dump_python([response], mode="json")
    slim = {name: value for name, value in whole.items() if value not in (None, [], {})}
    return {"system": system, "response": slim}
