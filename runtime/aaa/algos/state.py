"""RunState: a run's log, folded. Each event costs the same, however long the log is.

The state is rebuilt from the log alone; nothing in it comes from anywhere else. Folding is total:
an event that no rule knows changes nothing but the position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aaa import events as ev
from aaa.errors import CorruptHistory
from aaa.events import Event
from aaa.llm.messages import Message, ModelReply


@dataclass(slots=True)
class CallState:
    """One tool call: requested, perhaps waiting for a person, perhaps running, then settled."""

    request: Event
    call_id: str
    name: str
    turn: int
    attempts: int = 0
    waiting: bool = False
    result: Event | None = None
    #: The result says that the effect is unknown, and nobody has resolved it yet.
    unknown: bool = False
    intent: str | None = None


@dataclass(slots=True)
class Turn:
    """A turn of the conversation: a model request, its reply, and the calls that it asked for."""

    number: int
    request: Event
    completed: Event | None = None
    failed: Event | None = None
    reply: ModelReply | None = None
    #: In the order of the reply; filled as they are requested.
    calls: list[CallState] = field(default_factory=list)
    open_calls: int = 0
    unknown_calls: int = 0


@dataclass(slots=True)
class RunState:
    """Where a run stands after its first ``seq`` events."""

    run_id: str
    seq: int = 0
    last: Event | None = None
    root: Event | None = None
    status: str = "open"
    ending: Event | None = None
    cancelling: Event | None = None
    suspended: bool = False
    parked: Event | None = None
    #: The policy that its tool calls are claimed under; ``""``: whatever the worker has.
    policy: str = ""
    turn: Turn | None = None
    messages: list[Message] = field(default_factory=list)
    #: Length of the conversation when the newest model request was made.
    asked_through: int = 0
    #: Calls without a result, by request id.
    open_calls: dict[str, CallState] = field(default_factory=dict)
    #: Calls whose effect is unknown and unresolved, by request id.
    unknown: dict[str, CallState] = field(default_factory=dict)
    #: Intents in flight or of unknown effect → the requests that have them, first one first (G21).
    intents: dict[str, list[str]] = field(default_factory=dict)
    #: Resolutions that ask for a retry and have not got their new request yet.
    retries: list[Event] = field(default_factory=list)
    timers_fired: list[Event] = field(default_factory=list)
    #: Every call by request id: what a resolution or a late outcome refers to.
    calls: dict[str, CallState] = field(default_factory=dict)

    @property
    def input(self) -> Any:
        """The run's input, as it was submitted."""
        return None if self.root is None else self.root.data.get("input")

    def fold(self, event: Event) -> None:
        """Take in the next event. Raises :class:`CorruptHistory` if it cannot be the next."""
        if event.run_id != self.run_id or event.seq != self.seq + 1:
            raise CorruptHistory(
                f"run {self.run_id}: event {event.seq} of {event.run_id} cannot follow {self.seq}"
            )
        rule = _RULES.get(event.type)
        if rule is not None:
            try:
                rule(self, event)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise CorruptHistory(
                    f"run {self.run_id}, event {event.seq} ({event.type}): {error!r}"
                ) from error
        elif not event.type.startswith("aaa."):
            pass  # an algorithm's own event
        elif event.type not in ev.TYPES:
            raise CorruptHistory(
                f"run {self.run_id}, event {event.seq}: type {event.type!r} is not known to this "
                "version; it was written by a newer one"
            )
        self.seq, self.last = event.seq, event

    def call_named(self, call_id: str) -> CallState | None:
        """The call with this call id."""
        return next((call for call in self.calls.values() if call.call_id == call_id), None)


Rule = Callable[[RunState, Event], None]


def _run_requested(state: RunState, event: Event) -> None:
    state.root = event
    task = event.data["input"]
    content = task.get("task") if isinstance(task, dict) else None
    state.messages.append(Message("user", content if isinstance(content, str) else _text(task)))


def _text(value: Any) -> str:
    from aaa.llm.messages import result_text

    return result_text(value)


def _run_ended(state: RunState, event: Event) -> None:
    state.status, state.ending = ev.ENDINGS[event.type], event


def _cancel_requested(state: RunState, event: Event) -> None:
    state.cancelling = event


def _suspended(state: RunState, _: Event) -> None:
    state.suspended = True


def _resumed(state: RunState, _: Event) -> None:
    state.suspended, state.parked = False, None


def _parked(state: RunState, event: Event) -> None:
    state.parked = event


def _policy_required(state: RunState, event: Event) -> None:
    state.policy = event.data["policy"]


def _llm_requested(state: RunState, event: Event) -> None:
    state.turn = Turn(event.data["turn"], event)
    state.asked_through = len(state.messages)


