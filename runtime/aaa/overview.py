"""Overview: how far a run is, in a few hundred bytes, whatever the length of its log.

For those who look after many runs at once: counters, the calls that wait for a person, and the
ending. Conversations and settled calls are not kept. It is brought up to date by what was appended
since (:meth:`aaa.client.Client.overview`); a log of 100,000 events is read once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aaa import events as ev
from aaa import ids
from aaa.events import Event
from aaa.store.port import RunInfo


@dataclass(slots=True)
class OpenCall:
    """A call that has no result, or whose effect is unknown."""

    call_id: str
    tool: str
    args_digest: str
    since_ms: int
    running: bool = False
    waiting: bool = False
    message: str = ""
    #: The worker of the newest attempt.
    worker: str = ""


@dataclass(slots=True)
class Overview:
    """Where a run stands after its first ``seq`` events."""

    run_id: str
    seq: int = 0
    app: str = ""
    digest: str = ""
    status: str = "open"
    created_ms: int = 0
    closed_ms: int | None = None
    cancelling: bool = False
    suspended: bool = False
    parked: bool = False
    parked_because: str = ""
    #: The policy that its calls are claimed under; ``""``: whatever the worker has.
    policy: str = ""
    requested: int = 0
    completed: int = 0
    failed: int = 0
    value: Any = None
    error: str = ""
    message: str = ""
    open_calls: dict[str, OpenCall] = field(default_factory=dict)
    unknown: dict[str, OpenCall] = field(default_factory=dict)

    @property
    def running(self) -> int:
        """Calls that an attempt runs now."""
        return sum(call.running for call in self.open_calls.values())

    @property
    def waiting(self) -> list[OpenCall]:
        """Calls that wait for an approval, longest waiting first."""
        found = [call for call in self.open_calls.values() if call.waiting]
        return sorted(found, key=lambda call: call.since_ms)

    @property
    def ended(self) -> bool:
        return self.status != "open"

    def index(self, info: RunInfo) -> None:
        """Take what only the store's index knows."""
        self.app, self.digest, self.status = info.app, info.digest, info.status
        self.created_ms, self.closed_ms = info.created_ms, info.closed_ms
        self.cancelling, self.suspended, self.parked = info.cancelling, info.suspended, info.parked

    def fold(self, event: Event) -> None:
        """Take in the next event; one that is not known changes nothing but the position."""
        self.seq = event.seq
        data = event.data
        match event.type:
            case ev.TOOL_REQUESTED:
                self._requested(event)
            case ev.TOOL_STARTED if call := self.open_calls.get(event.parent or ""):
                call.running, call.waiting = True, False
                call.worker = str(data.get("worker", ""))
            case ev.APPROVAL_REQUESTED if call := self.open_calls.get(event.parent or ""):
                call.waiting, call.since_ms = True, event.time
                call.message = str(data.get("reason", ""))
            case ev.APPROVED | ev.REJECTED if call := self.open_calls.get(event.parent or ""):
                call.waiting = False
            case ev.TOOL_COMPLETED | ev.TOOL_FAILED:
                self._settled(event)
            case ev.TOOL_RESOLVED:
                self.unknown.pop(event.parent or "", None)
            case ev.RUN_POLICY:
                self.policy = str(data.get("policy", ""))
            case ev.RUN_PARKED:
                self.parked_because = str(data.get("message") or data.get("reason") or "")
            case _ if event.type in ev.ENDINGS:
                self.value = data.get("value")
                self.error = str(data.get("error", ""))
                self.message = str(data.get("message", ""))

    def _requested(self, event: Event) -> None:
        data = event.data
        called = {"arguments": data["arguments"], "name": data["name"]}
        self.requested += 1
        self.open_calls[event.id] = OpenCall(
            call_id=data["call_id"],
            tool=data["name"],
            args_digest=ids.digest_of(ids.canonical(called)),
            since_ms=event.time,
        )

    def _settled(self, event: Event) -> None:
        call = self.open_calls.pop(event.parent or "", None)
        if call is None:
            return
        if event.type == ev.TOOL_COMPLETED:
            self.completed += 1
            return
        self.failed += 1
        if event.data.get("effect") == "unknown":
            call.running = call.waiting = False
            call.since_ms, call.message = event.time, str(event.data.get("message", ""))
            self.unknown[event.parent or ""] = call
