"""Checkers of what a call is called, what key it carries, and whether it repeats another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from aaa import events as ev
from aaa import ids
from aaa.check.finding import Finding, Known
from aaa.check.history import Call, History

_LOOP_CALL: Final = re.compile(r"c([1-9][0-9]*)-(0|[1-9][0-9]*)")


def keys(history: History, _: Known) -> Iterator[Finding]:
    """G13: a call id is ours and unique; the key is fixed with the request, for every attempt."""
    named: dict[str, Call] = {}
    for call in history.calls.values():
        first = named.setdefault(call.call_id, call)
        if first is not call:
            yield call.request.seq, f"the call id {call.call_id} is that of {first.request.seq} too"
        for start in call.starts:
            if start.data["idempotency_key"] != call.key:
                yield (
                    start.seq,
                    f"an attempt of call {call.call_id} has another key than its request",
                )
        if history.is_tool_loop and "retry_of" not in call.request.data:
            yield from _place(history, call)
    for call in history.calls.values():
        prefix = f"{history.run_id}/"
        if call.key is None or not call.key.startswith(prefix):
            continue
        other = call.key.removeprefix(prefix)
        if other != call.call_id and other in named and "retry_of" not in call.request.data:
            yield call.request.seq, f"call {call.call_id} carries the key of call {other}"


def _place(history: History, call: Call) -> Iterator[Finding]:
    """In the documented loop a call id is the answer's seq and the place in it."""
    match = _LOOP_CALL.fullmatch(call.call_id)
    answer = history.named(call.request.event.parent)
    if match is None or (answer is not None and int(match[1]) != answer.seq):
        yield call.request.seq, f"the call id {call.call_id} is not made of its turn and place"


def repeats(history: History, _: Known) -> Iterator[Finding]:
    """G21: a call that repeats one in flight, or of unknown effect, is never silently run."""
    earlier: dict[str, list[Call]] = {}
    named: dict[str, Call] = {}
    for call in history.calls.values():
        named.setdefault(call.call_id, call)
        intent = call.request.data.get("intent")
        result = call.result
        if result is not None and result.data.get("error") == "RepeatedIntent":
            yield from _refused(named, call)
        if not isinstance(intent, str):
            continue
        if intent not in _intents(call):
            yield call.request.seq, f"the intent of call {call.call_id} does not follow from it"
        # Once closed, a call stays so: what is kept is short, however often an intent comes.
        open_ = [one for one in earlier.get(intent, ()) if _open(one, call.request.at)]
        if open_ and not _surfaced(call):
            yield (
                call.request.seq,
                f"call {call.call_id} repeats {open_[0].call_id}, whose effect is open, silently",
            )
        earlier[intent] = [*open_, call]


def _refused(named: Mapping[str, Call], call: Call) -> Iterator[Finding]:
    result = call.result
    if result is None:
        return
    for start in call.starts:
        yield start.seq, f"call {call.call_id} begins, and was refused as a repetition"
    first = named.get(str(result.data.get("first")))
    same = first is not None and first.request.data.get("intent") == call.request.data.get("intent")
    if first is None or not same or not _open(first, call.request.at):
        yield result.seq, f"call {call.call_id} is refused as a repetition of no open call"


def _intents(call: Call) -> tuple[str, ...]:
    """Same tool, and same business key or same arguments."""
    data = call.request.data
    ways = (data.get("idempotency_key"), data["arguments"])
    return tuple(ids.digest_of(ids.canonical([data["name"], way])) for way in ways)


def _open(call: Call, at: int) -> bool:
    """In flight, or of unknown effect that nobody has resolved, at a place in the log."""
    known = call.known_at()
    return call.request.at < at and (known is None or known > at)


def _surfaced(call: Call) -> bool:
    """It failed as what it is, or a person is asked, or a person has asked for it."""
    if "retry_of" in call.request.data:
        return True
    if call.result is not None and call.result.data.get("error") == "RepeatedIntent":
        return True
    return any(
        word.type == ev.APPROVAL_REQUESTED and word.data["reason"].startswith("repeats ")
        for word in call.words
    )
