"""The conversation as values for the log, and the fake model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aaa.errors import ConfigError, ModelUnavailable
from aaa.llm import (
    FakeLLMClient,
    LLMClient,
    Message,
    ModelReply,
    ModelRequest,
    ProviderClient,
    ToolCall,
    ToolSpec,
    Usage,
    result_text,
)
from aaa.llm.fake import text, tool_call, tool_calls

REPLY = ModelReply(
    content="I will refund it.",
    tool_calls=(
        ToolCall("refund", {"order_id": "A-1"}, "call_x"),
        ToolCall("refund", {}, None, arguments_error="no JSON", raw_arguments="{"),
    ),
    usage=Usage(11, 7),
    finish_reason="tool_call",
    model="test-model",
    continuation={"system": "openai", "response": {"parts": []}},
)
REQUEST = ModelRequest(
    messages=(
        Message("system", "Be brief."),
        Message("user", "refund A-1"),
        Message.assistant(REPLY, call_ids=["c3-0", "c3-1"]),
        Message.tool("c3-0", {"status": "ok"}),
    ),
    tools=(ToolSpec("refund", "Refund an order.", {"type": "object"}),),
)


@pytest.mark.parametrize("value", [REPLY, REQUEST, ModelReply(), ModelRequest(())])
def test_a_value_comes_back_from_its_json_as_it_was(value: ModelReply | ModelRequest) -> None:
    stored = json.loads(json.dumps(value.to_json()))
    assert type(value).from_json(stored) == value


def test_fields_that_hold_nothing_are_not_stored() -> None:
    assert text("hi").to_json() == {"content": "hi", "finish_reason": "stop"}
    assert Message("user", "hi").to_json() == {"role": "user", "content": "hi"}


@pytest.mark.guarantee("G13")
def test_a_replys_calls_get_our_ids_in_their_order() -> None:
    message = Message.assistant(REPLY, call_ids=["c3-0", "c3-1"])
    assert [call.id for call in message.tool_calls] == ["c3-0", "c3-1"]
    with pytest.raises(ValueError, match="shorter"):
        Message.assistant(REPLY, call_ids=["c3-0"])


def test_a_model_reads_text_as_it_is_and_other_results_as_compact_json() -> None:
    assert result_text("refunded A-1") == "refunded A-1"
    assert result_text({"a": [1, "é"]}) == '{"a":[1,"é"]}'
    assert Message.tool("c1-0", None).content == "null"


async def test_a_fake_model_answers_by_its_function_whether_async_or_not() -> None:
    def by_role(request: ModelRequest) -> ModelReply:
        last = request.messages[-1]
        return tool_call("refund", name="A-1") if last.role == "user" else text(last.content)

    async def later(request: ModelRequest) -> ModelReply:
        return text("later")

    client = FakeLLMClient(by_role)
    assert isinstance(client, LLMClient)
    asked = ModelRequest((Message("user", "refund A-1"),))
    assert (await client.complete(asked)).tool_calls == (ToolCall("refund", {"name": "A-1"}),)
    answered = ModelRequest((*asked.messages, Message.tool("c1-0", "done")))
    assert (await client.complete(answered)).content == "done"
    assert client.requests == 2
    assert (await FakeLLMClient(later).complete(asked)).content == "later"


async def test_a_fake_model_may_raise_as_a_real_one_does() -> None:
    def fail(request: ModelRequest) -> Any:
        raise ModelUnavailable("down", status=503)

    with pytest.raises(ModelUnavailable, match="down"):
        await FakeLLMClient(fail).complete(ModelRequest(()))


async def test_a_fake_model_that_returns_something_else_is_told_so() -> None:
    wrong: Any = lambda _: "hello"  # noqa: E731
    with pytest.raises(ConfigError, match=r"must return text\(...\) or tool_call\(...\), not str"):
        await FakeLLMClient(wrong).complete(ModelRequest(()))


def test_several_calls_of_one_turn() -> None:
    reply = tool_calls([tool_call("a", x=1), ToolCall("b"), tool_call("a", x=2)])
    assert [(call.name, dict(call.arguments)) for call in reply.tool_calls] == [
        ("a", {"x": 1}),
        ("b", {}),
        ("a", {"x": 2}),
    ]


def test_a_provider_client_is_an_llm_client() -> None:
    assert isinstance(ProviderClient("openai:m"), LLMClient)
