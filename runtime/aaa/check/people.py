"""The checker of approvals: nothing begins without the word that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aaa import events as ev
from aaa import ids
from aaa.check.finding import Finding, Known
from aaa.check.history import Call, History, Item

#: Between the judgement of a claim and the time that its event is stamped with.
STAMP_SLACK_MS: Final = 1_000


def approvals(history: History, known: Known) -> Iterator[Finding]:
    """G19: approved before the first attempt, for these arguments, in time, once; rejected: never."""
    for item in history.of(ev.APPROVAL_REQUESTED, ev.APPROVED, ev.REJECTED):
        call = history.call_of(item)
        if call is None or call.request.at > item.at:
            yield item.seq, f"{item.type} is about a call that was not requested before"
    for call in history.calls.values():
        yield from _words(call)
        yield from _start(call, known)
        yield from _rejection(call)


def _words(call: Call) -> Iterator[Finding]:
    """The question, then one answer; both for the arguments that the call has."""
    digest = ids.digest_of(
        ids.canonical({"arguments": call.request.data["arguments"], "name": _name(call)})
    )
    waiting = False
    for word in call.words:
        if word.data["call_id"] != call.call_id:
            yield word.seq, f"{word.type} names {word.data['call_id']}, its call is {call.call_id}"
        if "args_digest" in word.data and word.data["args_digest"] != digest:
            yield word.seq, f"{word.type} is for other arguments than call {call.call_id} has"
        if word.type == ev.APPROVAL_REQUESTED:
            waiting = True
        elif not waiting:
            yield word.seq, f"{word.type} of call {call.call_id}, which waits for nobody"
        else:
            waiting = False


def _name(call: Call) -> str:
    return str(call.request.data["name"])


def _start(call: Call, known: Known) -> Iterator[Finding]:
    if not call.starts:
        return
    first = call.starts[0]
    said = [word for word in call.words if word.at < first.at]
    approved = [word for word in said if word.type == ev.APPROVED]
    terms = known.terms.get(first.settings)
    if terms is not None and terms.requires_approval and not approved:
        yield first.seq, f"call {call.call_id} begins, and nobody has approved it"
    elif said and said[-1].type != ev.APPROVED:
        yield first.seq, f"call {call.call_id} begins while it waits for an approval"
    elif approved and _expired(approved[-1], first):
        yield first.seq, f"the approval at {approved[-1].seq} had expired when the call began"
    for word in call.words:
        if word.at > first.at:
            yield word.seq, f"{word.type} of call {call.call_id}, which has begun at {first.seq}"


def _expired(approved: Item, start: Item) -> bool:
    until_ms = approved.event.time + float(approved.data["for_s"]) * 1000
    return start.event.time > until_ms + STAMP_SLACK_MS


def _rejection(call: Call) -> Iterator[Finding]:
    rejected = [word for word in call.words if word.type == ev.REJECTED]
    result = call.result
    failed = result is not None and result.data.get("error") == "ApprovalRejected"
    if rejected and not failed:
        yield rejected[0].seq, f"call {call.call_id} is rejected, and its result does not say so"
    if failed and not rejected and result is not None:
        yield result.seq, f"call {call.call_id} fails as rejected, and nobody has rejected it"
    for start in call.starts if rejected else ():
        yield start.seq, f"call {call.call_id} begins, and was rejected"
