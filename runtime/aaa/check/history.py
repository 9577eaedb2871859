"""A run's log as the checkers read it: in the order given, indexed, and never trusted.

Written from the documentation alone, and apart from the engine's fold and the stores, so that a
mistake there cannot hide itself here. Reading is total: an event that cannot be understood is
listed in :attr:`History.unreadable` and is left out of everything else, duplicates and disorder
are kept as they are. Positions are places in the given sequence, not ``seq``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aaa import events as ev
from aaa.errors import CorruptHistory
from aaa.events import Event

_ANY: Final = object

#: What the data of each type holds at least.
FIELDS: Final[Mapping[str, Mapping[str, type]]] = {
    ev.RUN_REQUESTED: {"algorithm": str, "app": str, "input": _ANY, "version": str},
    ev.RUN_COMPLETED: {"value": _ANY},
    ev.RUN_FAILED: {"error": str, "message": str},
    ev.RUN_CANCEL_REQUESTED: {"by": str, "reason": str},
    ev.RUN_CANCELLED: {"reason": str},
    ev.RUN_SUSPENDED: {"by": str},
    ev.RUN_RESUMED: {"by": str},
    ev.RUN_PARKED: {"error": str, "message": str},
    ev.RUN_POLICY: {"policy": str},
    ev.LLM_REQUESTED: {"call_id": str, "turn": int},
    ev.LLM_COMPLETED: {"call_id": str, "message": dict},
    ev.LLM_FAILED: {"call_id": str, "error": str, "message": str},
    ev.TOOL_REQUESTED: {"arguments": _ANY, "call_id": str, "name": str, "turn": int},
    ev.TOOL_STARTED: {
        "attempt": int,
        "call_id": str,
        "idempotency_key": str,
        "name": str,
        "policy": str,
        "worker": str,
    },
    ev.TOOL_COMPLETED: {"attempt": int, "call_id": str, "name": str, "result": _ANY},
    ev.TOOL_FAILED: {"call_id": str, "error": str, "message": str, "name": str},
    ev.TOOL_FENCED: {"attempt": int, "call_id": str, "name": str, "stopped": bool},
    ev.TOOL_STALE_RESULT: {
        "attempt": int,
        "call_id": str,
        "name": str,
        "outcome": dict,
        "type": str,
    },
    ev.TOOL_RESOLVED: {"by": str, "call_id": str, "outcome": str},
    ev.APPROVAL_REQUESTED: {"args_digest": str, "call_id": str, "name": str, "reason": str},
    ev.APPROVED: {"args_digest": str, "by": str, "call_id": str, "for_s": float},
    ev.REJECTED: {"by": str, "call_id": str, "reason": str},
    ev.TIMER_SET: {"after_ms": int, "name": str},
    ev.TIMER_FIRED: {"name": str},
}

RESULTS: Final = frozenset((ev.TOOL_COMPLETED, ev.TOOL_FAILED))
ANSWERS: Final = frozenset((ev.LLM_COMPLETED, ev.LLM_FAILED))
#: Failures that the guard writes, or may write, for an attempt that it has heard nothing of.
LOST: Final = frozenset(("OutcomeUnknown", "ExecutionAbandoned"))


@dataclass(frozen=True, slots=True)
class Item:
    """A readable event at its place in the given sequence."""

    at: int
    event: Event

    @property
    def data(self) -> dict[str, Any]:
        return self.event.data

    @property
    def type(self) -> str:
        return self.event.type

    @property
    def seq(self) -> int:
        return self.event.seq

    @property
    def effect_unknown(self) -> bool:
        return self.data.get("effect") == "unknown"

    @property
    def from_the_tool(self) -> bool:
        """What the tool itself gave, surely: not what the guard or ``verify`` wrote."""
        if self.type == ev.TOOL_STALE_RESULT:
            kind, outcome = self.data["type"], self.data["outcome"]
            if kind == ev.TOOL_COMPLETED:
                return not outcome.get("verified")
            return bool(outcome.get("error") == "ToolError")
        if self.type == ev.TOOL_COMPLETED:
            return not self.data.get("verified")
        return self.type == ev.TOOL_FAILED and self.data["error"] == "ToolError"


@dataclass(slots=True)
class Call:
    """A tool request and everything that names it as its parent, in order."""

    request: Item
    starts: list[Item] = field(default_factory=list)
    results: list[Item] = field(default_factory=list)
    fenced: list[Item] = field(default_factory=list)
    stale: list[Item] = field(default_factory=list)
    #: ``approval_requested``, ``approved`` and ``rejected``.
    words: list[Item] = field(default_factory=list)
    resolved: list[Item] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.request.event.id

    @property
    def call_id(self) -> str:
        return str(self.request.data["call_id"])

    @property
    def key(self) -> str | None:
        key = self.request.data.get("idempotency_key")
        return key if isinstance(key, str) else None

    @property
    def result(self) -> Item | None:
        """The first result: the one that counts."""
        return self.results[0] if self.results else None

    def settled_at(self) -> int | None:
        return self.results[0].at if self.results else None

    def known_at(self) -> int | None:
        """When it was known what became of it: settled, and resolved if its effect was unknown."""
        if self.result is None or not self.result.effect_unknown:
            return self.settled_at()
        return self.resolved[0].at if self.resolved else None

    def newest_start(self, before: int) -> Item | None:
        """The start with the highest attempt among those that stand before a place."""
        earlier = [start for start in self.starts if start.at < before]
        return max(earlier, key=lambda start: start.data["attempt"], default=None)


class History:
    """The indexed log of one run."""

    def __init__(self, run_id: str, events: Sequence[Event]) -> None:
        self.run_id, self.events = run_id, events
        #: Events that cannot be understood, each with the reason.
        self.unreadable: list[tuple[Event, str]] = []
        self.items: list[Item] = []
        #: Place of the first event with an id, whether or not it is readable.
        self.first_at: dict[str, int] = {}
        self._by_type: dict[str, list[Item]] = {}
        self._by_id: dict[str, Item] = {}
        for at, event in enumerate(events):
            self.first_at.setdefault(event.id, at)
            reason = _unreadable(event)
            if reason is not None:
                self.unreadable.append((event, reason))
                continue
            item = Item(at, event)
            self.items.append(item)
            self._by_type.setdefault(event.type, []).append(item)
            self._by_id.setdefault(event.id, item)
        self.calls: dict[str, Call] = {}
        self._gather()

    def of(self, *types: str) -> list[Item]:
        """The readable events of these types, in order."""
        found = [item for type_ in types for item in self._by_type.get(type_, ())]
        return sorted(found, key=lambda item: item.at) if len(types) > 1 else found

    def named(self, event_id: str | None) -> Item | None:
        """The first readable event with this id."""
        return self._by_id.get(event_id or "")

    def call_of(self, item: Item) -> Call | None:
        """The call that an event is about."""
        return self.calls.get(item.event.parent or "")

    @property
    def root(self) -> Item | None:
        found = self._by_type.get(ev.RUN_REQUESTED)
        return found[0] if found else None

    @property
    def ending(self) -> Item | None:
        """The first event that ends the run."""
        return next(iter(self.of(*ev.ENDINGS)), None)

    @property
    def is_tool_loop(self) -> bool:
        """Driven by the documented loop, whose requests follow a documented order."""
        return self.root is not None and self.root.data["algorithm"] == "aaa.tool_loop"

    def standing_still(self) -> Iterator[tuple[int, int]]:
        """Spans of places, ends excluded, in which the run is suspended or parked."""
        since: int | None = None
        for item in self.of(ev.RUN_SUSPENDED, ev.RUN_PARKED, ev.RUN_RESUMED):
            if item.type == ev.RUN_RESUMED:
                if since is not None:
                    yield since, item.at
                since = None
            elif since is None:
                since = item.at
        if since is not None:
            yield since, len(self.events)

    def _gather(self) -> None:
        for item in self.of(ev.TOOL_REQUESTED):
            self.calls.setdefault(item.event.id, Call(item))
        kept = {
            ev.TOOL_STARTED: "starts",
            ev.TOOL_COMPLETED: "results",
            ev.TOOL_FAILED: "results",
            ev.TOOL_FENCED: "fenced",
            ev.TOOL_STALE_RESULT: "stale",
            ev.APPROVAL_REQUESTED: "words",
            ev.APPROVED: "words",
            ev.REJECTED: "words",
            ev.TOOL_RESOLVED: "resolved",
        }
        for item in self.items:
            call = self.calls.get(item.event.parent or "")
            if call is not None and item.type in kept:
                getattr(call, kept[item.type]).append(item)


def _unreadable(event: Event) -> str | None:
    try:
        data = event.data
    except CorruptHistory:
        return "its data is not a JSON object"
    if event.type.startswith("aaa.") and event.type not in ev.TYPES:
        return f"its type {event.type!r} is not known to this version; a newer one wrote it"
    for name, kind in FIELDS.get(event.type, {}).items():
        if name not in data:
            return f"{event.type} has no {name!r}"
        if not _is(data[name], kind):
            return f"{name!r} of {event.type} is not {_WORDS[kind]}"
    if not _is(data.get("attempt", 1), int):
        return f"'attempt' of {event.type} is not a whole number"
    return None


def _is(value: object, kind: type) -> bool:
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if kind is float else kind)


_WORDS: Final = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
}
