"""What one commit tells: the spans and counts that follow from its operations and verdicts.

Each is told from the verdict, never from the intention, and in the trace of its run: the span of
a request stands for it (attempts hang below it), those of claim and settlement are linked to the
commit that carried them, since one commit may carry the steps of many runs.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from aaa import ids
from aaa.events import Event
from aaa.store import port
from aaa.store.port import Operation, Verdict
from aaa.telemetry import RunTraces, Telemetry, names

#: Run id → when it began, milliseconds.
Beginnings = MutableMapping[str, int]

#: Our name of the operation, and what the messaging conventions call it.
_MESSAGING: Final = {
    names.REQUEST: ("request", "send"),
    names.CLAIM: ("claim", "receive"),
    names.SETTLE: ("settle", "settle"),
}


@dataclass(slots=True)
class Told:
    """One commit, answered. ``commit`` is its span, if there is one."""

    telemetry: Telemetry
    traces: RunTraces | None
    partition: int
    commit: Any
    begun_ms: int
    ended_ms: int

    def tell(self, operation: Operation, verdict: Verdict, beginnings: Beginnings) -> None:
        """Tell what became of one operation."""
        if isinstance(verdict, port.Refused):
            kind = type(operation).__name__.lower()
            about = {names.OPERATION: kind, names.WHY: verdict.why.value}
            self.telemetry.count(names.STORE_REFUSED, about)
        match operation, verdict:
            case ((port.Create() | port.Append()), port.Appended()):
                self._appended(operation, verdict, beginnings)
            case port.Append(term=int()), port.Refused():
                self.telemetry.count(names.DECISIONS, {names.ACCEPTED: False})
            case port.Claim(), port.Claims():
                found = bool(verdict.claimed)
                self.telemetry.count(names.CLAIMS, {names.CLAIMED: found})
                if verdict.settled_runs:
                    by_store = {names.AT: "store"}
                    self.telemetry.count(names.UNKNOWN, by_store, len(verdict.settled_runs))
                for claimed in verdict.claimed:
                    self._claimed(claimed, operation.offer.worker)
            case port.Settle(), _:
                self._settled(operation, verdict)
            case _:
                pass

    # ----------------------------------------------------------------------------- appends

    def _appended(
        self,
        operation: port.Create | port.Append,
        verdict: port.Appended,
        beginnings: Beginnings,
    ) -> None:
        worker = ""
        if isinstance(operation, port.Create):
            if not verdict.dups[0]:
                self.telemetry.count(names.RUNS_SUBMITTED)
        else:
            worker = operation.worker
            if operation.term is not None:
                self.telemetry.count(names.DECISIONS, {names.ACCEPTED: True})
        for entry, event, dup in zip(operation.entries, verdict.events, verdict.dups, strict=False):
            if dup:
                continue
            if isinstance(entry.effect, port.OpenCall):
                self._requested(event, port.under_policy(entry.effect.queue, ""), worker)
            elif isinstance(entry.effect, port.CloseRun):
                self._closed(event, entry.effect.status, beginnings)
        for claimed in verdict.claimed:
            self._claimed(claimed, worker)

    def _requested(self, request: Event, queue: str, worker: str) -> None:
        if self.traces is None:
            return
        about = {
            **self._message(names.REQUEST, request.run_id, request.id, queue, worker),
            names.RUN_ID: request.run_id,
        }
        self._span(names.REQUEST, about, request.run_id, own=request.id)

    def _closed(self, ending: Event, status: str, beginnings: Beginnings) -> None:
        self.telemetry.count(names.RUNS_CLOSED, {names.RUN_STATUS: status})
        if self.traces is None:
            return
        run_id = ending.run_id
        about = {
            names.RUN_ID: run_id,
            names.RUN_STATUS: status,
            names.GEN_AI_CONVERSATION: run_id,
        }
        began_ms = min(beginnings.pop(run_id, ending.time), ending.time)
        span = self.traces.start(names.RUN, about, run_id=run_id, own=run_id, start_ms=began_ms)
        if status == "failed":
            self.traces.failed(span, ending.data.get("error", "_OTHER"))
        self.traces.end(span, at_ms=ending.time)

    # ------------------------------------------------------------------- claims and settles

    def _claimed(self, claimed: port.Claimed, worker: str) -> None:
        if self.traces is None:
            return
        request = claimed.request
        queue = queue_of(request)
        about = {
            **self._message(names.CLAIM, claimed.run_id, request.id, queue, worker),
            names.RUN_ID: claimed.run_id,
            names.CALL_ATTEMPT: claimed.attempt,
            names.CALL_JOB: claimed.job,
            names.DELIVERY: claimed.delivery,
        }
        self._span(names.CLAIM, about, claimed.run_id, under=request.id)

    def _settled(self, settle: port.Settle, verdict: Verdict) -> None:
        queue = queue_of(settle.outcome)
        said = verdict.verdict if isinstance(verdict, port.Settled) else "refused"
        point = {names.MESSAGING_DESTINATION: queue, names.VERDICT: said}
        self.telemetry.count(names.CALLS_SETTLED, point)
        if settle.unknown and said == "applied":
            self.telemetry.count(names.UNKNOWN, {names.AT: "worker"})
        if self.traces is None:
            return
        worker, request_id = settle.worker, settle.request_id
        about = {
            **self._message(names.SETTLE, settle.run_id, request_id, queue, worker),
            names.RUN_ID: settle.run_id,
            names.CALL_ATTEMPT: settle.attempt,
            names.VERDICT: said,
        }
        attempt = ids.attempt_id(request_id, settle.attempt)
        self._span(names.SETTLE, about, settle.run_id, under=attempt)

    # --------------------------------------------------------------------------------- spans

    def _span(
        self,
        name: names.SpanName,
        about: dict[str, Any],
        run_id: str,
        *,
        under: str | None = None,
        own: str | None = None,
    ) -> None:
        """A span as long as the commit, linked to it."""
        if self.traces is None:
            return
        links = [] if self.commit is None else [self.commit.get_span_context()]
        span = self.traces.start(
            name, about, run_id=run_id, under=under, own=own, links=links, start_ms=self.begun_ms
        )
        self.traces.end(span, at_ms=self.ended_ms)

    def _message(
        self, name: names.SpanName, run_id: str, request_id: str, queue: str, worker: str
    ) -> dict[str, Any]:
        operation, type_ = _MESSAGING[name]
        return {
            names.MESSAGING_SYSTEM: "aaa",
            names.MESSAGING_OPERATION: operation,
            names.MESSAGING_TYPE: type_,
            names.MESSAGING_DESTINATION: queue,
            names.MESSAGING_PARTITION: str(self.partition),
            names.MESSAGING_MESSAGE: request_id,
            names.MESSAGING_CONVERSATION: run_id,
            names.MESSAGING_CLIENT: worker or None,
        }


def queue_of(event: Event) -> str:
    """The queue of the call that a request or an outcome belongs to."""
    if event.type.startswith("aaa.llm."):
        return port.MODEL_QUEUE
    return port.TOOL_QUEUE + str(event.data.get("name", ""))
