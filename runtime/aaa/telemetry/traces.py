"""One trace a run, wherever its steps happen, without a word about it in the log.

The trace id is a digest of the store's identity and the run id; the ids of the spans that others
refer to (the run, a request, an attempt) are digests of what they stand for. So every worker
that has the store knows the context of every call, also of one that it takes over, and no event
or id depends on whether anybody traces. What a span's parent is never depends on which task
happened to start another: contexts are always given.

Sampling is decided by the trace id, so all workers with the same sampler decide alike.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from aaa.telemetry import names
from aaa.telemetry.logs import tell
from aaa.telemetry.names import SpanName

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, Tracer

log = logging.getLogger("aaa.telemetry")

#: Trace id and span id of the span that is being started, for :class:`RunIdGenerator`.
WANTED: Final[ContextVar[tuple[int, int] | None]] = ContextVar("aaa_wanted_ids", default=None)


def trace_id_of(identity: str, run_id: str) -> int:
    """The trace of a run in the store with this identity: 128 bits, never 0."""
    return _digest(b"aaa-trace-v1", 16, identity, run_id)


def span_id_of(key: str) -> int:
    """The span that stands for a run, a request or an attempt: 64 bits, never 0."""
    return _digest(b"aaa-span-v1", 8, key)


def traceparent_of(identity: str, run_id: str) -> str:
    """W3C ``traceparent`` of a run, for whoever wants to hang its own spans under it."""
    return f"00-{trace_id_of(identity, run_id):032x}-{span_id_of(run_id):016x}-01"


class RunTraces:
    """Starts spans in the traces of the runs of one store."""

    def __init__(self, tracer: Tracer) -> None:
        from opentelemetry import context, trace

        self._trace, self._empty = trace, context.Context
        self._tracer = tracer
        #: The store's; known once it is open.
        self.identity = ""
        self._kinds = {
            "internal": trace.SpanKind.INTERNAL,
            "client": trace.SpanKind.CLIENT,
            "producer": trace.SpanKind.PRODUCER,
        }
        #: Spans get the ids that others refer to; else those refer to a span that nobody sees.
        self._obeyed = hasattr(getattr(tracer, "id_generator", None), "obeys_aaa")
        self._sampler = getattr(tracer, "sampler", None)
        self._broken = False

    def context(self, run_id: str, key: str | None = None) -> SpanContext:
        """The context of the span that stands for ``key`` (a request, an attempt), or the run."""
        trace_id = trace_id_of(self.identity, run_id)
        sampled = self._trace.TraceFlags(1 if self._sampled(trace_id) else 0)
        return self._trace.SpanContext(trace_id, span_id_of(key or run_id), True, sampled)

    def start(
        self,
        name: SpanName,
        attributes: Mapping[str, Any],
        *,
        title: str | None = None,
        run_id: str | None = None,
        under: str | None = None,
        own: str | None = None,
        links: Sequence[SpanContext] = (),
        start_ms: int | None = None,
    ) -> Span:
        """Start a span, in the trace of ``run_id`` below ``under`` (by default the run).

        ``own`` is the key that it stands for; a span that stands for its run has no parent.
        Without a run it begins a trace.
        """
        context, wanted = self._empty(), None
        if run_id is not None:
            root = own == run_id and self._obeyed
            if not root:
                parent = self._trace.NonRecordingSpan(self.context(run_id, under))
                context = self._trace.set_span_in_context(parent, context)
            if own is not None:
                wanted = (trace_id_of(self.identity, run_id), span_id_of(own))
        token = WANTED.set(wanted)
        try:
            return self._tracer.start_span(
                title or name.name,
                context=context,
                kind=self._kinds[name.kind],
                attributes={key: each for key, each in attributes.items() if each is not None},
                links=[self._trace.Link(link) for link in links],
                start_time=None if start_ms is None else start_ms * 1_000_000,
            )
        except Exception as error:  # noqa: BLE001 - a broken processor must not break a run
            self.broke(error)
            return self._trace.INVALID_SPAN
        finally:
            WANTED.reset(token)

    def end(self, span: Span, *, at_ms: int | None = None) -> None:
        """End a span, now or at a given time. Never raises."""
        try:
            span.end(end_time=None if at_ms is None else at_ms * 1_000_000)
        except Exception as error:  # noqa: BLE001
            self.broke(error)

    def broke(self, error: Exception) -> None:
        """Say once that telemetry itself does not work; the work goes on."""
        if not self._broken:
            self._broken = True
            message = "telemetry fails, the work goes on: %r (said once)"
            tell(log, names.LOG_TELEMETRY_BROKE, message, error)

    @contextmanager
    def entered(self, span: Span) -> Iterator[Span]:
        """Make the span current, and end it; an exception is told by its type alone."""
        with self.current(span):
            try:
                yield span
            except BaseException as error:
                self.failed(span, type(error).__name__)
                raise
            finally:
                self.end(span)

    def current(self, span: Span) -> AbstractContextManager[Any]:
        """Make the span current without ending it."""
        return self._trace.use_span(
            span, end_on_exit=False, record_exception=False, set_status_on_exception=False
        )

    def failed(self, span: Span, error: str) -> None:
        """Mark a span as failed. Never with a message: it may hold what a tool was given."""
        span.set_attribute("error.type", error)
        span.set_status(self._trace.StatusCode.ERROR)

    def caller(self) -> Span | None:
        """The span that the code which called in is in, if there is one."""
        span = self._trace.get_current_span()
        return span if span.get_span_context().is_valid else None

    def _sampled(self, trace_id: int) -> bool:
        """As the sampler decides on a trace without a parent, so that every worker agrees."""
        decide: Callable[..., Any] | None = getattr(self._sampler, "should_sample", None)
        if decide is None:
            return True
        return bool(decide(self._empty(), trace_id, "aaa.run").decision.is_sampled())


def _digest(person: bytes, size: int, *parts: str) -> int:
    digest = blake2b(digest_size=size, person=person)
    for part in parts:
        digest.update(len(part.encode()).to_bytes(8, "big"))
        digest.update(part.encode())
    return int.from_bytes(digest.digest(), "big") or 1
