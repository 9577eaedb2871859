"""Checkers of the log itself: order, ids, causes, and what the store's index says about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aaa import events as ev
from aaa import ids
from aaa.check.finding import Finding, Known
from aaa.check.history import History, Item
from aaa.events import Event


def readable(history: History, _: Known) -> Iterator[Finding]:
    """Every event can be read, is of a known type, and belongs to this run."""
    for event, reason in history.unreadable:
        yield event.seq, f"the event cannot be read: {reason}"
    for event in history.events:
        if event.run_id != history.run_id:
            yield event.seq, f"the event is of run {event.run_id} and does not belong here"


def causes(history: History, _: Known) -> Iterator[Finding]:
    """L1: nothing stands in the log before its cause."""
    for at, event in enumerate(history.events):
        if at == 0:
            if event.type != ev.RUN_REQUESTED or event.parent is not None:
                yield event.seq, f"the run begins with {event.type} instead of {ev.RUN_REQUESTED}"
            continue
        if event.type == ev.RUN_REQUESTED:
            yield event.seq, "the run is requested again in the middle of its log"
            continue
        cause = history.first_at.get(event.parent or "")
        if cause is None:
            yield event.seq, f"the cause of this {event.type} is not in the log"
        elif cause >= at:
            yield event.seq, f"this {event.type} stands before its cause"


def stands_once(history: History, _: Known) -> Iterator[Finding]:
    """L2: an event id stands at most once in a run."""
    for at, event in enumerate(history.events):
        first = history.first_at[event.id]
        if first != at:
            seq = history.events[first].seq
            yield event.seq, f"the event id {event.id} stands already at {seq}"


def dense(history: History, _: Known) -> Iterator[Finding]:
    """L3: seq is 1, 2, 3 … and time does not matter to it."""
    expected = 0
    for event in history.events:
        expected += 1
        if event.seq != expected:
            yield event.seq, f"seq {expected} was to be here, not {event.seq}"
            expected = event.seq  # one finding a gap


def same_everywhere(history: History, _: Known) -> Iterator[Finding]:
    """L4: an id follows from the event's parent, type and canonical data."""
    for item in history.items:
        event = item.event
        try:
            canonical = ids.canonical(event.data)
        except ValueError:
            canonical = b""
        if canonical != event.raw:
            yield event.seq, "the event's data is not encoded canonically"
            continue
        wanted = _wanted(item)
        if event.id not in wanted:
            yield event.seq, f"the id of this {event.type} is {event.id}, not {' or '.join(wanted)}"


#: Types with a fixed id: what follows the parent's.
_FIXED: Final = {
    ev.TOOL_STARTED: ":attempt:{attempt}",
    ev.TOOL_COMPLETED: ":result",
    ev.TOOL_FAILED: ":result",
    ev.LLM_COMPLETED: ":result",
    ev.LLM_FAILED: ":result",
    ev.TOOL_FENCED: ":attempt:{attempt}:fenced",
    ev.TOOL_RESOLVED: ":resolved",
    ev.REJECTED: ":rejected",
    ev.TIMER_FIRED: ":fired",
}


def _wanted(item: Item) -> tuple[str, ...]:
    """The ids that an event may have."""
    event = item.event
    parent = event.parent or event.run_id
    if event.type in _FIXED:
        return (parent + _FIXED[event.type].format(attempt=item.data.get("attempt")),)
    if event.type == ev.APPROVAL_REQUESTED:
        return _numbered(event, f"{parent}:approval", bare=True)
    if event.type == ev.TOOL_STALE_RESULT:
        stem = f"{parent}:attempt:{item.data.get('attempt')}:stale"
        return _numbered(event, stem, bare=True)
    if event.type == ev.APPROVED:
        return _numbered(event, f"{parent}:approved", bare=False)
    derived = ids.derive(parent, event.type, event.raw)
    if event.type == ev.RUN_CANCEL_REQUESTED:  # a person's, or a deadline's
        return (f"{parent}:cancel", derived)
    return (derived,)


def _numbered(event: Event, stem: str, *, bare: bool) -> tuple[str, ...]:
    number = event.id.removeprefix(f"{stem}:")
    if number.isdecimal() and number == str(int(number)) and int(number) > 0:
        return (f"{stem}:{number}",)
    return (stem,) if bare else (f"{stem}:1",)


def index_agrees(history: History, known: Known) -> Iterator[Finding]:
    """L6: what an append says about the run and the run's row in the index are one write."""
    info = known.info
    if info is None or info.deleted:
        return
    last = history.events[-1] if history.events else None
    if last is None or (last.seq, last.id) != (info.head.seq, info.head.last_id):
        seq = None if last is None else last.seq
        yield seq, f"the index has its head at {info.head.seq}, and the log ends elsewhere"
    ending = history.ending
    status = "open" if ending is None else ev.ENDINGS[ending.type]
    if status != info.status:
        yield (ending.seq if ending else None), f"the index says {info.status}, the log {status}"
    unknown = sum(
        call.result is not None and call.result.effect_unknown and not call.resolved
        for call in history.calls.values()
    )
    if unknown != info.unknown:
        yield None, f"the index counts {info.unknown} unresolved unknown effects, the log {unknown}"


def pinned(history: History, known: Known) -> Iterator[Finding]:
    """L11: the run's algorithm, its version and its app are fixed in its first event."""
    root = history.root
    if root is None:
        return
    for name in ("algorithm", "version", "app"):
        if not root.data[name]:
            yield root.seq, f"the run is pinned to no {name}"
    if known.info is not None and known.info.app != root.data["app"]:
        yield root.seq, f"the index has the run under {known.info.app}, not {root.data['app']}"


def tombstone(history: History, known: Known) -> Iterator[Finding]:
    """L12: a deleted run stays deleted, and keeps the digest of its input."""
    info, root = known.info, history.root
    if info is None:
        return
    if info.deleted:
        for event in history.events[:1]:
            yield event.seq, "the run was deleted, and yet its log has events"
    if root is not None and info.digest != ids.digest_of(ids.canonical(root.data["input"])):
        yield root.seq, "the digest that the index keeps is not the digest of the run's input"


def timers(history: History, _: Known) -> Iterator[Finding]:
    """L14: a timer fires once, under its name, not before its time, while the run is open."""
    fired: set[str] = set()
    for item in history.of(ev.TIMER_FIRED):
        timer = history.named(item.event.parent)
        if timer is None or timer.type != ev.TIMER_SET:
            yield item.seq, "what has fired here was never set"
            continue
        if timer.event.id in fired:
            yield item.seq, f"the timer {timer.data['name']!r} fires a second time"
        fired.add(timer.event.id)
        if item.data["name"] != timer.data["name"]:
            yield item.seq, f"{timer.data['name']!r} was set, {item.data['name']!r} fires"
        early_ms = timer.event.time + timer.data["after_ms"] - item.event.time
        if early_ms > 0:
            yield item.seq, f"the timer {timer.data['name']!r} fires {early_ms} ms early"
