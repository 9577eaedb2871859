"""Checkers of what was decided, and when: results, endings, stops, turns, models."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from aaa import events as ev
from aaa.check.finding import Finding, Known
from aaa.check.history import ANSWERS, RESULTS, Call, History, Item

#: What may still follow a run's end: outcomes that were on their way, and a person's findings.
_AFTER_THE_END: Final = RESULTS | ANSWERS | {ev.TOOL_FENCED, ev.TOOL_STALE_RESULT, ev.TOOL_RESOLVED}
_REQUESTS: Final = (ev.LLM_REQUESTED, ev.TOOL_REQUESTED)
#: What a cancelled run does no more.
_STOPPED: Final = (*_REQUESTS, ev.TOOL_STARTED, ev.TIMER_SET, ev.RUN_COMPLETED, ev.RUN_FAILED)


def one_result(history: History, _: Known) -> Iterator[Finding]:
    """L5: a request has one result, of its own kind."""
    kinds = ((RESULTS, ev.TOOL_REQUESTED), (ANSWERS, ev.LLM_REQUESTED))
    for results, kind in kinds:
        settled: dict[str, int] = {}
        for item in history.of(*results):
            request = history.named(item.event.parent)
            if request is None or request.type != kind:
                yield item.seq, f"this {item.type} is the result of no {kind}"
                continue
            first = settled.setdefault(request.event.id, item.seq)
            if first != item.seq or history.first_at[item.event.id] != item.at:
                yield item.seq, f"the request at {request.seq} has its result already, at {first}"


def nothing_dropped(history: History, _: Known) -> Iterator[Finding]:
    """L7: a request leaves the bus with its result only; a run's end settles what never began."""
    ending = history.ending
    if ending is None:
        return
    for call in history.calls.values():
        begun = any(start.at < ending.at for start in call.starts)
        settled = call.settled_at()
        # A call without a record of its attempts shows that it ran by its later result alone.
        if not begun and settled is None and call.request.at < ending.at:
            yield (
                call.request.seq,
                f"call {call.call_id} never began and has no result, and the run has ended",
            )


def one_decision_at_a_time(history: History, _: Known) -> Iterator[Finding]:
    """L8: decisions follow one another; none is taken on a state that is not the newest."""
    ending = history.ending
    if ending is not None:
        for item in history.items[history.items.index(ending) + 1 :]:
            if item.type not in _AFTER_THE_END:
                yield item.seq, f"{item.type} follows the run's end at {ending.seq}"
    taken = history.of(*_REQUESTS, ev.TIMER_SET, ev.TOOL_STARTED)
    for since, until in history.standing_still():
        for item in taken:
            if since < item.at < until:
                seq = history.events[since].seq
                yield item.seq, f"{item.type} while the run stands still since {seq}"
    if history.is_tool_loop:
        yield from _turns(history)


def _turns(history: History) -> Iterator[Finding]:
    """The documented loop asks again when all that it has asked for is there."""
    turn = 0
    answered: dict[str, int] = {}
    for answer in history.of(*ANSWERS):
        answered.setdefault(answer.event.parent or "", answer.at)
    later = deque(c for c in history.calls.values() if "retry_of" not in c.request.data)
    # What is still open, in order; a sound history keeps both short, however long it is.
    waiting: list[Item] = []
    open_: list[Call] = []
    for item in history.of(ev.LLM_REQUESTED):
        turn += 1
        if item.data["turn"] != turn:
            yield item.seq, f"turn {turn} was to be asked for here, not {item.data['turn']}"
            turn = item.data["turn"]
        while later and later[0].request.at < item.at:
            open_.append(later.popleft())
        waiting = [w for w in waiting if answered.get(w.event.id, item.at) >= item.at]
        open_ = [call for call in open_ if (call.settled_at() or item.at) >= item.at]
        for asked in waiting:
            yield item.seq, f"the model is asked again, and has not answered {asked.seq}"
        for call in open_:
            yield item.seq, f"the model is asked again while call {call.call_id} is open"
        waiting.append(item)
    for call in history.calls.values():
        reply = history.named(call.request.event.parent)
        follows = reply is not None and reply.type == ev.LLM_COMPLETED
        if "retry_of" not in call.request.data and not follows:
            yield call.request.seq, f"call {call.call_id} follows from no answer of the model"


def cancelling(history: History, _: Known) -> Iterator[Finding]:
    """L13: after the request to cancel nothing is decided or begun; the end comes when all settled."""
    asked = next(iter(history.of(ev.RUN_CANCEL_REQUESTED)), None)
    if asked is not None:
        for item in history.of(*_STOPPED):
            if item.at > asked.at:
                yield item.seq, f"{item.type} after the run was to be cancelled at {asked.seq}"
    for item in history.of(ev.RUN_CANCELLED):
        cause = history.named(item.event.parent)
        if cause is None or cause.type != ev.RUN_CANCEL_REQUESTED:
            yield item.seq, "the run is cancelled, and nobody has asked for it"
        for call in history.calls.values():
            settled = call.settled_at()
            if call.request.at < item.at and (settled is None or settled > item.at):
                yield item.seq, f"the run is cancelled while call {call.call_id} is open"


def models(history: History, _: Known) -> Iterator[Finding]:
    """G24: a model's answer is recorded once, under its own request."""
    answered: dict[str, int] = {}
    for item in history.of(*ANSWERS):
        request = history.named(item.event.parent)
        if request is None or request.type != ev.LLM_REQUESTED:
            yield item.seq, "a model answers what it was not asked"
            continue
        if request.at > item.at:
            yield item.seq, f"the model answers before it is asked at {request.seq}"
        if request.event.id in answered:
            seq = answered[request.event.id]
            yield item.seq, f"the model's answer to {request.seq} is recorded already, at {seq}"
        answered.setdefault(request.event.id, item.seq)
        for name in ("call_id", "turn"):
            if name in item.data and item.data[name] != request.data[name]:
                yield (
                    item.seq,
                    f"an answer to {name} {item.data[name]!r}, not {request.data[name]!r}",
                )
