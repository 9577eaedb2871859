"""Runs under the SDK's in-memory exporters, and what came out of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from aaa.algos import ToolLoop
from aaa.llm import FakeLLMClient, LLMHandler, ModelReply, ModelRequest
from aaa.llm.fake import text, tool_call
from aaa.llm.messages import Usage
from aaa.runtime import Engine
from aaa.store import EventStore
from aaa.telemetry import Telemetry
from aaa.telemetry.idgenerator import RunIdGenerator
from aaa.tools import GuardConfig, ToolContext, ToolHandler, ToolRegistry, tool

BOUND_S = 20
SECRET = "sesame-4711"
FAST = GuardConfig(lease_ttl_s=0.6, max_attempts=3)


@dataclass
class Recorder:
    """A Telemetry with its exporters."""

    sampler: Sampler = ALWAYS_ON
    generator: IdGenerator = field(default_factory=RunIdGenerator)
    content: bool = False

    def __post_init__(self) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider(sampler=self.sampler, id_generator=self.generator)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider(metric_readers=[self._reader])
        self.telemetry = Telemetry(
            tracer_provider=self.tracers, meter_provider=self.meters, content=self.content
        )

    def spans(self, name: str = "") -> list[ReadableSpan]:
        return [each for each in self._exporter.get_finished_spans() if each.name.startswith(name)]

    def points(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    found.setdefault(metric.name, []).extend(metric.data.data_points)
        return found

    def counted(self, name: str, **attributes: Any) -> int:
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}
        return sum(
            point.value
            for point in self.points().get(name, ())
            if wanted.items() <= dict(point.attributes).items()
        )


def model(request: ModelRequest) -> ModelReply:
    last = request.messages[-1]
    if last.role != "user":
        return text(f"done: {last.content}")
    asked = tool_call("pay", to=SECRET)
    return ModelReply(tool_calls=asked.tool_calls, usage=Usage(11, 7), finish_reason="tool_call")


@tool
async def pay(to: str, ctx: ToolContext) -> str:
    return f"paid {to}"


def attach(engine: Engine, *tools: Any, guard: GuardConfig = FAST) -> ToolLoop:
    registry = ToolRegistry(list(tools) or [pay])
    LLMHandler(FakeLLMClient(model)).attach(engine)
    ToolHandler(registry, guard=guard).attach(engine)
    return ToolLoop(registry)


async def run_once(
    recorder: Recorder, *tools: Any, store: EventStore | None = None, run_id: str = "run-1"
) -> Any:
    async with Engine(store, telemetry=recorder.telemetry, worker="w1") as engine:
        loop = attach(engine, *tools)
        return await asyncio.wait_for(engine.run(loop, {"task": SECRET}, run_id), BOUND_S)
