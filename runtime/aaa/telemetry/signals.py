"""Telemetry: where spans and measurements go, if anywhere.

It holds a tracer and instruments of the providers that the process has, or of those that it was
given. Where there is none, nothing of OpenTelemetry is loaded, and whoever asks ``tracing`` or
``measuring`` first does no work at all. Set up the SDK before the Engine is made.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from aaa.telemetry.names import METRICS, MetricName

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

SCOPE: Final = "aaa"
#: The conventions that the names follow.
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.0"
CONTENT_VARIABLE: Final = "AAA_TELEMETRY_CONTENT"
Attributes = Mapping[str, Any]
_NONE: Final[Attributes] = {}

_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_COUNTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Telemetry:
    """A process's, or one engine's, way out for spans and measurements.

    ``content`` lets spans hold the arguments and results of tools; the default is the environment
    variable ``AAA_TELEMETRY_CONTENT=1``, and no.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        content: bool | None = None,
    ) -> None:
        self.content = os.environ.get(CONTENT_VARIABLE) == "1" if content is None else content
        self.tracer: Tracer | None = None
        self._instruments: dict[str, Any] = {}
        self._observed: dict[str, dict[str, tuple[Callable[[], int], Attributes]]] = {}
        if tracer_provider is not None:
            self.tracer = tracer_provider.get_tracer(SCOPE, schema_url=SCHEMA_URL)
        if meter_provider is not None:
            self._make(meter_provider)

    @classmethod
    def current(cls) -> Self:
        """What the process has set up; nothing if it has not."""
        return cls(tracer_provider=_tracer_provider(), meter_provider=_meter_provider())

    @property
    def tracing(self) -> bool:
        """Spans go somewhere."""
        return self.tracer is not None

    @property
    def measuring(self) -> bool:
        """Measurements go somewhere."""
        return bool(self._instruments)

    def count(self, metric: MetricName, attributes: Attributes = _NONE, value: int = 1) -> None:
        """Add to a counter; as :meth:`record`."""
        self.record(metric, value, attributes)

    def record(self, metric: MetricName, value: float, attributes: Attributes = _NONE) -> None:
        """Add to a counter or record in a histogram; ``None`` attributes are left out."""
        instrument = self._instruments.get(metric.name)
        if instrument is None:
            return
        kept = {name: each for name, each in attributes.items() if each is not None}
        if metric.instrument == "counter":
            instrument.add(value, kept)
        else:
            instrument.record(value, kept)

    def observe(
        self, metric: MetricName, key: str, read: Callable[[], int], of: Attributes
    ) -> None:
        """Have a gauge read whenever measurements are collected, until :meth:`forget`."""
        if self.measuring:
            self._observed[metric.name][key] = (read, of)

    def forget(self, key: str) -> None:
        """Stop reading the gauges that were observed under this key."""
        for observed in self._observed.values():
            observed.pop(key, None)

    def _make(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(SCOPE, schema_url=SCHEMA_URL)
        for metric in METRICS:
            about = {"name": metric.name, "unit": metric.unit, "description": metric.description}
            if metric.instrument == "counter":
                made: Any = meter.create_counter(**about)
            elif metric.instrument == "histogram":
                buckets = _SECONDS if metric.unit == "s" else _COUNTS
                made = meter.create_histogram(
                    **about, explicit_bucket_boundaries_advisory=list(buckets)
                )
            else:
                self._observed[metric.name] = {}
                made = meter.create_observable_gauge(
                    metric.name,
                    [self._reader(metric.name)],
                    unit=metric.unit,
                    description=metric.description,
                )
            self._instruments[metric.name] = made

    def _reader(self, name: str) -> Callable[[Any], list[Any]]:
        from opentelemetry.metrics import Observation

        def read(_options: Any) -> list[Any]:
            return [Observation(get(), of) for get, of in list(self._observed[name].values())]

        return read


#: Nothing is recorded.
SILENT: Final = Telemetry(content=False)


def _tracer_provider() -> TracerProvider | None:
    # Who has set a provider has loaded the API; OTEL_PYTHON_* lets the API itself load one.
    if "opentelemetry.trace" not in sys.modules and "OTEL_PYTHON_TRACER_PROVIDER" not in os.environ:
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    return None if _records_nothing(provider) else provider


def _meter_provider() -> MeterProvider | None:
    if "opentelemetry.metrics" not in sys.modules and (
        "OTEL_PYTHON_METER_PROVIDER" not in os.environ
    ):
        return None
    from opentelemetry import metrics

    provider = metrics.get_meter_provider()
    return None if _records_nothing(provider) else provider


def _records_nothing(provider: object) -> bool:
    """The API's own providers are placeholders."""
    return type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))
