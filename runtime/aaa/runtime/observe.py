"""What the engine's own steps tell: submitting, deciding, one attempt, slots, the loop's lag.

What the store makes of them is told by the store's wrapper (:mod:`aaa.store.traced`). Where
nothing is recorded, every method here returns at once, and the same object every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Final, Protocol, Self

from aaa import events as ev
from aaa import ids
from aaa.algos import Algorithm, RunState
from aaa.clock import Clock
from aaa.events import Event
from aaa.llm import LLMHandler
from aaa.runtime.attempt import Ended
from aaa.store.port import Claimed, EventStore
from aaa.store.told import queue_of
from aaa.store.traced import TracedStore, traced
from aaa.telemetry import RunTraces, Telemetry, names


class Step(Protocol):
    """A step under observation."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def decided(self, entries: int) -> None:
        """How many entries a decision has."""
        ...

    def ended(self, ended: Ended) -> None:
        """How an attempt ended."""
        ...


class Observer:
    """One engine's. ``store`` is the given store, wrapped if anything is recorded."""

    def __init__(
        self, telemetry: Telemetry, store: EventStore, *, worker: str, clock: Clock
    ) -> None:
        self.store = traced(store, telemetry, clock)
        self._telemetry, self._worker, self._clock = telemetry, worker, clock
        self._traces = self.store.traces if isinstance(self.store, TracedStore) else None
        self._on = telemetry.tracing or telemetry.measuring

    def watch_slots(self, in_use: Callable[[], int], limit: int) -> None:
        """Show the slots in use until :meth:`close`."""
        about = {names.WORKER: self._worker}
        self._telemetry.observe(names.SLOTS_IN_USE, self._worker, in_use, about)
        self._telemetry.observe(names.SLOTS_LIMIT, self._worker, lambda: limit, about)

    def close(self) -> None:
        """Show nothing of this engine any more."""
        self._telemetry.forget(self._worker)

    @property
    def on_tick(self) -> Callable[[float], None] | None:
        """Takes the event loop's lag in seconds; ``None`` if nobody wants to know."""
        if not self._telemetry.measuring:
            return None
        return lambda lag_s: self._telemetry.record(names.LOOP_LAG, max(0.0, lag_s))

    def submitting(self, run_id: str, algorithm: Algorithm) -> AbstractContextManager[Any]:
        """A submission: in the run's trace, linked with whatever span the caller is in."""
        if self._traces is None:
            return NOTHING
        return submitting(
            self._traces,
            run_id,
            algorithm=algorithm.name,
            version=str(algorithm.version),
            worker=self._worker,
        )

    def deciding(self, state: RunState, algorithm: Algorithm) -> Step:
        """One decision of an algorithm."""
        if self._traces is None:
            return NOTHING
        return _Deciding(self._traces, state, algorithm, self._worker)

    def attempting(self, claimed: Claimed, model: LLMHandler | None) -> Step:
        """One attempt of one call."""
        if not self._on:
            return NOTHING
        return _Attempting(
            claimed,
            model,
            telemetry=self._telemetry,
            traces=self._traces,
            clock=self._clock,
            worker=self._worker,
        )


class _Nothing:
    """Nothing is recorded."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def decided(self, entries: int) -> None:
        pass

    def ended(self, ended: Ended) -> None:
        pass


NOTHING: Final = _Nothing()


def submitting(
    traces: RunTraces | None, run_id: str, *, algorithm: str, version: str, worker: str | None
) -> AbstractContextManager[Any]:
    """A submission, by an engine or by a client that has no worker's name."""
    if traces is None:
        return NOTHING
    about = {
        names.WORKER: worker,
        names.GEN_AI_CONVERSATION: run_id,
        names.RUN_ID: run_id,
        names.GEN_AI_AGENT: algorithm,
        names.GEN_AI_AGENT_VERSION: version,
    }
    return _submitting(traces, run_id, about)


