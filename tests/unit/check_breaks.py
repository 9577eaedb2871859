"""Sound histories, broken mechanically: dropped, doubled, moved, renumbered, rewritten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from aaa import events as ev
from aaa import ids
from aaa.check import Terms
from aaa.events import Event
from unit.check_histories import Made

Change = Callable[[Made], Made]


@dataclass(frozen=True, slots=True)
class Break:
    """A change to a scenario's history that breaks a statement."""

    statement: str
    scenario: str
    how: str
    change: Change


def place(made: Made, type_: str, nth: int = 0) -> int:
    return [at for at, event in enumerate(made.events) if event.type == type_][nth]


def with_events(made: Made, events: list[Event]) -> Made:
    return replace(made, events=events)


def renumbered(events: list[Event]) -> list[Event]:
    return [event.stored(seq, event.time) for seq, event in enumerate(events, 1)]


def rewritten(event: Event, **changes: Any) -> Event:
    fields = {name: getattr(event, name) for name in ("id", "run_id", "type", "raw", "parent")}
    return Event(**{**fields, "seq": event.seq, "time": event.time, **changes})


def edited(event: Event, **data: Any) -> Event:
    """With other data; a value of ``None`` drops the field."""
    merged = {k: v for k, v in {**event.data, **data}.items() if v is not None}
    return rewritten(event, raw=ids.canonical(merged))


# ---------------------------------------------------------------------------- the changes


def required(policy: str) -> Change:
    """The run required this policy from its beginning."""

    def change(made: Made) -> Made:
        root, *rest = made.events
        event = root.caused(ev.RUN_POLICY, {"policy": policy})
        return with_events(made, renumbered([root, event, *rest]))

    return change


def drop(type_: str, nth: int = 0, *, renumber: bool = True) -> Change:
    def change(made: Made) -> Made:
        events = list(made.events)
        del events[place(made, type_, nth)]
        return with_events(made, renumbered(events) if renumber else events)

    return change


def again(type_: str, nth: int = 0, *, to: int | None = None, **changes: Any) -> Change:
    """The event a second time, right after itself or at a place, perhaps with other fields."""

    def change(made: Made) -> Made:
        at = place(made, type_, nth)
        copy = rewritten(made.events[at], **changes)
        events = list(made.events)
        events.insert(at + 1 if to is None else to % (len(events) + 1), copy)
        return with_events(made, renumbered(events))

    return change


def move(type_: str, nth: int = 0, *, to: int) -> Change:
    """To another place, counted from the end if negative."""

    def change(made: Made) -> Made:
        events = list(made.events)
        event = events.pop(place(made, type_, nth))
        events.insert(to % (len(events) + 1), event)
        return with_events(made, renumbered(events))

    return change


def edit(type_: str, nth: int = 0, **data: Any) -> Change:
    def change(made: Made) -> Made:
        events, at = list(made.events), place(made, type_, nth)
        events[at] = edited(events[at], **data)
        return with_events(made, events)

    return change


def field(type_: str, nth: int = 0, **changes: Any) -> Change:
    def change(made: Made) -> Made:
        events, at = list(made.events), place(made, type_, nth)
        events[at] = rewritten(events[at], **changes)
        return with_events(made, events)

    return change


def info(**changes: Any) -> Change:
    return lambda made: replace(made, info=replace(made.info, **changes))


def terms(**changes: Any) -> Change:
    """As if the same attempts had begun under other settings."""

    def change(made: Made) -> Made:
        return replace(
            made, terms={name: replace(each, **changes) for name, each in made.terms.items()}
        )

    return change


def policies(*each: Terms) -> Change:
    """Give the attempts of the history policies of their own."""

    def change(made: Made) -> Made:
        events, number = list(made.events), 0
        for at, event in enumerate(events):
            if event.type == ev.TOOL_STARTED:
                events[at] = edited(event, policy=f"p{number}")
                number += 1
        named = {f"p{number}": terms for number, terms in enumerate(each)}
        return replace(made, events=events, terms=named)

    return change


