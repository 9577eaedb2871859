"""Tools in a child process: what they get, what comes back, and that they can be stopped."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aaa import events as ev
from aaa.algos import ToolLoop
from aaa.check import check_run
from aaa.clock import SYSTEM_CLOCK
from aaa.errors import ConfigError, NotExecuted, OutcomeUnknown, ResultRejected
from aaa.events import Event
from aaa.llm import LLMHandler
from aaa.llm.fake import FakeLLMClient, text, tool_call
from aaa.runtime import Engine
from aaa.tools import GuardConfig, Tool, ToolContext, ToolHandler, ToolRegistry, tool
from aaa.tools.isolate import MAX_OUTPUT_BYTES, ProcessLost, RaisedInChild, run_isolated
from unit import isolated_tools as tools

BOUND_S = 60


@pytest.fixture(autouse=True)
async def bound() -> AsyncIterator[None]:
    async with asyncio.timeout(BOUND_S):
        yield


def context(**changes: Any) -> ToolContext:
    given = {"run_id": "r", "call_id": "c1-0", "idempotency_key": "k", "attempt": 2}
    return ToolContext(**{**given, **changes})


async def marked(place: Path) -> int:
    """The process that a tool names once it runs."""
    while not place.exists():
        await asyncio.sleep(0.005)
    return int(place.read_text())


def gone(pid: int) -> bool:
    """Whether the process ends within a bound; it is nobody's child here."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], BOUND_S)[0])
    finally:
        os.close(watched)


# ------------------------------------------------------------------------ what goes in and out


async def test_the_child_gets_checked_arguments_and_the_context_and_reports_progress() -> None:
    heard: list[tuple[str, float | None]] = []
    deadline = SYSTEM_CLOCK.boot_s() + 30
    ctx = context(
        deadline=deadline, clock=SYSTEM_CLOCK.boot_s, on_progress=lambda *said: heard.append(said)
    )
    result = await run_isolated(tools.describe, {"day": "2025-01-02"}, ctx)
    assert result.pop("pid") != os.getpid()
    assert result == {
        "parent": os.getpid(),
        "day": "2025-01-02",
        "run": "r",
        "call": "c1-0",
        "key": "k",
        "attempt": 2,
        "limited": True,
        "pythonpath": os.environ.get("PYTHONPATH"),
        "stdin": "",
    }
    assert heard == [("half", 0.5)]


async def test_a_tool_that_is_not_async_runs_there_too() -> None:
    assert await run_isolated(tools.sync_tool, {"word": "a"}, context()) == "A"


async def test_what_a_tool_prints_is_bounded_in_the_log_and_never_a_result(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "aaa.tool.output")
    assert await run_isolated(tools.noisy, {"megabytes": 3}, context()) == "real"
    assert sum(len(r.getMessage()) for r in caplog.records) > MAX_OUTPUT_BYTES / 2
    assert sum(len(r.getMessage()) for r in caplog.records) < 2 * MAX_OUTPUT_BYTES
    assert "dropped" in caplog.records[-1].getMessage()


async def test_a_result_over_the_limit_is_rejected_and_says_that_the_tool_did_run() -> None:
    with pytest.raises(ResultRejected, match="huge did run, but its result of 1002 bytes"):
        await run_isolated(tools.huge, {"size": 1_000}, context(), limit_bytes=1_000)


async def test_what_the_tool_raises_keeps_its_meaning_its_name_and_its_message() -> None:
    with pytest.raises(OutcomeUnknown, match=r"^gone$"):
        await run_isolated(tools.raising, {"kind": "unknown"}, context())
    with pytest.raises(NotExecuted, match=r"^closed$"):
        await run_isolated(tools.raising, {"kind": "not"}, context())
    with pytest.raises(RaisedInChild, match=r"^no such order$") as raised:
        await run_isolated(tools.raising, {"kind": "value"}, context())
    assert type(raised.value).__name__ == "ValueError"
    with pytest.raises(RaisedInChild, match="tried to exit the process"):
        await run_isolated(tools.raising, {"kind": "exit"}, context())


@pytest.mark.parametrize(
    ("how", "said"), [("SIGSEGV", "ended by SIGSEGV"), ("exit", "exited with 3")]
)
async def test_a_process_that_dies_after_the_tool_began_is_a_lost_attempt(
    how: str, said: str
) -> None:
    with pytest.raises(ProcessLost, match=f"the process of dies .*{said} without a result"):
        await run_isolated(tools.dies, {"how": how}, context())


async def test_a_tool_that_the_child_cannot_find_or_that_has_changed_is_not_executed() -> None:
    moved = tool(tools.sync_tool.function, name="moved", isolation="process")
    moved.__dict__["schema_digest"] = "0" * 32
    with pytest.raises(NotExecuted, match=r"moved was not run: .* is not what it was"):
        await run_isolated(moved, {"word": "a"}, context())
    with pytest.raises(NotExecuted, match=r"sync_tool was not run: .*word: is required"):
        await run_isolated(tools.sync_tool, {}, context())


async def test_a_process_that_cannot_start_has_not_executed_the_tool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(NotExecuted, match="no child process could be started"):
        await run_isolated(tools.sync_tool, {"word": "a"}, context())
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(NotExecuted, match="exited with 1 before it began"):
        await run_isolated(tools.sync_tool, {"word": "a"}, context())


