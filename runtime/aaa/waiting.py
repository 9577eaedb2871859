"""Calls that wait for a person, as they are shown: what, why, since when, and the evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aaa import events as ev
from aaa.algos import CallState, RunState
from aaa.events import Event


@dataclass(frozen=True, slots=True)
class CallView:
    """A call that waits for a person: for an approval, or because its effect is unknown."""

    run_id: str
    call_id: str
    name: str
    arguments: dict[str, Any]
    args_digest: str
    idempotency_key: str
    reason: str
    attempts: int
    since_ms: int
    #: Whether it may be run again: its run goes on.
    retriable: bool = True
    #: Outcomes that came too late to count, as evidence (G6).
    evidence: tuple[Event, ...] = ()


def folded(run_id: str, events: list[Event]) -> RunState:
    """The run at the end of these events."""
    state = RunState(run_id)
    for event in events:
        state.fold(event)
    return state


def question_of(call: CallState, events: list[Event]) -> Event:
    """The newest question about the call."""
    return next(
        event
        for event in reversed(events)
        if event.type == ev.APPROVAL_REQUESTED and event.parent == call.request.id
    )


def view_of(state: RunState, call: CallState, events: list[Event], *, reason: str) -> CallView:
    """What a person is shown of a call of the run; ``reason`` says why it waits."""
    data = call.request.data
    arguments = data["arguments"]
    evidence = tuple(
        event
        for event in events
        if event.type == ev.TOOL_STALE_RESULT and event.parent == call.request.id
    )
    return CallView(
        run_id=call.request.run_id,
        call_id=call.call_id,
        name=call.name,
        arguments=arguments,
        args_digest=ev.args_digest(call.name, arguments),
        idempotency_key=data["idempotency_key"],
        reason=reason,
        attempts=call.attempts,
        since_ms=(call.result or call.request).time,
        retriable=state.status == "open" and state.cancelling is None,
        evidence=evidence,
    )