def both(*changes: Change) -> Change:
    def change(made: Made) -> Made:
        for each in changes:
            made = each(made)
        return made

    return change


def swap(first: str, second: str) -> Change:
    def change(made: Made) -> Made:
        events, a, b = list(made.events), place(made, first), place(made, second)
        events[a], events[b] = events[b], events[a]
        return with_events(made, renumbered(events))

    return change


def _late(type_: str, nth: int = 0) -> Change:
    return move(type_, nth, to=-1)


BREAKS: list[Break] = [
    Break(statement, scenario, how, change)
    for statement, scenario, how, change in (
        ("readable", "one_call", "foreign", field(ev.TOOL_STARTED, run_id="run-2")),
        ("readable", "one_call", "no JSON", field(ev.TOOL_COMPLETED, raw=b'{"call_id')),
        ("readable", "one_call", "no object", field(ev.TOOL_COMPLETED, raw=b"[]")),
        ("readable", "one_call", "newer type", field(ev.TOOL_STARTED, type="aaa.tool.dreamt")),
        ("readable", "takeover", "no attempt", edit(ev.TOOL_STARTED, attempt=None)),
        ("readable", "takeover", "attempt is text", edit(ev.TOOL_STARTED, attempt="1")),
        ("L1", "one_call", "cause dropped", drop(ev.TOOL_REQUESTED)),
        ("L1", "one_call", "no beginning", drop(ev.RUN_REQUESTED)),
        ("L1", "one_call", "before its cause", swap(ev.TOOL_REQUESTED, ev.LLM_COMPLETED)),
        ("L1", "one_call", "begins again", again(ev.RUN_REQUESTED, to=4)),
        ("L2", "one_call", "stands twice", again(ev.TOOL_COMPLETED)),
        ("L2", "plain", "ends twice", again(ev.RUN_COMPLETED)),
        ("L3", "one_call", "gap", drop(ev.TOOL_STARTED, renumber=False)),
        ("L3", "one_call", "renumbered", field(ev.TOOL_STARTED, seq=7)),
        ("L3", "parked", "begins at 0", field(ev.RUN_REQUESTED, seq=0)),
        ("L4", "one_call", "other id", field(ev.LLM_REQUESTED, id="0" * 32)),
        ("L4", "one_call", "other data", edit(ev.RUN_COMPLETED, value="something else")),
        ("L4", "takeover", "other attempt", edit(ev.TOOL_STARTED, 1, attempt=3)),
        (
            "L4",
            "plain",
            "not canonical",
            field(ev.RUN_COMPLETED, raw=b'{"value" : {"text":"done"}}'),
        ),
        ("L4", "approved", "approval's id", field(ev.APPROVED, id="R:approved:01")),
        ("L4", "timed", "own event", field("example.noted", id="noted")),
        ("L5", "one_call", "second result", again(ev.TOOL_COMPLETED, id="second")),
        (
            "L5",
            "one_call",
            "of a model request",
            lambda made: field(
                ev.TOOL_COMPLETED, parent=made.events[place(made, ev.LLM_REQUESTED)].id
            )(made),
        ),
        ("L6", "one_call", "head elsewhere", drop(ev.RUN_COMPLETED)),
        ("L6", "one_call", "status", info(status="open")),
        ("L6", "lost_once", "unknown count", info(unknown=0)),
        (
            "L7",
            "cancelled_while_waiting",
            "dropped",
            drop(ev.TOOL_FAILED),
        ),
        ("L7", "bad_calls", "never answered", drop(ev.TOOL_FAILED, 1)),
        ("L8", "one_call", "decided after the end", move(ev.LLM_REQUESTED, 1, to=-1)),
        ("L8", "one_call", "asked while open", move(ev.TOOL_COMPLETED, to=7)),
        ("L8", "parallel_calls", "turn skipped", edit(ev.LLM_REQUESTED, 1, turn=5)),
        ("L8", "suspended", "asked while suspended", move(ev.LLM_REQUESTED, 1, to=6)),
        ("L8", "plain", "asked twice at once", again(ev.LLM_REQUESTED, id="x")),
        (
            "L8",
            "one_call",
            "before the answer",
            lambda made: field(
                ev.TOOL_REQUESTED, parent=made.events[place(made, ev.LLM_REQUESTED)].id
            )(made),
        ),
        ("L11", "plain", "pinned to nothing", edit(ev.RUN_REQUESTED, version="")),
        ("L11", "plain", "another app", info(app="other")),
        ("L12", "plain", "deleted, and there", info(deleted=True)),
        ("L12", "plain", "other input", edit(ev.RUN_REQUESTED, input={"task": "other"})),
        ("L13", "cancelled_in_flight", "begun after", _late(ev.TOOL_STARTED)),
        ("L13", "cancelled_in_flight", "call open", _late(ev.TOOL_FAILED)),
        ("L13", "cancelled_in_flight", "unasked", drop(ev.RUN_CANCEL_REQUESTED)),
        ("L13", "cancelled_in_flight", "decided after", move(ev.TOOL_REQUESTED, to=-2)),
        ("L14", "timed", "early", field(ev.TIMER_FIRED, time=0)),
        ("L14", "timed", "twice", again(ev.TIMER_FIRED, id="again")),
        ("L14", "timed", "never set", drop(ev.TIMER_SET)),
        ("L14", "timed", "other name", edit(ev.TIMER_FIRED, name="other")),
        ("G2", "takeover", "claimed twice", again(ev.TOOL_STARTED, id="other")),
        ("G2", "takeover", "of no call", drop(ev.TOOL_REQUESTED)),
        ("G2", "one_call", "before its request", swap(ev.TOOL_STARTED, ev.TOOL_REQUESTED)),
        ("G3", "takeover", "first missing", drop(ev.TOOL_STARTED, 0)),
        ("G3", "takeover", "number skipped", edit(ev.TOOL_STARTED, 1, attempt=3)),
        ("G3", "one_call", "no worker", edit(ev.TOOL_STARTED, worker="")),
        ("G3", "one_call", "other call", edit(ev.TOOL_STARTED, call_id="c9-9")),
        ("G3", "one_call", "other tool", edit(ev.TOOL_COMPLETED, name="other")),
        ("G3", "one_call", "of no attempt", edit(ev.TOOL_COMPLETED, attempt=2)),
        ("G4", "takeover", "begun twice", terms(delivery="at_most_once")),
        ("G4", "lost_once", "unknown left out", edit(ev.TOOL_FAILED, effect=None)),
        (
            "G4",
            "cancelled_while_waiting",
            "unknown, though not begun",
            edit(ev.TOOL_FAILED, effect="unknown"),
        ),
        ("G4", "resolved_done", "resolved twice", again(ev.TOOL_RESOLVED, id="x")),
        ("G4", "resolved_done", "nothing unknown", drop(ev.TOOL_FAILED)),
        ("G4", "resolved_retry", "unasked retry", edit(ev.TOOL_RESOLVED, outcome="done")),
        (
            "G4",
            "resolved_retry",
            "another key",
            edit(ev.TOOL_REQUESTED, 1, idempotency_key="mine"),
        ),
        ("G4", "resolved_retry", "a fence twice", edit(ev.TOOL_REQUESTED, 1, attempts_before=0)),
        ("G5", "takeover", "over the cap", terms(max_attempts=1)),
        ("G5", "abandoned", "unknown left out", edit(ev.TOOL_FAILED, effect=None)),
        ("G5", "timeout", "unknown left out", edit(ev.TOOL_FAILED, effect=None)),
        ("G5", "tool_error", "unknown, though raised", edit(ev.TOOL_FAILED, effect="unknown")),
        ("G6", "stale", "not applied", drop(ev.TOOL_STARTED, 1)),
        ("G6", "lost_once", "begun after", again(ev.TOOL_STARTED, to=-1, id="x")),
        ("G7", "stale", "superseded", edit(ev.TOOL_COMPLETED, attempt=1)),
        ("G9", "fenced", "recorded", edit(ev.TOOL_COMPLETED, attempt=1)),
        ("G9", "fenced", "never begun", drop(ev.TOOL_STARTED, 0)),
        ("G13", "takeover", "key changes", edit(ev.TOOL_STARTED, 1, idempotency_key="x")),
        ("G13", "parallel_calls", "id twice", edit(ev.TOOL_REQUESTED, 1, call_id="c3-0")),
        (
            "G13",
            "parallel_calls",
            "another's key",
            edit(ev.TOOL_REQUESTED, 1, idempotency_key="run-1/c3-0"),
        ),
        ("G13", "one_call", "the provider's id", edit(ev.TOOL_REQUESTED, call_id="call_a7")),
        ("G13", "one_call", "another turn's id", edit(ev.TOOL_REQUESTED, call_id="c9-0")),
        ("G15", "stale", "two outcomes", edit(ev.TOOL_STALE_RESULT, attempt=2)),
        ("G15", "stale", "kept twice", again(ev.TOOL_STALE_RESULT, id="x")),
        ("G16", "rejected_result", "as if not run", edit(ev.TOOL_FAILED, message="no result")),
        ("G16", "rejected_result", "no attempt", edit(ev.TOOL_FAILED, attempt=None)),
        ("G18", "one_call", "recorded", terms(enabled=False)),
        ("G19", "approved", "never approved", drop(ev.APPROVED)),
        (
            "G19",
            "approved",
            "never asked",
            both(drop(ev.APPROVED), drop(ev.APPROVAL_REQUESTED)),
        ),
        ("G19", "approved", "begun before", move(ev.TOOL_STARTED, to=5)),
        ("G19", "approved", "other arguments", edit(ev.TOOL_REQUESTED, arguments={"amount": 9})),
        ("G19", "approved", "other digest", edit(ev.APPROVED, args_digest="0" * 32)),
        ("G19", "approved", "used twice", again(ev.APPROVED, id="x")),
        ("G19", "approved", "expired", edit(ev.APPROVED, for_s=-60)),
        ("G19", "approved", "another call's", edit(ev.APPROVED, call_id="c9-9")),
        ("G19", "rejected", "nobody's word", drop(ev.REJECTED)),
        ("G19", "rejected", "another result", edit(ev.TOOL_FAILED, error="ToolError")),
        (
            "G20",
            "tool_error",
            "run again",
            again(ev.TOOL_STARTED, to=6, id="x"),
        ),
        ("G20", "takeover", "run again", move(ev.TOOL_STARTED, 1, to=-1)),
        (
            "G21",
            "repeated",
            "silently run",
            edit(ev.TOOL_FAILED, error="ToolError"),
        ),
        ("G21", "repeat_approved", "silently run", edit(ev.APPROVAL_REQUESTED, reason="because")),
        ("G21", "repeated", "repeats nothing", edit(ev.TOOL_FAILED, first="c9-9")),
        ("G21", "repeated", "other intent", edit(ev.TOOL_REQUESTED, intent="0" * 32)),
        (
            "G22",
            "takeover",
            "loosened to repeat",
            policies(Terms(delivery="at_most_once"), Terms()),
        ),
        (
            "G22",
            "takeover",
            "cap raised",
            policies(Terms(max_attempts=1), Terms(max_attempts=9)),
        ),
        ("G22", "takeover", "another policy than required", required("0" * 32)),
        ("G22", "takeover", "key changes", edit(ev.TOOL_STARTED, 1, idempotency_key="x")),
        ("G24", "one_call", "answered twice", again(ev.LLM_COMPLETED, id="x")),
        ("G24", "one_call", "answer to another", edit(ev.LLM_COMPLETED, turn=2)),
        ("G24", "one_call", "never asked", drop(ev.LLM_REQUESTED)),
    )
]
