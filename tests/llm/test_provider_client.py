"""ProviderClient against a server that counts: one ``complete``, one request, whatever happens."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from aaa.errors import (
    ConfigError,
    FixError,
    ModelError,
    ModelRateLimited,
    ModelRefused,
    ModelUnavailable,
    RetryError,
)
from aaa.llm import Message, ModelReply, ModelRequest, ProviderClient, ToolCall, ToolSpec, Usage
from llm.openai_server import Answer, OpenAIServer

KEY = "sk-very-secret-0123456789"
BOUND_S = 30
Connect = Callable[..., ProviderClient]
SCHEMA = {
    "type": "object",
    "properties": {"order_id": {"type": "string"}},
    "required": ["order_id"],
    "additionalProperties": False,
}
ASK = ModelRequest(
    (Message("system", "Be brief."), Message("user", "refund A-1")),
    (ToolSpec("refund", "Refund an order.", SCHEMA),),
)


@pytest.fixture(scope="module")
def running() -> Iterator[OpenAIServer]:
    with OpenAIServer() as started:
        yield started


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's proxy settings must not lead the tests off the machine."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")


@pytest.fixture
def server(running: OpenAIServer) -> OpenAIServer:
    running.forget()
    return running


@pytest.fixture
async def connect(server: OpenAIServer) -> AsyncIterator[Connect]:
    """Makes clients of the server, and closes them whatever the test does."""
    opened: list[ProviderClient] = []

    def make(kind: str = "openai", **options: Any) -> ProviderClient:
        base_url = f"{server.address}/v1" if kind == "openai" else server.address
        opened.append(
            ProviderClient(f"{kind}:test-model", base_url=base_url, api_key=KEY, **options)
        )
        return opened[-1]

    yield make
    for client in opened:
        await client.aclose()


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def client(connect: Connect, request: pytest.FixtureRequest) -> ProviderClient:
    return connect(stream=request.param)


async def ask(client: ProviderClient, request: ModelRequest = ASK) -> ModelReply:
    return await asyncio.wait_for(client.complete(request), BOUND_S)


async def test_a_text_answer_comes_with_its_usage(
    server: OpenAIServer, client: ProviderClient
) -> None:
    server.answers(Answer("Hello there."))
    reply = await ask(client)
    assert (reply.content, reply.tool_calls) == ("Hello there.", ())
    assert reply.usage == Usage(input_tokens=11, output_tokens=7)
    assert (reply.finish_reason, reply.model) == ("stop", "test-model")
    assert server.requests == 1


async def test_the_model_gets_the_conversation_and_the_tools(
    server: OpenAIServer, client: ProviderClient
) -> None:
    server.answers(Answer("ok"))
    await ask(client)
    body = server.bodies[0]
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "refund A-1"},
    ]
    function = body["tools"][0]["function"]
    assert (function["name"], function["description"]) == ("refund", "Refund an order.")
    assert function["parameters"] == SCHEMA


async def test_parallel_calls_keep_their_order_and_the_providers_ids(
    server: OpenAIServer, client: ProviderClient
) -> None:
    server.answers(
        Answer(
            calls=(
                ("call_x", "refund", '{"order_id": "A-1"}'),
                ("call_y", "refund", '{"order_id": "A-2"}'),
            ),
            finish_reason="tool_calls",
        )
    )
    reply = await ask(client)
    assert reply.tool_calls == (
        ToolCall("refund", {"order_id": "A-1"}, "call_x"),
        ToolCall("refund", {"order_id": "A-2"}, "call_y"),
    )
    assert reply.finish_reason == "tool_call"


async def test_the_answers_of_the_tools_go_back_under_matching_ids(
    server: OpenAIServer, client: ProviderClient
) -> None:
    # Both calls carry the provider's same id; ours tell them apart.
    asked = ModelReply(
        tool_calls=(ToolCall("refund", {"order_id": "A-1"}, "x"), ToolCall("refund", {}, "x"))
    )
    server.answers(Answer("done"))
    turn = (
        Message.assistant(asked, call_ids=["c3-0", "c3-1"]),
        Message.tool("c3-1", {"status": "failed"}),
        Message.tool("c3-0", "refunded A-1"),
    )
    await ask(client, ModelRequest((*ASK.messages, *turn), ASK.tools))
    sent = server.bodies[0]["messages"][2:]
    assert [call["id"] for call in sent[0]["tool_calls"]] == ["c3-0", "c3-1"]
    assert [(m["tool_call_id"], m["content"]) for m in sent[1:]] == [
        ("c3-1", '{"status":"failed"}'),
        ("c3-0", "refunded A-1"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"order_id": ', "Expecting value"),
        ('["A-1"]', "must be an object"),
        ('{"order_id": "A-1", "order_id": "A-2"}', "'order_id' is given more than once"),
        ('{"order_id": NaN}', "NaN is not a JSON value"),
    ],
)
async def test_broken_arguments_come_back_as_something_to_tell_the_model(
    server: OpenAIServer, client: ProviderClient, arguments: str, said: str
) -> None:
    server.answers(Answer(calls=(("call_x", "refund", arguments),), finish_reason="tool_calls"))
    (call,) = (await ask(client)).tool_calls
    assert (call.name, call.id, dict(call.arguments)) == ("refund", "call_x", {})
    assert call.arguments_error is not None
    assert said in call.arguments_error
    assert call.raw_arguments == arguments

    # And the model can be told: the conversation with the broken call is accepted.
    server.answers(Answer("sorry"))
    turn = (Message("assistant", tool_calls=(call,)), Message.tool("call_x", call.arguments_error))
    assert (await ask(client, ModelRequest((*ASK.messages, *turn), ASK.tools))).content == "sorry"


@pytest.mark.parametrize(
    ("answer", "kind", "status"),
    [
        (Answer(status=500), ModelUnavailable, 500),
        (Answer(status=503), ModelUnavailable, 503),
        (Answer(status=408), ModelUnavailable, 408),
        (Answer(status=429, headers={"retry-after": "7"}), ModelRateLimited, 429),
        (Answer(status=400), ModelRefused, 400),
        (Answer(status=401), ModelRefused, 401),
        (Answer(status=404), ModelRefused, 404),
    ],
)
async def test_an_error_of_the_provider_is_one_request_and_one_kind(
    server: OpenAIServer,
    client: ProviderClient,
    answer: Answer,
    kind: type[ModelError],
    status: int,
) -> None:
    server.answers(answer)
    with pytest.raises(kind, match="out of order") as caught:
        await ask(client)
    assert caught.value.status == status
    assert isinstance(caught.value, FixError if kind is ModelRefused else RetryError)
    if isinstance(caught.value, ModelRateLimited):
        assert caught.value.retry_after_s == 7
    assert server.requests == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", ["anthropic", "google", "openai-responses"])
@pytest.mark.parametrize("status", [500, 429])
async def test_no_providers_library_retries_by_itself(
    server: OpenAIServer, connect: Connect, kind: str, status: int, stream: bool
) -> None:
    client = connect(kind, stream=stream)
    server.answers(Answer(status=status))
    with pytest.raises(ModelRateLimited if status == 429 else ModelUnavailable):
        await ask(client)
    assert server.requests == 1


async def test_an_answer_that_is_cut_is_one_request(
    server: OpenAIServer, client: ProviderClient
) -> None:
    server.answers(Answer("Hello there.", fault="cut"))
    with pytest.raises(ModelUnavailable):
        await ask(client)
    assert server.requests == 1


@pytest.mark.parametrize(
    "answer",
    [
        Answer("Hello there.", fault="early"),
        Answer(calls=(("call_x", "refund", "{}"),), fault="early"),
    ],
    ids=["text", "call"],
)
async def test_a_stream_that_ends_politely_but_early_is_no_answer(
    server: OpenAIServer, connect: Connect, answer: Answer
) -> None:
    client = connect(stream=True)
    server.answers(answer)
    with pytest.raises(ModelUnavailable, match="broke off"):
        await ask(client)
    assert server.requests == 1


async def test_a_silent_provider_is_left_after_the_time_limit(
    server: OpenAIServer, connect: Connect
) -> None:
    client = connect(timeout_s=0.2)
    server.answers(Answer(fault="silent"))
    with pytest.raises(ModelUnavailable, match=r"did not finish its answer within 0\.2 s"):
        await ask(client)
    assert server.requests == 1


async def test_a_provider_that_cannot_be_reached_is_unavailable() -> None:
    client = ProviderClient("openai:m", base_url="http://127.0.0.1:9/v1", api_key=KEY)
    with pytest.raises(ModelUnavailable):
        await ask(client)


async def test_streamed_text_is_shown_bit_by_bit(server: OpenAIServer, connect: Connect) -> None:
    bits: list[str] = []
    client = connect(stream=True, on_text=bits.append)
    server.answers(Answer("Hello there."))
    assert (await ask(client)).content == "Hello there."
    assert bits == ["Hello ", "there."]


async def test_a_client_can_be_closed_and_used_again(
    server: OpenAIServer, client: ProviderClient
) -> None:
    server.answers(Answer("one"), Answer("two"))
    assert (await ask(client)).content == "one"
    await client.aclose()
    assert (await ask(client)).content == "two"


async def test_a_key_is_in_no_repr_and_no_error(
    server: OpenAIServer, client: ProviderClient
) -> None:
    server.answers(Answer(status=401, error=f"Incorrect API key provided: {KEY}."))
    with pytest.raises(ModelRefused, match=r"Incorrect API key provided: \*\*\*") as caught:
        await ask(client)
    assert KEY not in "".join(traceback.format_exception(caught.value))
    assert KEY not in repr(client)


def test_the_key_of_the_environment_is_not_sent_to_another_address(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    client = ProviderClient("openai:test-model", base_url=f"{server.address}/v1")
    client.prepare()
    assert client._prepared is not None
    assert client._prepared.client.api_key != KEY  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        ("gpt-5", {}, "model must be 'provider:name'"),
        ("openai:", {}, "model must be 'provider:name'"),
        ("openai:m", {"timeout_s": 0}, "timeout_s must be more than 0"),
        ("openai:m", {"settings": {"max_retries": 5}}, "settings cannot hold 'max_retries'"),
    ],
)
def test_settings_that_cannot_work_fail_at_once(
    model: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        ProviderClient(model, **options)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("openai:m", r"'openai:m'\) has no key: set OPENAI_API_KEY, or give api_key=$"),
        ("nobody:m", "nobody"),
        ("anthropic:m", "set ANTHROPIC_API_KEY, or give api_key=$"),
    ],
)
def test_a_missing_key_or_an_unknown_provider_fails_when_prepared(
    model: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=said):
        ProviderClient(model).prepare()


def test_without_the_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[llm\]'"):
        ProviderClient("openai:m")