def _llm_completed(state: RunState, event: Event) -> None:
    turn = state.turn
    if turn is None or event.parent != turn.request.id:
        return
    turn.completed = event
    turn.reply = ModelReply.from_json(event.data["message"])
    names = [f"c{event.seq}-{index}" for index in range(len(turn.reply.tool_calls))]
    state.messages.append(Message.assistant(turn.reply, call_ids=names))


def _llm_failed(state: RunState, event: Event) -> None:
    if state.turn is not None and event.parent == state.turn.request.id:
        state.turn.failed = event


def _tool_requested(state: RunState, event: Event) -> None:
    data = event.data
    call = CallState(event, data["call_id"], data["name"], data["turn"], intent=data.get("intent"))
    state.calls[event.id] = state.open_calls[event.id] = call
    if call.intent is not None:
        state.intents.setdefault(call.intent, []).append(event.id)
    if (retried := data.get("retry_of")) is not None:
        state.retries = [asked for asked in state.retries if asked.parent != retried]
    elif state.turn is not None and call.turn == state.turn.number:
        state.turn.calls.append(call)
        state.turn.open_calls += 1


def _tool_started(state: RunState, event: Event) -> None:
    if event.parent in state.calls:
        state.calls[event.parent].attempts = event.data["attempt"]


def _tool_settled(state: RunState, event: Event) -> None:
    call = state.open_calls.pop(event.parent or "", None)
    if call is None:
        return
    call.result, call.waiting = event, False
    call.unknown = event.data.get("effect") == "unknown"
    if call.unknown:
        state.unknown[call.request.id] = call
    else:
        _forget_intent(state, call)
    if "retry_of" in call.request.data:
        state.messages.append(Message("user", _told_later(call)))
        return
    state.messages.append(Message("tool", _told(event), tool_call_id=call.call_id))
    if state.turn is not None and call.turn == state.turn.number:
        state.turn.open_calls -= 1
        state.turn.unknown_calls += call.unknown


def _told(event: Event) -> str:
    """A result as the model reads it."""
    if event.type == ev.TOOL_COMPLETED:
        return _text(event.data.get("result"))
    return f"{event.data['error']}: {event.data['message']}"


def _told_later(call: CallState) -> str:
    result = call.result
    return f"The retry of call {call.call_id} ({call.name}) has ended. " + (
        _told(result) if result is not None else ""
    )


def _forget_intent(state: RunState, call: CallState) -> None:
    having = state.intents.get(call.intent or "", [])
    if call.request.id in having:
        having.remove(call.request.id)
        if not having:
            del state.intents[call.intent or ""]


def _approval_requested(state: RunState, event: Event) -> None:
    if event.parent in state.open_calls:
        state.open_calls[event.parent].waiting = True


def _approved(state: RunState, event: Event) -> None:
    if event.parent in state.open_calls:
        state.open_calls[event.parent].waiting = False


def _resolved(state: RunState, event: Event) -> None:
    call = state.unknown.pop(event.parent or "", None)
    if call is None:
        return
    call.unknown = False
    if state.turn is not None and call.turn == state.turn.number:
        state.turn.unknown_calls -= 1
    _forget_intent(state, call)
    word = event.data["outcome"]
    if word == "retry":
        state.retries.append(event)
        told = "it will be run again under the same idempotency key; its result follows"
    elif word == "done":
        told = "it did take effect"
        if "result" in event.data:
            told += f"; its result is: {_text(event.data['result'])}"
    else:
        told = "it did not take effect"
    state.messages.append(
        Message("user", f"A person has checked call {call.call_id} ({call.name}): {told}.")
    )


def _timer_fired(state: RunState, event: Event) -> None:
    state.timers_fired.append(event)


_RULES: dict[str, Rule] = {
    ev.RUN_REQUESTED: _run_requested,
    ev.RUN_COMPLETED: _run_ended,
    ev.RUN_FAILED: _run_ended,
    ev.RUN_CANCELLED: _run_ended,
    ev.RUN_CANCEL_REQUESTED: _cancel_requested,
    ev.RUN_SUSPENDED: _suspended,
    ev.RUN_RESUMED: _resumed,
    ev.RUN_PARKED: _parked,
    ev.RUN_POLICY: _policy_required,
    ev.LLM_REQUESTED: _llm_requested,
    ev.LLM_COMPLETED: _llm_completed,
    ev.LLM_FAILED: _llm_failed,
    ev.TOOL_REQUESTED: _tool_requested,
    ev.TOOL_STARTED: _tool_started,
    ev.TOOL_COMPLETED: _tool_settled,
    ev.TOOL_FAILED: _tool_settled,
    ev.APPROVAL_REQUESTED: _approval_requested,
    ev.APPROVED: _approved,
    ev.TOOL_RESOLVED: _resolved,
    ev.TIMER_FIRED: _timer_fired,
}
