"""One span for each pass that carries something out: what a run's submission is linked to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from aaa.telemetry import RunTraces, Telemetry, names
from aaa_operator.actions import Action


def reconciling(
    telemetry: Telemetry | None, namespace: str, actions: Sequence[Action]
) -> AbstractContextManager[Any]:
    """The span, current inside it; nothing where nothing is recorded or nothing is to be done."""
    if telemetry is None or telemetry.tracer is None or not actions:
        return nullcontext()
    traces = RunTraces(telemetry.tracer)
    about = {names.NAMESPACE: namespace, names.ACTIONS: len(actions)}
    return traces.entered(traces.start(names.RECONCILE, about))
