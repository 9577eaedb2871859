"""Log records that a machine can read."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from typing import Any

import pytest

from aaa.algos import RunState, ToolLoop
from aaa.events import Event
from aaa.runtime import Engine
from aaa.store import MemoryEventStore
from aaa.telemetry import JsonFormatter, names, tell
from aaa.tools import ToolRegistry, tool
from unit.telemetry_scene import BOUND_S, Recorder, attach, run_once

LOG = logging.getLogger("aaa.test")


def line(caplog: pytest.LogCaptureFixture, **fixed: object) -> str:
    return JsonFormatter(**fixed).format(caplog.records[-1])


def test_a_record_is_one_line_of_json_with_its_event_and_fields(
    caplog: pytest.LogCaptureFixture,
) -> None:
    event = names.LOG_CALL_BROKE
    about: dict[str, Any] = {"run_id": "run-1", "call_id": "c1", "attempt": 2}
    tell(LOG, event, "call %s broke", "c1", **about)
    record = caplog.records[-1]
    assert (record.levelno, record.__dict__["event"]) == (logging.ERROR, event.name)
    assert record.__dict__["run_id"] == "run-1"
    assert record.funcName == "test_a_record_is_one_line_of_json_with_its_event_and_fields"
    told = json.loads(line(caplog, worker="w1"))
    assert told.pop("time").endswith("Z")
    assert told == {
        "level": "error",
        "logger": "aaa.test",
        "event": "aaa.call.broke",
        "message": "call c1 broke",
        "worker": "w1",
        **about,
    }


def test_nothing_in_a_message_gets_out_of_its_line() -> None:
    nasty = 'a\nb\r\x1b[2J\x00\x7f\x9b31m\u2028\ud800"}'
    # Apart from the tree of loggers: no report of a test can hold such a text.
    apart, out = logging.Logger("aaa.test"), io.StringIO()  # noqa: LOG001
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter())
    apart.addHandler(handler)
    tell(apart, names.LOG_RUN_STUCK, "%s", nasty, run_id=nasty)
    written = out.getvalue().removesuffix("\n")
    assert written.isprintable()
    assert written.isascii()
    assert json.loads(written)["message"] == json.loads(written)["run_id"] == nasty


def test_a_record_of_others_is_formatted_too_with_its_exception(
    caplog: pytest.LogCaptureFixture,
) -> None:
    try:
        raise ValueError("no")
    except ValueError:
        LOG.exception("broken")
    told = json.loads(line(caplog))
    assert told["event"] == "log"
    assert told["exception"].endswith("ValueError: no")


def test_a_record_inside_a_span_names_it(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    with recorder.tracers.get_tracer("t").start_as_current_span("here") as span:
        LOG.warning("inside")
        told = json.loads(line(caplog))
    assert told["trace_id"] == f"{span.get_span_context().trace_id:032x}"
    assert told["span_id"] == f"{span.get_span_context().span_id:016x}"


def test_a_silent_level_costs_no_record(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    tell(LOG, names.LOG_NOT_LEFT, "%s", "x", worker="w1")
    assert caplog.records == []


async def test_a_tool_that_raises_is_logged_with_its_trace_where_traces_are_wanted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool(name="pay")
    async def broken(to: str) -> str:
        raise RuntimeError("the bank is closed")

    with caplog.at_level(logging.INFO, logger="aaa"):
        await run_once(Recorder(), broken)
    assert "aaa.call.raised" not in {getattr(each, "event", "") for each in caplog.records}
    with caplog.at_level(logging.DEBUG, logger="aaa"):
        await run_once(Recorder(), broken)
    [told] = [each for each in caplog.records if getattr(each, "event", "") == "aaa.call.raised"]
    assert told.exc_info is not None
    assert str(told.exc_info[1]) == "the bank is closed"


async def test_an_algorithm_that_raises_is_logged_with_run_and_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(ToolLoop):
        def decide(self, event: Event, state: RunState) -> list[Event]:
            raise RuntimeError("no idea")

    store = MemoryEventStore()
    async with Engine(store, worker="w1") as engine:
        attach(engine)
        await engine.submit(Broken(ToolRegistry([])), {}, "run-1")

        async def parked() -> None:
            async for event in engine.follow("run-1"):
                if event.type == "aaa.run.parked":
                    return

        await asyncio.wait_for(parked(), BOUND_S)
    told = [vars(r) for r in caplog.records if vars(r).get("event") == "aaa.run.algorithm_failed"]
    assert [(each["run_id"], each["worker"]) for each in told] == [("run-1", "w1")] * 3