@contextmanager
def _submitting(traces: RunTraces, run_id: str, about: dict[str, Any]) -> Iterator[None]:
    caller = traces.caller()
    links = []
    if caller is not None:
        links.append(caller.get_span_context())
        caller.add_link(traces.context(run_id))
    with traces.entered(traces.start(names.SUBMIT, about, run_id=run_id, links=links)):
        yield


class _Spanned(_Nothing):
    """A step with a span that is current inside it."""

    __slots__ = ("_entered", "_span", "_traces")

    def __init__(self, traces: RunTraces | None, span: Any) -> None:
        self._traces, self._span = traces, span
        self._entered = traces.entered(span) if traces is not None else None

    def __enter__(self) -> Self:
        if self._entered is not None:
            self._entered.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        if self._entered is not None:
            self._entered.__exit__(*raised)

    def _set(self, **attributes: Any) -> None:
        if self._span is not None:
            for name, value in attributes.items():
                if value is not None:
                    self._span.set_attribute(name, value)


class _Deciding(_Spanned):
    __slots__ = ()

    def __init__(
        self, traces: RunTraces, state: RunState, algorithm: Algorithm, worker: str
    ) -> None:
        about = {names.WORKER: worker, names.RUN_SEQ: state.seq, **_of(state.run_id, algorithm)}
        super().__init__(traces, traces.start(names.DECIDE, about, run_id=state.run_id))

    def decided(self, entries: int) -> None:
        self._set(**{names.ENTRIES: entries})


