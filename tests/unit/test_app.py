"""An app says what it is called, and what it would wait for in vain."""

from __future__ import annotations

from pathlib import Path

import pytest

from aaa.algos import ToolLoop
from aaa.app import App
from aaa.client import Client
from aaa.errors import AppError, ConfigError
from aaa.llm import LLMHandler
from aaa.llm.fake import FakeLLMClient, text
from aaa.runtime import Engine
from aaa.tools import ToolHandler, ToolRegistry, tool


@tool
async def look(order_id: str) -> str:
    """Look an order up."""
    return order_id


@tool
async def ship(order_id: str) -> str:
    """Ship an order."""
    return order_id


def _model() -> LLMHandler:
    return LLMHandler(FakeLLMClient(lambda request: text("done")))


BOTH = ToolRegistry([look, ship])


@pytest.mark.parametrize(
    ("handlers", "says"),
    [
        ([ToolHandler(BOTH)], "asks a model, but there is no LLMHandler"),
        ([_model()], "offers the tool look, but there is no ToolHandler"),
        (
            [_model(), ToolHandler(ToolRegistry([look]))],
            "offers the tool ship, but there is a ToolHandler without it",
        ),
    ],
    ids=["no model", "no tools", "other tools"],
)
async def test_a_loop_without_what_it_needs_is_refused_before_a_run_can_hang(
    handlers: list[LLMHandler | ToolHandler], says: str
) -> None:
    with pytest.raises(AppError, match=f"{says}; give it to App"):
        App(algorithm=ToolLoop(BOTH), handlers=handlers)
    async with Engine() as engine:
        for handler in handlers:
            handler.attach(engine)
        with pytest.raises(ConfigError, match=f"{says}; attach it before submitting"):
            await engine.submit(ToolLoop(BOTH), {"task": "ship"}, "r1")
        assert await engine.store.run("r1") is None


def test_a_loop_without_tools_needs_a_model_only() -> None:
    assert App(algorithm=ToolLoop(ToolRegistry([])), handlers=[_model()]).full_name() == (
        "local/aaa.tool_loop@1/none"
    )


async def test_what_submits_by_the_name_of_an_app_runs_nothing(tmp_path: Path) -> None:
    """The name is the one that a worker serves; the policies are those of the worker alone."""
    app = App(algorithm=ToolLoop(BOTH), handlers=[_model(), ToolHandler(BOTH)])
    url = f"sqlite:///{tmp_path}/work.db"
    async with Client(url) as client:
        run = await client.submit(app.full_name(), {"task": "ship"}, run_id="r1")
        assert (await client.members()).members == ()
        assert [event.type for event in await client.events("r1")] == ["aaa.run.requested"]
        engine = Engine(url)
        assert app.attach(engine) == app.full_name()
        async with engine:
            assert (await engine.wait(run.run_id)).status == "completed"
    assert app.full_name("shop").startswith("shop/")
