"""A client submits to an app that it has not loaded, and looks after the run cheaply."""

from __future__ import annotations

import pytest

from aaa.algos import ToolLoop
from aaa.client import Client
from aaa.errors import ConfigError, DecisionRefused, RunConflict, RunDeleted
from aaa.llm import LLMHandler
from aaa.llm.fake import FakeLLMClient, text, tool_call
from aaa.llm.messages import ModelReply, ModelRequest
from aaa.runtime import Engine
from aaa.store import MemoryEventStore
from aaa.tools import ToolHandler, ToolRegistry, tool


@tool(requires_approval=True)
async def refund(order_id: str) -> dict[str, str]:
    """Refund an order."""
    return {"refunded": order_id}


def _model(request: ModelRequest) -> ModelReply:
    if request.messages[-1].role == "tool":
        return text("done")
    return tool_call("refund", order_id="A-100")


def _engine(store: MemoryEventStore) -> tuple[Engine, str]:
    registry = ToolRegistry([refund])
    engine = Engine(store)
    LLMHandler(FakeLLMClient(_model)).attach(engine)
    ToolHandler(registry).attach(engine)
    return engine, engine.serve(ToolLoop(registry))


async def test_a_run_submitted_by_name_is_the_run_that_an_engine_would_begin() -> None:
    store = MemoryEventStore()
    engine, app = _engine(store)
    await store.open()
    client = Client(store)
    run = await client.submit(app, {"task": "refund"}, run_id="r1")
    again = await client.submit(app, {"task": "refund"}, run_id="r1")
    assert (run.dup, again.dup) == (False, True)
    async with engine:
        assert (await engine.submit(ToolLoop(ToolRegistry([refund])), {"task": "refund"}, "r1")).dup
    with pytest.raises(RunConflict, match="other input"):
        await client.submit(app, {"task": "another"}, run_id="r1")
    with pytest.raises(ConfigError, match="not a full name"):
        await client.submit("loop", {}, run_id="r2")
    await client.delete("r1", force=True)
    with pytest.raises(RunDeleted, match="was deleted"):
        await client.submit(app, {"task": "refund"}, run_id="r1")


async def test_an_overview_follows_a_run_and_reads_only_what_is_new() -> None:
    store = MemoryEventStore()
    engine, app = _engine(store)
    await store.open()
    client = Client(store)
    assert await client.overview("r1") is None
    await client.submit(app, {"task": "refund"}, run_id="r1")
    view = await client.overview("r1")
    assert view is not None
    assert (view.status, view.requested) == ("open", 0)
    async with engine:
        async for event in engine.follow("r1"):
            if event.type == "aaa.tool.approval_requested":
                break
        view = await client.overview("r1", known=view)
        assert view is not None
        (waiting,) = view.waiting
        (call,) = await client.pending("r1")
        assert (waiting.call_id, waiting.args_digest) == (call.call_id, call.args_digest)
        assert waiting.tool == "refund"
        await client.approve("r1", call.call_id, by="ann")
        await engine.wait("r1")
    known = await client.overview("r1", known=view)
    assert known is view
    assert (view.status, view.value, view.completed) == (
        "completed",
        {"text": "done"},
        1,
    )
    assert not view.open_calls


async def test_a_run_that_has_not_ended_is_not_deleted_and_the_way_out_is_said() -> None:
    store = MemoryEventStore()
    _, app = _engine(store)
    async with Client(store) as client:
        await client.submit(app, {"task": "refund"}, run_id="r1")
        with pytest.raises(DecisionRefused, match="cancel it first, or delete it with force"):
            await client.delete("r1")
        await client.cancel("r1", by="ann")
        with pytest.raises(DecisionRefused, match="wait for its calls in flight, or delete it"):
            await client.delete("r1")
        assert await client.delete("r1", force=True)
