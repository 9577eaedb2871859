"""Metrics of a run, and what a process without an SDK pays: nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from aaa.clock import SYSTEM_CLOCK
from aaa.errors import StoreUnavailable
from aaa.runtime import Engine
from aaa.runtime.observe import NOTHING, Observer
from aaa.store import MemoryEventStore, port
from aaa.store.port import Committed, Operation, Pulse
from aaa.store.traced import TracedStore
from aaa.telemetry import SILENT, Telemetry, names
from aaa.tools import ToolContext, tool
from unit.telemetry_scene import BOUND_S, Recorder, attach, run_once


async def test_a_run_is_counted_at_each_of_its_steps() -> None:
    recorder = Recorder()
    await run_once(recorder)
    pay = {"messaging__destination__name": "tool/pay"}
    assert recorder.counted("aaa.run.submitted") == 1
    assert recorder.counted("aaa.run.closed", aaa__run__status="completed") == 1
    started = recorder.counted("aaa.call.started", aaa__call__delivery="at_least_once", **pay)
    assert started == recorder.counted("aaa.call.ended", aaa__call__outcome="completed", **pay) == 1
    assert recorder.counted("aaa.call.takeovers") == 0
    assert recorder.counted("aaa.call.settled", aaa__settle__verdict="applied", **pay) == 1
    assert recorder.counted("aaa.run.decisions", aaa__decision__accepted=True) >= 3
    assert recorder.counted("gen_ai.client.inference.usage.input_tokens") == 11
    [sizes] = recorder.points()["aaa.store.commit.size"]
    commits = [
        point
        for point in recorder.points()["aaa.store.duration"]
        if point.attributes["aaa.store.operation"] == "commit"
    ]
    assert sizes.count == sum(point.count for point in commits) > 0


async def test_slots_in_use_are_seen_while_a_call_runs_and_no_longer_than_the_engine() -> None:
    recorder = Recorder()
    seen: list[int] = []

    @tool(name="pay")
    async def look(to: str) -> str:
        seen.extend(point.value for point in recorder.points()["aaa.slots.in_use"])
        return "paid"

    await run_once(recorder, look)
    assert seen == [1]
    assert "aaa.slots.in_use" not in recorder.points()


async def test_a_lost_effect_under_at_most_once_is_counted_as_unknown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, recorder = MemoryEventStore(), Recorder()
    started = asyncio.Event()

    @tool(name="pay", delivery="at_most_once")
    async def stuck(to: str, ctx: ToolContext) -> str:
        started.set()
        await asyncio.get_running_loop().create_future()
        return "paid"

    dead = Engine(store, worker="w1", worker_ttl_s=0.6)
    await dead.start()
    loop = attach(dead, stuck)
    await dead.submit(loop, {}, "run-1")
    await asyncio.wait_for(started.wait(), BOUND_S)
    await dead.kill()
    async with Engine(store, telemetry=recorder.telemetry, worker="w2", worker_ttl_s=0.6) as engine:
        engine.serve(attach(engine, stuck))
        await asyncio.wait_for(engine.wait("run-1"), BOUND_S)
    assert recorder.counted("aaa.call.unknown", aaa__unknown__at="store") == 1
    assert recorder.counted("aaa.call.takeovers", messaging__destination__name="tool/pay") == 0
    [told] = [each for each in caplog.records if getattr(each, "event", "") == "aaa.call.unknown"]
    assert told.getMessage() == "run run-1: a call was lost, and may have acted: aaa show run-1"


class Flaky(MemoryEventStore):
    """Gone for two commits, once it is told so."""

    gone = 0

    async def commit(
        self, partition: int, operations: Sequence[Operation], *, seen: int = 0
    ) -> Committed:
        if self.gone:
            self.gone -= 1
            raise StoreUnavailable("no answer")
        return await super().commit(partition, operations, seen=seen)


async def test_a_store_that_is_gone_is_counted_and_marks_the_span() -> None:
    store, recorder = Flaky(), Recorder()
    store.gone = 2
    await run_once(recorder, store=store)
    assert recorder.counted("aaa.store.unavailable", aaa__store__operation="commit") == 2
    failed = [s for s in recorder.spans("aaa.store.commit") if "error.type" in (s.attributes or {})]
    assert [dict(s.attributes or {})["error.type"] for s in failed] == ["StoreUnavailable"] * 2
    assert all(span.status.description is None and not span.events for span in failed)


def test_a_heartbeat_that_fails_is_measured_with_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken:
        def pulse(self, pulse: Pulse) -> port.Beat:
            raise StoreUnavailable("no answer")

        def leave(self, worker: str) -> None: ...

        def close(self) -> None: ...

    recorder = Recorder()
    store = MemoryEventStore()
    monkeypatch.setattr(store, "renewer", Broken)
    renewer = TracedStore(store, recorder.telemetry, SYSTEM_CLOCK).renewer()
    with pytest.raises(StoreUnavailable, match="no answer"):
        renewer.pulse(Pulse(worker="w1", apps=(), ttl_ms=1_000))
    [point] = recorder.points()["aaa.lease.renew.duration"]
    assert (point.count, dict(point.attributes)) == (1, {"error.type": "StoreUnavailable"})


async def test_without_an_sdk_nothing_is_wrapped_and_no_object_is_made() -> None:
    store = MemoryEventStore()
    engine = Engine(store)
    assert engine.store is store
    observer = Observer(SILENT, store, worker="w1", clock=SYSTEM_CLOCK)
    none: Any = None
    steps = [
        observer.submitting("run-1", none),
        observer.deciding(none, none),
        observer.attempting(none, none),
    ]
    assert all(step is NOTHING for step in steps)
    assert observer.on_tick is None
    assert not Telemetry().tracing
    assert not Telemetry().measuring
    SILENT.count(names.RUNS_SUBMITTED)


def test_a_run_without_an_sdk_does_not_load_opentelemetry() -> None:
    program = (
        "import asyncio, sys\n"
        "from aaa.algos import ToolLoop\n"
        "from aaa.llm import FakeLLMClient, LLMHandler\n"
        "from aaa.llm.fake import text\n"
        "from aaa.runtime import Engine\n"
        "from aaa.telemetry import configure_from_environment\n"
        "from aaa.tools import ToolRegistry\n"
        "async def main():\n"
        "    assert not configure_from_environment()\n"
        "    async with Engine() as engine:\n"
        "        LLMHandler(FakeLLMClient(lambda request: text('done'))).attach(engine)\n"
        "        return await engine.run(ToolLoop(ToolRegistry([])), {})\n"
        "print(asyncio.run(main()).status, [m for m in sys.modules if 'opentelemetry' in m])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("completed []\n", "")