def test_a_function_that_a_child_cannot_import_is_refused_where_it_is_defined() -> None:
    def inner() -> None: ...

    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("def program() -> None: ...", namespace)
    with pytest.raises(ConfigError, match="this one is in a class or another function"):
        tool(inner, isolation="process")
    with pytest.raises(ConfigError, match="this one is in the program itself"):
        tool(namespace["program"], isolation="process")


# ------------------------------------------------------------------------------------- stopping


async def _cancel(which: Tool[..., Any], place: Path, grace_s: float) -> tuple[int, Any]:
    task = asyncio.create_task(
        run_isolated(which, {"place": str(place)}, context(), grace_s=grace_s)
    )
    pid = await marked(place)
    task.cancel()
    ended = await asyncio.gather(task, return_exceptions=True)
    return pid, ended[0]


async def test_a_busy_loop_is_killed(tmp_path: Path) -> None:
    pid, result = await _cancel(tools.busy, tmp_path / "pid", 0.05)
    assert isinstance(result, asyncio.CancelledError)
    assert gone(pid)


async def test_an_async_tool_is_cancelled_and_a_sync_one_may_end_in_time(tmp_path: Path) -> None:
    pid, result = await _cancel(tools.waits, tmp_path / "a", BOUND_S)
    assert isinstance(result, asyncio.CancelledError)
    assert gone(pid)
    pid, result = await _cancel(tools.polite, tmp_path / "b", BOUND_S)
    assert result == "stopped in time"
    assert gone(pid)


async def test_processes_that_the_tool_has_started_are_stopped_with_it(tmp_path: Path) -> None:
    company, _ = await _cancel(tools.with_company, tmp_path / "pid", 0.05)
    assert gone(company)


PROGRAM = """
import asyncio, json, sys
sys.path[:] = json.loads(sys.argv[1])
from aaa.tools import ToolContext
from aaa.tools.isolate import run_isolated
from unit import isolated_tools

ctx = ToolContext(run_id="r", call_id="c", idempotency_key="k")
tool = getattr(isolated_tools, sys.argv[2])
asyncio.run(run_isolated(tool, {"place": sys.argv[3]}, ctx))
"""


@pytest.mark.parametrize("which", ["busy", "waits"])
async def test_an_orphan_ends_when_its_parent_is_killed(which: str, tmp_path: Path) -> None:
    place = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", PROGRAM, json.dumps(sys.path), which, place])
    try:
        pid = await marked(place)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait(BOUND_S)
    assert gone(pid)


# --------------------------------------------------------------------------- under the guard


async def _run(which: Tool[..., Any], arguments: dict[str, Any]) -> tuple[Engine, list[Event]]:
    def model(request: Any) -> Any:
        asked = any(message.role == "assistant" for message in request.messages)
        return text("done") if asked else tool_call(which.name, **arguments)

    registry = ToolRegistry([which])
    async with Engine() as engine:
        LLMHandler(FakeLLMClient(model)).attach(engine)
        handler = ToolHandler(registry, guard=GuardConfig(), cancel_grace_s=0.2)
        handler.attach(engine)
        outcome = await engine.run(ToolLoop(registry), {"task": "go"})
        events = list(await engine.events(outcome.run_id))
    assert check_run(events) == []
    return engine, events


def _result(events: list[Event]) -> dict[str, Any]:
    (result,) = [e for e in events if e.type in (ev.TOOL_COMPLETED, ev.TOOL_FAILED)]
    return result.data


async def test_a_time_limit_stops_a_tool_for_real_and_the_worker_stays(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    limited = tool(tools.busy.function, name="busy", isolation="process", timeout_s=3.0)
    engine, events = await _run(limited, {"place": str(place)})
    assert (_result(events)["error"], _result(events)["effect"]) == ("ToolTimeout", "unknown")
    assert engine.unstoppable == []
    assert not place.exists() or gone(int(place.read_text()))


async def test_a_process_that_dies_is_run_again_under_at_least_once(tmp_path: Path) -> None:
    _, events = await _run(tools.dies_once, {"marks": str(tmp_path)})
    assert _result(events)["result"] == "attempt 2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


async def test_a_process_that_always_dies_is_given_up_after_its_attempts() -> None:
    _, events = await _run(tools.dies, {"how": "SIGKILL"})
    assert _result(events)["error"] == "ExecutionAbandoned"
    assert sum(event.type == ev.TOOL_STARTED for event in events) == 3


async def test_a_process_that_dies_under_at_most_once_leaves_its_outcome_unknown(
    tmp_path: Path,
) -> None:
    once = tool(
        tools.dies_once.function, name="dies_once", isolation="process", delivery="at_most_once"
    )
    _, events = await _run(once, {"marks": str(tmp_path)})
    assert (_result(events)["error"], _result(events)["effect"]) == ("OutcomeUnknown", "unknown")
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


async def test_an_unguarded_process_that_dies_is_given_up_at_once() -> None:
    loose = tool(tools.dies.function, name="dies", isolation="process", guard={"enabled": False})
    _, events = await _run(loose, {"how": "SIGKILL"})
    assert _result(events)["error"] == "ExecutionAbandoned"
