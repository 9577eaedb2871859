"""Between our conversation and the provider library's: ids, broken arguments, what must go back."""

from __future__ import annotations

import json

import pytest
from pydantic_ai import messages as wire

from aaa.errors import ConfigError
from aaa.llm import Message, ModelReply, ToolCall
from aaa.llm.arguments import read_call
from aaa.llm.wire import to_provider, to_reply

SIGNED = wire.ModelResponse(
    parts=[
        wire.ThinkingPart("hm", id="rs_1", signature="opaque", provider_name="openai"),
        wire.ToolCallPart("refund", '{"order_id": "A-1"}', "call_x", id="fc_1"),
        wire.ToolCallPart("refund", '{"order_id": "A-2"}', "call_y", id="fc_2"),
    ],
    provider_name="openai",
)


def sent_ids(messages: list[wire.ModelMessage]) -> tuple[list[str], list[str]]:
    parts = [part for message in messages for part in message.parts]
    return (
        [part.tool_call_id for part in parts if isinstance(part, wire.ToolCallPart)],
        [part.tool_call_id for part in parts if isinstance(part, wire.ToolReturnPart)],
    )


def test_what_a_provider_signed_goes_back_whole_after_a_stay_in_the_log() -> None:
    reply = ModelReply.from_json(json.loads(json.dumps(to_reply(SIGNED, "openai").to_json())))
    turn = [
        Message("user", "refund both"),
        Message.assistant(reply, call_ids=["c3-0", "c3-1"]),
        Message.tool("c3-1", "second"),
        Message.tool("c3-0", "first"),
    ]
    sent = to_provider(turn, "openai")
    assert list(sent[1].parts) == list(SIGNED.parts)
    assert sent_ids(sent) == (["call_x", "call_y"], ["call_y", "call_x"])


def test_another_provider_gets_the_text_and_the_calls_only() -> None:
    reply = to_reply(SIGNED, "openai")
    sent = to_provider([Message.assistant(reply, call_ids=["c3-0", "c3-1"])], "anthropic")
    assert [type(part) for part in sent[0].parts] == [wire.ToolCallPart, wire.ToolCallPart]
    assert sent_ids(sent)[0] == ["c3-0", "c3-1"]


def test_a_plain_answer_is_not_kept_twice() -> None:
    plain = wire.ModelResponse(parts=[wire.TextPart("hi")], provider_details={"x": 1})
    assert to_reply(plain, "openai").continuation is None


def test_calls_without_ids_are_answered_in_their_order() -> None:
    calls = (ToolCall("a"), ToolCall("b"))
    turn = [
        Message("assistant", tool_calls=calls),
        Message.tool(None, 1),
        Message.tool(None, 2),
    ]
    made, answered = sent_ids(to_provider(turn, "openai"))
    assert made == answered
    assert len(set(made)) == 2


@pytest.mark.parametrize("call_id", ["c9-9", "c3-0"])
def test_an_answer_to_no_open_call_is_refused(call_id: str) -> None:
    turn = [
        Message("assistant", tool_calls=(ToolCall("a", {}, "c3-0"),)),
        Message.tool("c3-0", 1),
        Message.tool(call_id, 2),
    ]
    with pytest.raises(ConfigError, match=f"answers call '{call_id}'"):
        to_provider(turn, "openai")


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("{", "Expecting property name"),
        ("nul", "Expecting value"),
        ('"A-1"', "must be an object"),
        ('{"a": 1, "a": 1}', "'a' is given more than once"),
        ('{"a": {"b": 1, "b": 2}}', "'b' is given more than once"),
        ('{"a": Infinity}', "Infinity is not a JSON value"),
        ('{"a": "\\ud800"}', "half a character"),
        ("[" * 100_000, "nested too deeply"),
        ({"a": float("nan")}, "NaN is not a JSON value"),
    ],
)
def test_broken_arguments_say_what_is_wrong_and_never_raise(raw: str, said: str) -> None:
    call = read_call("refund", raw, id="x")
    assert call.arguments == {}
    assert call.arguments_error is not None
    assert said in call.arguments_error
    assert len(call.raw_arguments or "") <= 10_000
    json.dumps(call.to_json(), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("raw", "value"),
    [("", {}), (None, {}), ("{}", {}), ('{"a": "é"}', {"a": "é"}), ({"a": 1}, {"a": 1})],
)
def test_usable_arguments_are_read(raw: str | None, value: dict[str, object]) -> None:
    assert read_call("refund", raw, id=None) == ToolCall("refund", value)
