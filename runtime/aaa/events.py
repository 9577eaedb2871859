"""Events: what a run is made of. Immutable, ordered by ``seq``, identified by content.

An event that has not been stored yet has ``seq == 0``. The store gives ``seq`` and ``time``; all
else is fixed when the event is made. ``raw`` is the canonical encoding of ``data`` and is what is
stored, byte for byte; ``data`` is decoded on first use.
"""

from __future__ import annotations

from typing import Any, Final

from aaa import ids
from aaa.errors import CorruptHistory

#: Version of the envelope and of the data of every type below. A reader refuses newer ones.
SCHEMA: Final = 1

RUN_REQUESTED: Final = "aaa.run.requested"
RUN_COMPLETED: Final = "aaa.run.completed"
RUN_FAILED: Final = "aaa.run.failed"
RUN_CANCEL_REQUESTED: Final = "aaa.run.cancel_requested"
RUN_CANCELLED: Final = "aaa.run.cancelled"
RUN_SUSPENDED: Final = "aaa.run.suspended"
RUN_RESUMED: Final = "aaa.run.resumed"
RUN_PARKED: Final = "aaa.run.parked"
RUN_POLICY: Final = "aaa.run.policy_required"
LLM_REQUESTED: Final = "aaa.llm.requested"
LLM_COMPLETED: Final = "aaa.llm.completed"
LLM_FAILED: Final = "aaa.llm.failed"
TOOL_REQUESTED: Final = "aaa.tool.requested"
TOOL_STARTED: Final = "aaa.tool.started"
TOOL_COMPLETED: Final = "aaa.tool.completed"
TOOL_FAILED: Final = "aaa.tool.failed"
TOOL_FENCED: Final = "aaa.tool.fenced"
TOOL_STALE_RESULT: Final = "aaa.tool.stale_result"
TOOL_RESOLVED: Final = "aaa.tool.resolved"
APPROVAL_REQUESTED: Final = "aaa.tool.approval_requested"
APPROVED: Final = "aaa.tool.approved"
REJECTED: Final = "aaa.tool.rejected"
TIMER_SET: Final = "aaa.timer.set"
TIMER_FIRED: Final = "aaa.timer.fired"

TYPES: Final = frozenset(
    value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str)
)

#: Longest message in an event, in characters: what a tool or a model said may be anything.
MAX_MESSAGE_CHARS: Final = 4_000

#: How a run ends: event type → status.
ENDINGS: Final = {
    RUN_COMPLETED: "completed",
    RUN_FAILED: "failed",
    RUN_CANCELLED: "cancelled",
}


class Event:
    """One event of one run.

    ``id`` is unique in the run; ``seq`` is 1, 2, 3 … once stored; ``time`` is milliseconds since
    the epoch by the store's clock; ``parent`` is the id of the event that caused it.
    """

    __slots__ = ("_data", "id", "parent", "raw", "run_id", "seq", "time", "type")

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 - the field's name in the public contract
        run_id: str,
        type: str,  # noqa: A002
        raw: bytes,
        parent: str | None,
        seq: int = 0,
        time: int = 0,
    ) -> None:
        self.id, self.run_id, self.type, self.raw = id, run_id, type, raw
        self.parent, self.seq, self.time = parent, seq, time
        self._data: dict[str, Any] | None = None

    @property
    def data(self) -> dict[str, Any]:
        """The event's data. Raises :class:`CorruptHistory` naming run and seq if unreadable."""
        if self._data is None:
            try:
                value = ids.decode(self.raw)
            except ValueError as error:
                raise CorruptHistory(
                    f"run {self.run_id}, event {self.seq}: data is not JSON ({error})"
                ) from None
            if not isinstance(value, dict):
                raise CorruptHistory(f"run {self.run_id}, event {self.seq}: data is no object")
            self._data = value
        return self._data

    def caused(self, type_: str, data: dict[str, Any]) -> Event:
        """The event that this one causes: its id is a pure function of (this id, type, data)."""
        raw = ids.canonical(data)
        return Event(
            id=ids.derive(self.id, type_, raw),
            run_id=self.run_id,
            type=type_,
            raw=raw,
            parent=self.id,
        )

    def named(self, id_: str, type_: str, data: dict[str, Any]) -> Event:
        """As :meth:`caused`, under one of the documented fixed ids (``R:result`` …)."""
        return Event(
            id=id_, run_id=self.run_id, type=type_, raw=ids.canonical(data), parent=self.id
        )

    def stored(self, seq: int, time: int) -> Event:
        """The same event with the place and time that the store gave it."""
        return Event(
            id=self.id,
            run_id=self.run_id,
            type=self.type,
            raw=self.raw,
            parent=self.parent,
            seq=seq,
            time=time,
        )

    def to_json(self) -> dict[str, Any]:
        """The public envelope, as ``aaa events --json`` prints it."""
        return {
            "id": self.id,
            "run_id": self.run_id,
            "seq": self.seq,
            "type": self.type,
            "data": self.data,
            "parent": self.parent,
            "time": self.time,
            "schema": SCHEMA,
        }

    def __repr__(self) -> str:
        # Neither arguments nor results: reprs end up in logs.
        return f"<Event {self.run_id}#{self.seq} {self.type} {self.id[:12]}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        return (self.id, self.run_id, self.seq, self.type, self.raw, self.parent) == (
            other.id,
            other.run_id,
            other.seq,
            other.type,
            other.raw,
            other.parent,
        )

    def __hash__(self) -> int:
        return hash((self.run_id, self.id))


def run_requested(run_id: str, data: dict[str, Any]) -> Event:
    """The first event of a run; its parent is the run id itself."""
    raw = ids.canonical(data)
    return Event(
        id=ids.derive(run_id, RUN_REQUESTED, raw),
        run_id=run_id,
        type=RUN_REQUESTED,
        raw=raw,
        parent=None,
    )


def tool_failed(request: Event, error: str, message: str, **more: Any) -> Event:
    """The one result of a call that failed; ``error`` is a name from the documented list (L5)."""
    return request.named(
        ids.result_id(request.id),
        TOOL_FAILED,
        {
            "call_id": request.data["call_id"],
            "error": error,
            "message": recordable(message),
            "name": request.data["name"],
            **more,
        },
    )


def args_digest(name: str, arguments: Any) -> str:
    """What an approval is bound to: the tool and the arguments that a person has seen (G19)."""
    return ids.digest_of(ids.canonical({"arguments": arguments, "name": name}))


def recordable(message: str) -> str:
    """A message that the log can hold: bounded, and without lone surrogates."""
    return message[:MAX_MESSAGE_CHARS].encode("utf-8", "replace").decode()
