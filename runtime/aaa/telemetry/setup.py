"""Setting up the OpenTelemetry SDK for the command and the worker, if the environment asks for it.

The standard variables decide (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_SERVICE_NAME``,
``OTEL_TRACES_SAMPLER``, ``OTEL_SDK_DISABLED`` …). A library never calls this: a program that
embeds the Engine sets up its own SDK. A collector that is gone costs nothing but its data: what
is left is flushed at exit within a bounded time.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from aaa.errors import extra_hint
from aaa.telemetry import names
from aaa.telemetry.logs import tell

log = logging.getLogger("aaa.telemetry")

ENDPOINTS: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
FLUSH_TIMEOUT_S: Final = 3.0


def configure_from_environment(
    *, worker: str | None = None, flush_timeout_s: float = FLUSH_TIMEOUT_S
) -> bool:
    """Export over OTLP if an endpoint is set and the extra ``otel`` is installed; say whether.

    Call it before the Engine is made, once in a process. ``worker`` becomes the resource's
    ``service.instance.id``. At exit, what is left is sent for ``flush_timeout_s`` at most.
    """
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return False
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if not _installed():
        message = f"OTEL_… asks for telemetry, which needs {extra_hint('otel')}"
        tell(log, names.LOG_TELEMETRY_BROKE, message)
        return False
    from opentelemetry import metrics, trace

    resource = _resource(worker)
    tracers, meters = _tracer_provider(resource), _meter_provider(resource)
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(meters)
    atexit.register(Flusher((tracers.shutdown, meters.shutdown)).flush, flush_timeout_s)
    return True


class Flusher:
    """Ends things side by side in a bounded time.

    Its threads are started at once: an interpreter that is shutting down may start no more.
    """

    def __init__(self, ends: Sequence[Callable[[], object]]) -> None:
        self._go, self._done = threading.Event(), threading.Event()
        self._left, self._lock = len(ends), threading.Lock()
        for end in ends:
            threading.Thread(target=self._end, args=(end,), name="aaa-flush", daemon=True).start()

    def flush(self, timeout_s: float) -> bool:
        """Call every end, for ``timeout_s`` in all; whether they came to an end in time."""
        self._go.set()
        return self._done.wait(timeout_s)

    def _end(self, end: Callable[[], object]) -> None:
        self._go.wait()
        try:
            end()
        finally:
            with self._lock:
                self._left -= 1
                if not self._left:
                    self._done.set()


def _installed() -> bool:
    try:
        return (
            importlib.util.find_spec("opentelemetry.sdk.trace") is not None
            and importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
        )
    except ModuleNotFoundError:
        return False


def _resource(worker: str | None) -> Any:
    from opentelemetry.sdk.resources import Resource

    own = {} if worker is None else {"service.instance.id": worker}
    if "OTEL_SERVICE_NAME" not in os.environ:
        own["service.name"] = "aaa"
    made = Resource.create(own)
    # What the operator of the process says about it wins.
    return made.merge(Resource.create({})) if "OTEL_RESOURCE_ATTRIBUTES" in os.environ else made


def _tracer_provider(resource: Any) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from aaa.telemetry.idgenerator import RunIdGenerator

    provider = TracerProvider(
        resource=resource, id_generator=RunIdGenerator(), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _meter_provider(resource: Any) -> Any:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    return MeterProvider(metric_readers=[reader], resource=resource, shutdown_on_exit=False)
