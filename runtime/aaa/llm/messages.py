"""The conversation with a model, as plain values that an event log can hold.

Everything here is frozen and becomes a plain JSON object with ``to_json`` and the same value
again with ``from_json``, so that a conversation is rebuilt from the log alone. Fields that hold
nothing are left out of the JSON. Nothing here knows a provider: what one wants to get back with
its own answer travels in ``continuation``, which nobody else reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, overload

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's wish to call a tool.

    In a reply, ``id`` is the provider's, which may repeat or be missing (G13). Arguments that
    were no JSON object arrive as ``{}`` with ``arguments_error`` saying why, for the model, and
    ``raw_arguments`` as they came: such a call is answered with the error, and never run.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    arguments_error: str | None = None
    raw_arguments: str | None = None

    def to_json(self) -> dict[str, Any]:
        return _present(
            name=self.name,
            arguments=dict(self.arguments),
            id=self.id,
            arguments_error=self.arguments_error,
            raw_arguments=self.raw_arguments,
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            name=data["name"],
            arguments=data.get("arguments", {}),
            id=data.get("id"),
            arguments_error=data.get("arguments_error"),
            raw_arguments=data.get("raw_arguments"),
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """What the provider counted; 0 where it did not say."""

    input_tokens: int = 0
    output_tokens: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(data.get("input_tokens", 0), data.get("output_tokens", 0))


@dataclass(frozen=True, slots=True)
class ModelReply:
    """One answer of a model: text, wishes to call tools, or both."""

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    #: ``stop``, ``length`` (cut by a token limit), ``tool_call``, … where the provider said.
    finish_reason: str | None = None
    #: The model that answered, as the provider names it.
    model: str | None = None
    #: Opaque: what the client that made this wants back with the next request.
    continuation: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return _present(
            content=self.content,
            tool_calls=[call.to_json() for call in self.tool_calls] or None,
            usage=None if self.usage == Usage() else self.usage.to_json(),
            finish_reason=self.finish_reason,
            model=self.model,
            continuation=None if self.continuation is None else dict(self.continuation),
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            content=data.get("content", ""),
            tool_calls=tuple(ToolCall.from_json(call) for call in data.get("tool_calls", ())),
            usage=Usage.from_json(data.get("usage", {})),
            finish_reason=data.get("finish_reason"),
            model=data.get("model"),
            continuation=data.get("continuation"),
        )


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the conversation; a ``tool`` message answers the call ``tool_call_id``."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    continuation: Mapping[str, Any] | None = None

    @classmethod
    def assistant(cls, reply: ModelReply, *, call_ids: Sequence[str] | None = None) -> Self:
        """The reply as a message; ``call_ids`` are our ids for its calls, in their order."""
        calls = reply.tool_calls
        if call_ids is not None:
            named = zip(calls, call_ids, strict=True)
            calls = tuple(replace(call, id=call_id) for call, call_id in named)
        return cls("assistant", reply.content, calls, continuation=reply.continuation)

    @classmethod
    def tool(cls, call_id: str | None, result: Any) -> Self:
        """The answer to a call: text as it is, any other JSON value in compact form."""
        return cls("tool", result_text(result), tool_call_id=call_id)

    def to_json(self) -> dict[str, Any]:
        return _present(
            role=self.role,
            content=self.content,
            tool_calls=[call.to_json() for call in self.tool_calls] or None,
            tool_call_id=self.tool_call_id,
            continuation=None if self.continuation is None else dict(self.continuation),
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            role=data["role"],
            content=data.get("content", ""),
            tool_calls=tuple(ToolCall.from_json(call) for call in data.get("tool_calls", ())),
            tool_call_id=data.get("tool_call_id"),
            continuation=data.get("continuation"),
        )


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model is told of it; ``schema`` is the JSON Schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "schema": dict(self.schema)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["name"], data.get("description", ""), data["schema"])


class Conversation(Sequence[Message]):
    """The first ``length`` messages of a list that only grows, after an optional system prompt.

    A view, so that the thousandth turn costs no more to set up than the first.
    """

    __slots__ = ("_head", "_length", "_messages")

    def __init__(
        self, messages: Sequence[Message], length: int, *, system: str | None = None
    ) -> None:
        self._head = () if system is None else (Message("system", system),)
        self._messages, self._length = messages, length

    def __len__(self) -> int:
        return len(self._head) + self._length

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"message {index} of {len(self)}")
        return self._head[at] if at < len(self._head) else self._messages[at - len(self._head)]

    def __repr__(self) -> str:
        return f"<Conversation of {len(self)} messages>"


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What is sent to a model: the whole conversation, and the tools that it may call."""

    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return _present(
            messages=[message.to_json() for message in self.messages],
            tools=[tool.to_json() for tool in self.tools] or None,
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            messages=tuple(Message.from_json(message) for message in data["messages"]),
            tools=tuple(ToolSpec.from_json(tool) for tool in data.get("tools", ())),
        )


def result_text(result: Any) -> str:
    """How a model reads a recorded result: text as it is, anything else as compact JSON."""
    if isinstance(result, str):
        return result
    return json.dumps(result, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
