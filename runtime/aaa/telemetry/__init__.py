"""Telemetry: traces and metrics through OpenTelemetry's API, and structured logs.

Nothing is recorded, and OpenTelemetry is not even loaded, until the process sets up an SDK.
docs/telemetry.md lists every span, metric and log event. ``RunIdGenerator`` is in
``aaa.telemetry.idgenerator``, which needs the extra ``otel``.
"""

from __future__ import annotations

from aaa.telemetry.logs import JsonFormatter, tell
from aaa.telemetry.setup import configure_from_environment
from aaa.telemetry.signals import SILENT, Telemetry
from aaa.telemetry.traces import RunTraces, span_id_of, trace_id_of, traceparent_of

__all__ = [
    "SILENT",
    "JsonFormatter",
    "RunTraces",
    "Telemetry",
    "configure_from_environment",
    "span_id_of",
    "tell",
    "trace_id_of",
    "traceparent_of",
]
