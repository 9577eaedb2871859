"""What the read-only endpoint tells of a run: as much as ``aaa show`` shows people, and no more. Pure.

A run's log holds what its tools were given and what models said, whole. The endpoint's readers are
more than those who may read the store, so it shows each value as ``aaa show`` prints it: a value
whose JSON has more than :data:`MAX_VALUE_CHARS` characters becomes its first characters and ``…``, and
the event's ``cut`` names it. Of a model's answer the text and the names of the tools that it wants
are shown. Two things are shown whole, up to 8 KiB: what a person is to decide on (the arguments of a call
that waits or whose effect is unknown), and the run's own value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from aaa.client import CallView, RunInfo

VERSION: Final = 1
MAX_VALUE_CHARS: Final = 400
MAX_WHOLE_CHARS: Final = 8_192
#: Fields of one event's data that are shown; no event of ours has more.
MAX_FIELDS: Final = 32
MAX_EVIDENCE: Final = 8

Json = dict[str, Any]


class Happened(Protocol):
    """An event of a run's log."""

    @property
    def data(self) -> dict[str, Any]: ...

    def to_json(self) -> dict[str, Any]: ...


def event_shown(event: Happened) -> Json:
    """An event's envelope, with its data cut to what is shown; ``cut`` names what was."""
    found = event.to_json()
    data, cut = {}, []
    for key, value in list(found["data"].items())[:MAX_FIELDS]:
        rule = _RULES.get((found["type"], key), _short)
        data[key] = rule(value)
        if data[key] != value:
            cut.append(key)
    return {**found, "data": data, "cut": sorted(cut)}


def info_shown(info: RunInfo) -> Json:
    """The run as the store's index has it."""
    return {
        "runId": info.run_id,
        "app": info.app,
        "digest": info.digest,
        "status": info.status,
        "events": info.head.seq,
        "cancelling": info.cancelling,
        "suspended": info.suspended,
        "parked": info.parked,
        "awaiting": info.awaiting,
        "unknown": info.unknown,
        "createdMs": info.created_ms,
        "closedMs": info.closed_ms,
    }


def call_shown(view: CallView, *, name: str) -> Json:
    """A call that a person is to decide on; ``name`` is its AgentRun's."""
    arguments = _whole(view.arguments)
    return {
        "run": name,
        "runId": view.run_id,
        "callId": view.call_id,
        "tool": view.name,
        "arguments": arguments,
        "argsDigest": view.args_digest,
        "idempotencyKey": view.idempotency_key,
        "reason": _short(view.reason),
        "attempts": view.attempts,
        "sinceMs": view.since_ms,
        "retriable": view.retriable,
        "evidence": [event_shown(event) for event in view.evidence[-MAX_EVIDENCE:]],
        "cut": [] if arguments == view.arguments else ["arguments"],
    }


def fitting(items: Iterable[Json], *, max_bytes: int) -> list[Json]:
    """The items from the first on that fit; at least one, since none is larger than some KiB."""
    found: list[Json] = []
    left = max_bytes
    for item in items:
        left -= len(json.dumps(item, ensure_ascii=False).encode("utf-8", "replace"))
        if left < 0 and found:
            break
        found.append(item)
    return found


# ------------------------------------------------------------------------------------- inside


def _short(value: Any) -> Any:
    return _within(value, MAX_VALUE_CHARS)


def _whole(value: Any) -> Any:
    return _within(value, MAX_WHOLE_CHARS)


def _within(value: Any, limit: int) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return value if len(text) <= limit else f"{text[: limit - 1]}…"


def _answer(message: Any) -> Any:
    """A model's answer: its text, and the names of the tools that it wants."""
    if not isinstance(message, Mapping):
        return _short(message)
    calls = message.get("tool_calls") or []
    wanted = [{"name": _short(call.get("name", "?"))} for call in calls[:MAX_FIELDS]]
    return {"content": _short(message.get("content")), "tool_calls": wanted}


def _outcome(outcome: Any) -> Any:
    """A late outcome is an object to whoever reads it."""
    if not isinstance(outcome, Mapping):
        return _short(outcome)
    return {key: _short(value) for key, value in list(outcome.items())[:MAX_FIELDS]}


_RULES: Final[Mapping[tuple[str, str], Callable[[Any], Any]]] = {
    ("aaa.run.completed", "value"): _whole,
    ("aaa.llm.completed", "message"): _answer,
    ("aaa.tool.stale_result", "outcome"): _outcome,
}
