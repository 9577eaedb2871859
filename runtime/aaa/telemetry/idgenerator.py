"""An id generator for the OpenTelemetry SDK that gives a run's spans the ids of ``aaa.telemetry``.

Pass it to your own ``TracerProvider(id_generator=RunIdGenerator())``; ``configure_from_environment``
does. Without it a run's spans still share one trace, but hang below parents that are not shown.
Importing this module needs the extra ``otel``.
"""

from __future__ import annotations

from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from aaa.telemetry.traces import WANTED


class RunIdGenerator(RandomIdGenerator):
    """Random ids, except for spans that stand for a run, a request or an attempt."""

    obeys_aaa = True

    def generate_trace_id(self) -> int:
        wanted = WANTED.get()
        return super().generate_trace_id() if wanted is None else wanted[0]

    def generate_span_id(self) -> int:
        wanted = WANTED.get()
        return super().generate_span_id() if wanted is None else wanted[1]