class _Attempting(_Spanned):
    """``execute_tool`` or ``chat``; below the request's span, linked to the attempt before."""

    __slots__ = ("_begun_s", "_claimed", "_clock", "_outcome", "_point", "_telemetry")

    def __init__(
        self,
        claimed: Claimed,
        model: LLMHandler | None,
        *,
        telemetry: Telemetry,
        traces: RunTraces | None,
        clock: Clock,
        worker: str,
    ) -> None:
        self._telemetry, self._claimed, self._clock = telemetry, claimed, clock
        self._begun_s, self._outcome = clock.boot_s(), "abandoned"
        self._point = _model_of(model) if self._is_chat else _tool_of(claimed.request)
        super().__init__(traces, None if traces is None else self._start(traces, worker))

    def __enter__(self) -> Self:
        about = self._of_call()
        self._telemetry.count(names.CALLS_STARTED, {**about, names.CALL_JOB: self._claimed.job})
        if self._claimed.attempt > 1 and self._claimed.job == "run":
            self._telemetry.count(names.TAKEOVERS, about)
        return super().__enter__()

    def ended(self, ended: Ended) -> None:
        outcome, event = _outcome_of(ended), ended.outcome
        self._outcome = outcome
        data = event.data if event is not None else {}
        self._point[names.ERROR_TYPE] = data.get("error") if outcome != "fenced" else "fenced"
        self._set(**{names.CALL_OUTCOME: outcome})
        if self._traces is not None and self._point[names.ERROR_TYPE] is not None:
            self._traces.failed(self._span, self._point[names.ERROR_TYPE])
        if self._is_chat:
            self._answered(data.get("message", {}))
        elif self._telemetry.content and "result" in data:
            self._set(**{names.GEN_AI_RESULT: _json(data["result"])})

    def __exit__(self, *raised: Any) -> None:
        about = {**self._of_call(), names.CALL_OUTCOME: self._outcome}
        self._telemetry.count(names.CALLS_ENDED, about)
        if raised[0] is not None:
            self._point[names.ERROR_TYPE] = raised[0].__name__
            self._set(**{names.CALL_OUTCOME: self._outcome})
        metric = names.CHAT_DURATION if self._is_chat else names.TOOL_DURATION
        self._telemetry.record(metric, self._clock.boot_s() - self._begun_s, self._point)
        super().__exit__(*raised)

    @property
    def _is_chat(self) -> bool:
        return self._claimed.request.type == ev.LLM_REQUESTED

    def _start(self, traces: RunTraces, worker: str) -> Any:
        claimed, data = self._claimed, self._claimed.request.data
        run_id, request_id = claimed.run_id, claimed.request.id
        about = {
            **self._point,
            names.RUN_ID: run_id,
            names.CALL_ATTEMPT: claimed.attempt,
            names.CALL_JOB: claimed.job,
            names.DELIVERY: claimed.delivery,
            names.WORKER: worker,
            names.GEN_AI_CONVERSATION: run_id,
        }
        if self._is_chat:
            name, what = names.CHAT, self._point.get(names.GEN_AI_REQUEST_MODEL) or "model"
        else:
            name, what = names.EXECUTE_TOOL, data["name"]
            about[names.GEN_AI_TOOL_TYPE] = "function"
            about[names.GEN_AI_CALL_ID] = data["call_id"]
            if self._telemetry.content:
                about[names.GEN_AI_ARGUMENTS] = _json(data["arguments"])
        before = []
        if claimed.attempt > 1:
            before.append(traces.context(run_id, ids.attempt_id(request_id, claimed.attempt - 1)))
        # Looking up a lost attempt is not that attempt: its span has an id of its own.
        stands_for = ids.attempt_id(request_id, claimed.attempt) if claimed.job == "run" else None
        return traces.start(
            name,
            about,
            title=f"{name.name.split()[0]} {what}",
            run_id=run_id,
            under=request_id,
            own=stands_for,
            links=before,
        )

    def _answered(self, message: dict[str, Any]) -> None:
        usage, finish = message.get("usage", {}), message.get("finish_reason")
        self._point[names.GEN_AI_RESPONSE_MODEL] = message.get("model")
        sent, got = usage.get("input_tokens"), usage.get("output_tokens")
        self._set(
            **{
                names.GEN_AI_RESPONSE_MODEL: message.get("model"),
                names.GEN_AI_FINISH: None if finish is None else [finish],
                names.GEN_AI_INPUT_TOKENS: sent,
                names.GEN_AI_OUTPUT_TOKENS: got,
            }
        )
        about = {k: v for k, v in self._point.items() if k != names.ERROR_TYPE}
        self._telemetry.count(names.INPUT_TOKENS, about, sent or 0)
        self._telemetry.count(names.OUTPUT_TOKENS, about, got or 0)

    def _of_call(self) -> dict[str, Any]:
        queue = queue_of(self._claimed.request)
        return {names.MESSAGING_DESTINATION: queue, names.DELIVERY: self._claimed.delivery}


def _of(run_id: str, algorithm: Algorithm) -> dict[str, Any]:
    return {
        names.RUN_ID: run_id,
        names.GEN_AI_AGENT: algorithm.name,
        names.GEN_AI_AGENT_VERSION: str(algorithm.version),
    }


def _tool_of(request: Event) -> dict[str, Any]:
    return {names.GEN_AI_OPERATION: "execute_tool", names.GEN_AI_TOOL: request.data["name"]}


def _model_of(handler: LLMHandler | None) -> dict[str, Any]:
    """Provider and model, as far as the client says: ``provider:name``."""
    client = handler.client if handler is not None else None
    said = getattr(client, "model", None)
    provider, _, model = said.partition(":") if isinstance(said, str) else ("", "", "")
    return {
        names.GEN_AI_OPERATION: "chat",
        names.GEN_AI_PROVIDER: provider or type(client).__name__,
        names.GEN_AI_REQUEST_MODEL: model or None,
    }


def _outcome_of(ended: Ended) -> str:
    if ended.fenced:
        return "fenced"
    if ended.outcome is None:
        return "released"
    if ended.unknown:
        return "unknown"
    return "completed" if ended.outcome.type.endswith(".completed") else "failed"


def _json(value: Any) -> str:
    return ids.canonical(value).decode()
