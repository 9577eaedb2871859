"""Exporting because the environment says so, and ending in time whatever the collector does."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from aaa.telemetry import configure_from_environment
from aaa.telemetry.setup import Flusher

BOUND_S = 60

PROGRAM = """
import asyncio
from aaa.telemetry import configure_from_environment
assert configure_from_environment(worker="w1", flush_timeout_s={flush})
from aaa.algos import ToolLoop
from aaa.llm import FakeLLMClient, LLMHandler
from aaa.llm.fake import text
from aaa.runtime import Engine
from aaa.tools import ToolRegistry

async def main():
    async with Engine() as engine:
        LLMHandler(FakeLLMClient(lambda request: text("done"))).attach(engine)
        print((await engine.run(ToolLoop(ToolRegistry([])), {{}}, "run-1")).status)

asyncio.run(main())
"""


class Collector(BaseHTTPRequestHandler):
    """Keeps what is posted."""

    bodies: dict[str, list[bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.setdefault(self.path, []).append(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def collector() -> Iterator[tuple[str, dict[str, list[bytes]]]]:
    bodies: dict[str, list[bytes]] = {}
    kind = type("Kept", (Collector,), {"bodies": bodies})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", bodies
        server.shutdown()


def run(endpoint: str, *, flush_s: float, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(flush=flush_s)],
        env={
            "PYTHONPATH": ":".join(sys.path),
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
            **env,
        },
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )


def test_traces_and_metrics_are_sent_before_the_process_ends(
    collector: tuple[str, dict[str, list[bytes]]],
) -> None:
    endpoint, bodies = collector
    done = run(endpoint, flush_s=30)
    assert (done.returncode, done.stdout) == (0, "completed\n"), done.stderr
    spans, resources = [], []
    for body in bodies["/v1/traces"]:
        for each in ExportTraceServiceRequest.FromString(body).resource_spans:
            resources += [(a.key, a.value.string_value) for a in each.resource.attributes]
            spans += [span for scope in each.scope_spans for span in scope.spans]
    assert {("service.name", "aaa"), ("service.instance.id", "w1")} <= set(resources)
    [run_span] = [span for span in spans if span.name == "aaa.run"]
    assert not run_span.parent_span_id
    names = {
        metric.name
        for body in bodies["/v1/metrics"]
        for each in ExportMetricsServiceRequest.FromString(body).resource_metrics
        for scope in each.scope_metrics
        for metric in scope.metrics
    }
    assert {"aaa.run.closed", "aaa.store.duration"} <= names


def test_a_collector_that_never_answers_does_not_hold_the_process_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        # The exporter alone would wait for ten minutes.
        done = run(f"http://127.0.0.1:{port}", flush_s=0.2, OTEL_EXPORTER_OTLP_TIMEOUT="600")
    assert (done.returncode, done.stdout) == (0, "completed\n"), done.stderr


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_nothing_is_set_up_unless_an_endpoint_is_named(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert configure_from_environment() is False


def test_without_the_extra_nothing_is_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert configure_from_environment() is False


def test_a_flush_is_bounded_and_says_whether_it_came_to_an_end() -> None:
    never, ended = threading.Event(), threading.Event()
    assert Flusher((ended.set,)).flush(BOUND_S) is True
    assert ended.is_set()
    assert Flusher((never.wait, ended.set)).flush(0.01) is False
    never.set()
