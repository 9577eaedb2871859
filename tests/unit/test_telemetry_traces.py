"""One trace a run: from its request to the attempts of its tools, on whichever worker."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from aaa.runtime import Engine
from aaa.store import MemoryEventStore
from aaa.telemetry import names, span_id_of, trace_id_of, traceparent_of
from aaa.tools import ToolContext, tool
from unit.telemetry_scene import BOUND_S, SECRET, Recorder, attach, run_once

STEPS = ("aaa.run", "aaa.call", "execute_tool", "chat")


def ids_of(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def run_of(recorder: Recorder) -> ReadableSpan:
    [span] = [each for each in recorder.spans() if each.name == "aaa.run"]
    return span


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_runs_spans_form_one_tree_below_the_run() -> None:
    recorder, store = Recorder(), MemoryEventStore()
    await run_once(recorder, store=store)
    identity = (await store.open()).identity
    steps = [span for span in recorder.spans() if span.name.startswith(STEPS)]
    assert {ids_of(span)[0] for span in steps} == {trace_id_of(identity, "run-1")}
    known = {ids_of(span)[1] for span in steps}
    roots = [span.name for span in steps if parent_of(span) is None]
    assert roots == ["aaa.run"]
    assert {parent_of(span) for span in steps} - {None} <= known
    [tool_span] = recorder.spans("execute_tool")
    [request] = [
        each
        for each in recorder.spans("aaa.call.request")
        if ids_of(each)[1] == parent_of(tool_span)
    ]
    assert about(request)["messaging.destination.name"] == "tool/pay"
    assert parent_of(request) == ids_of(run_of(recorder))[1] == span_id_of("run-1")
    version, trace_id, span_id, _ = traceparent_of(identity, "run-1").split("-")
    assert (version, int(trace_id, 16), int(span_id, 16)) == (
        "00",
        *ids_of(run_of(recorder)),
    )


async def test_a_takeover_joins_the_trace_and_is_linked_to_the_lost_attempt() -> None:
    store = MemoryEventStore()
    first, second = Recorder(), Recorder()
    started = asyncio.Event()

    @tool(name="pay")
    async def stuck_once(to: str, ctx: ToolContext) -> str:
        if ctx.attempt == 1:
            started.set()
            await asyncio.get_running_loop().create_future()
        return f"paid {to}"

    dead = Engine(store, telemetry=first.telemetry, worker="w1", worker_ttl_s=0.6)
    await dead.start()
    loop = attach(dead, stuck_once)
    await dead.submit(loop, {"task": SECRET}, "run-1")
    await asyncio.wait_for(started.wait(), BOUND_S)
    await dead.kill()
    async with Engine(store, telemetry=second.telemetry, worker="w2", worker_ttl_s=0.6) as engine:
        engine.serve(attach(engine, stuck_once))
        outcome = await asyncio.wait_for(engine.wait("run-1"), BOUND_S)
    assert outcome.status == "completed"
    [lost], [again] = first.spans("execute_tool"), second.spans("execute_tool")
    assert ids_of(lost)[0] == ids_of(again)[0] == ids_of(run_of(second))[0]
    assert parent_of(lost) == parent_of(again)
    assert [link.context.span_id for link in again.links] == [ids_of(lost)[1]]
    assert [about(span)["aaa.call.attempt"] for span in (lost, again)] == [1, 2]
    assert [about(span)["aaa.worker"] for span in (lost, again)] == ["w1", "w2"]
    assert second.counted("aaa.call.takeovers", messaging__destination__name="tool/pay") == 1
    assert first.spans("aaa.run.decide")
    # The run's own span begins when the run began, though another worker saw that.
    run = run_of(second)
    assert (run.start_time or 0) < (again.start_time or 0)


async def test_a_submission_is_linked_with_the_callers_own_span_both_ways() -> None:
    recorder = Recorder()
    tracer = recorder.tracers.get_tracer("caller")
    with tracer.start_as_current_span("web request") as caller:
        await run_once(recorder)
    [submit] = recorder.spans("aaa.run.submit")
    [mine] = recorder.spans("web request")
    assert [link.context.span_id for link in submit.links] == [caller.get_span_context().span_id]
    assert [link.context.trace_id for link in mine.links] == [ids_of(submit)[0]]
    assert ids_of(mine)[0] != ids_of(submit)[0]
    # Nothing of the run ended up below whichever span happened to be current.
    assert not [s.name for s in recorder.spans() if parent_of(s) == ids_of(mine)[1]]


async def test_attempts_carry_the_conventions_attributes() -> None:
    recorder = Recorder()
    await run_once(recorder)
    [execute] = recorder.spans("execute_tool")
    assert execute.name == "execute_tool pay"
    assert execute.kind is trace.SpanKind.INTERNAL
    expected = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "pay",
        "gen_ai.tool.type": "function",
        "gen_ai.conversation.id": "run-1",
        "aaa.call.outcome": "completed",
        "aaa.call.delivery": "at_least_once",
    }
    assert expected.items() <= about(execute).items()
    assert about(execute)["gen_ai.tool.call.id"]
    first = recorder.spans("chat")[0]
    usage = {"gen_ai.usage.input_tokens": 11, "gen_ai.usage.output_tokens": 7}
    assert usage.items() <= about(first).items()
    assert first.kind is trace.SpanKind.CLIENT
    kinds = {
        (about(each)["messaging.operation.name"], about(each)["messaging.operation.type"])
        for each in recorder.spans("aaa.call")
    }
    assert kinds == {("request", "send"), ("claim", "receive"), ("settle", "settle")}


async def test_a_tools_own_spans_hang_below_its_attempt() -> None:
    recorder = Recorder()
    tracer = recorder.tracers.get_tracer("tool")

    @tool(name="pay")
    def pay_in_a_thread(to: str) -> str:
        with tracer.start_as_current_span("POST /refunds"):
            return "paid"

    await run_once(recorder, pay_in_a_thread)
    [execute], [own] = recorder.spans("execute_tool"), recorder.spans("POST /refunds")
    assert own.parent is not None
    assert (own.parent.trace_id, own.parent.span_id) == ids_of(execute)


async def test_a_failed_tool_marks_its_span_by_the_errors_name_alone() -> None:
    recorder = Recorder()

    @tool(name="pay")
    async def fail(to: str) -> str:
        raise ValueError(f"no account {to}")

    await run_once(recorder, fail)
    [execute] = recorder.spans("execute_tool")
    assert about(execute)["error.type"] == "ToolError"
    assert execute.status.status_code is trace.StatusCode.ERROR
    assert execute.status.description is None
    assert not execute.events
    assert recorder.counted("aaa.call.ended", aaa__call__outcome="failed") == 1


async def test_every_worker_decides_alike_whether_a_run_is_sampled() -> None:
    kept: set[str] = set()
    store = MemoryEventStore()
    recorder = Recorder(sampler=ParentBased(TraceIdRatioBased(0.5)))
    for number in range(12):
        await run_once(recorder, store=store, run_id=f"run-{number}")
    identity = (await store.open()).identity
    limit = TraceIdRatioBased.get_bound_for_rate(0.5)
    for number in range(12):
        trace_id = trace_id_of(identity, f"run-{number}")
        steps = {span.name for span in recorder.spans() if ids_of(span)[0] == trace_id}
        if trace_id & TraceIdRatioBased.TRACE_ID_LIMIT < limit:
            assert {"aaa.run", "aaa.run.submit", "execute_tool pay"} <= steps
            kept.add(str(number))
        else:
            assert not steps
    assert 0 < len(kept) < 12


async def test_without_our_id_generator_a_run_is_still_one_trace() -> None:
    recorder, store = Recorder(generator=RandomIdGenerator()), MemoryEventStore()
    await run_once(recorder, store=store)
    identity = (await store.open()).identity
    steps = [span for span in recorder.spans() if span.name.startswith(STEPS)]
    assert {ids_of(span)[0] for span in steps} == {trace_id_of(identity, "run-1")}


async def test_tracing_changes_no_event_of_a_run() -> None:
    plain, watched = MemoryEventStore(), MemoryEventStore()
    async with Engine(plain, worker="w1") as engine:
        loop = attach(engine)
        await asyncio.wait_for(engine.run(loop, {"task": SECRET}, "run-1"), BOUND_S)
    await run_once(Recorder(), store=watched)
    of = [[(e.seq, e.id, e.type, e.raw) for e in await s.read("run-1")] for s in (plain, watched)]
    assert of[0] == of[1]


@pytest.mark.parametrize("broken", ["on_start", "on_end"])
async def test_a_span_processor_that_raises_breaks_no_run(
    broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(SpanProcessor):
        def on_start(self, span: Span, parent_context: Context | None = None) -> None:
            if broken == "on_start":
                raise OSError("disk full")

        def on_end(self, span: ReadableSpan) -> None:
            if broken == "on_end":
                raise OSError("disk full")

    recorder = Recorder()
    recorder.tracers.add_span_processor(Broken())
    outcome = await run_once(recorder)
    assert outcome.status == "completed"
    assert [r.name for r in caplog.records if vars(r)["event"] == "aaa.telemetry.broke"]


@pytest.mark.parametrize("content", [False, True])
async def test_arguments_and_results_leave_only_when_asked_for(
    content: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    recorder = Recorder(content=content)
    outcome = await run_once(recorder)
    assert SECRET in outcome.value["text"]
    spans = "".join(span.to_json() for span in recorder.spans())
    assert (SECRET in spans) is content
    [execute] = recorder.spans("execute_tool")
    assert (names.GEN_AI_ARGUMENTS in about(execute)) is content
    assert (names.GEN_AI_RESULT in about(execute)) is content
    assert SECRET not in repr(recorder.points())
    assert SECRET not in caplog.text + repr([vars(record) for record in caplog.records])
