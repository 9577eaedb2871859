"""Deciding: from a folded run to the entries that its log gets next. Pure.

The algorithm says what it wants; the engine adds what every run is owed whatever its algorithm:
checked arguments, fixed idempotency keys (G13), repeated intents (G21), approvals (G19),
cancelling (L13), retries that a person asked for (G4), deadlines.

``decide`` folds what it decides into the state that it was given, so the state afterwards is the
one that the log will have if the append is accepted, and must be thrown away if it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from typing import Any, Final

from aaa import events as ev
from aaa import ids
from aaa.algos import Algorithm, CallState, RunState
from aaa.errors import AlgorithmError, InvalidArguments, NotExecuted
from aaa.events import Event
from aaa.policy import Delivery, ToolSettings
from aaa.store import port
from aaa.store.port import Entry
from aaa.tools import Tool, ToolHandler

#: A decision that wants more steps than this goes round in circles.
MAX_STEPS: Final = 1_000
#: Longest timer: a hundred years, which every store can add to its clock.
MAX_TIMER_MS: Final = 100 * 365 * 86_400_000
#: What an algorithm may call its own events: every store must be able to keep it.
_OWN_TYPE: Final = re.compile(r"[\w.:/@-]{1,200}")
#: Name of the timer behind a run's deadline.
DEADLINE: Final = "aaa.deadline"


def decide(
    state: RunState,
    algorithm: Algorithm,
    tools: ToolHandler | None,
    begun: Set[str] = frozenset(),
) -> list[Entry]:
    """The entries to append now, none if there is nothing to do.

    ``begun`` names requests that are known to run although the log has no attempt of theirs.

    Raises :class:`AlgorithmError` if the algorithm raises or yields what it may not.
    """
    entries: list[Entry] = []
    before = -1
    while state.status == "open" and len(entries) > before:
        before = len(entries)
        entries += _checked(state, algorithm, tools, begun)
        if len(entries) > MAX_STEPS:
            raise AlgorithmError(
                f"algorithm {algorithm.name} of run {state.run_id} yields events without end"
            )
    return entries


def _checked(
    state: RunState, algorithm: Algorithm, tools: ToolHandler | None, begun: Set[str]
) -> Iterator[Entry]:
    """Each entry is folded before the next is made: a turn's second call sees its first."""
    try:
        for entry in _step(state, algorithm, tools, begun):
            state.fold(entry.event.stored(state.seq + 1, 0))
            yield entry
    except AlgorithmError:
        raise
    except Exception as error:
        # The log itself was folded before: what does not fit is what the algorithm yielded.
        raise AlgorithmError(
            f"algorithm {algorithm.name} of run {state.run_id} yielded, at event {state.seq}, what "
            f"cannot be appended: {type(error).__name__}: {error}"
        ) from error


def _step(
    state: RunState, algorithm: Algorithm, tools: ToolHandler | None, begun: Set[str]
) -> Iterator[Entry]:
    if state.cancelling is not None:
        yield from _cancel(state, begun)
    elif state.suspended or state.parked is not None or state.last is None:
        return
    elif (timer := overdue(state)) is not None:
        data = {"by": "aaa", "reason": "deadline"}
        yield Entry(timer.caused(ev.RUN_CANCEL_REQUESTED, data), port.Flag("cancel"))
    elif state.retries:
        for resolution in list(state.retries):
            yield from _retry(state, resolution, tools)
    else:
        for draft in _ask(state, algorithm):
            yield from _admit(state, draft, algorithm, tools, begun)


def _ask(state: RunState, algorithm: Algorithm) -> list[Event]:
    if state.last is None:
        return []
    try:
        return list(algorithm.decide(state.last, state))
    except Exception as error:
        raise AlgorithmError(
            f"algorithm {algorithm.name} of run {state.run_id} raised at event {state.seq}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _admit(
    state: RunState,
    draft: Event,
    algorithm: Algorithm,
    tools: ToolHandler | None,
    begun: Set[str],
) -> Iterator[Entry]:
    if draft.run_id != state.run_id or draft.seq:
        raise AlgorithmError(f"algorithm {algorithm.name} yielded {draft!r}, which is not its own")
    match draft.type:
        case ev.LLM_REQUESTED:
            yield Entry(draft, _open(port.MODEL_QUEUE, draft, "model", ids.digest_of(draft.raw)))
        case ev.TOOL_REQUESTED:
            yield from _admit_tool(state, draft, tools)
        case ev.RUN_COMPLETED | ev.RUN_FAILED:
            yield from _not_executed(state, "the run has ended", begun)
            yield Entry(draft, port.CloseRun(ev.ENDINGS[draft.type]))
        case ev.TIMER_SET:
            yield Entry(draft, _timer(draft, algorithm))
        case kind if kind.startswith("aaa."):
            raise AlgorithmError(f"algorithm {algorithm.name} may not yield {kind}")
        case kind if _OWN_TYPE.fullmatch(kind) is None:
            raise AlgorithmError(
                f"algorithm {algorithm.name} yielded an event of type {kind!r}: up to 200 letters, "
                "digits and . : / @ _ - are allowed"
            )
        case _:
            yield Entry(draft)


def _timer(draft: Event, algorithm: Algorithm) -> port.StartTimer:
    name, after_ms = draft.data["name"], draft.data["after_ms"]
    whole = isinstance(after_ms, int) and not isinstance(after_ms, bool)
    if not (isinstance(name, str) and whole and 0 <= after_ms <= MAX_TIMER_MS):
        raise AlgorithmError(
            f"algorithm {algorithm.name} yielded a timer with name {name!r} and after_ms "
            f"{after_ms!r}: a text and a whole number from 0 to {MAX_TIMER_MS} are needed"
        )
    return port.StartTimer(ids.json_text(name), after_ms)


# ---------------------------------------------------------------------------------- tool requests


def _admit_tool(state: RunState, draft: Event, tools: ToolHandler | None) -> Iterator[Entry]:
    data = dict(draft.data)
    tool = tools.registry.get(data["name"]) if tools is not None else None
    if tools is None or tool is None:
        known = ", ".join(sorted(each.name for each in tools.registry)) if tools else ""
        message = f"There is no tool {data['name']!r}. The tools are: {known or 'none'}."
        yield from _refuse(draft, data, "UnknownTool", message)
        return
    settings = tools.settings_for(tool.name)
    try:
        if "arguments_error" in data:
            raise InvalidArguments(data["arguments_error"])
        arguments = tool.validate(data["arguments"])
        if not settings.allowed:
            raise NotExecuted(
                f"a policy does not allow {tool.name} ({settings.origins['allowed']})"
            )
        default = f"{state.run_id}/{data['call_id']}"
        data["idempotency_key"] = tools.key_for(tool, arguments, default=default)
    except InvalidArguments as error:
        yield from _refuse(draft, data, "InvalidArguments", str(error))
        return
    except NotExecuted as error:
        yield from _refuse(draft, data, "NotExecuted", str(error))
        return
    yield from _open_tool(state, draft, data, tool, settings)


def _open_tool(
    state: RunState,
    draft: Event,
    data: dict[str, Any],
    tool: Tool[..., Any],
    settings: ToolSettings,
) -> Iterator[Entry]:
    reason = "requires_approval" if settings.requires_approval else None
    intent = _intent(tool, settings, data)
    if intent is not None:
        data["intent"] = intent
        if others := state.intents.get(intent):
            named = state.calls[others[0]].call_id
            if tool.on_repeat != "ask":
                message = (
                    f"This repeats call {named} of this run, whose effect is not known yet. It was "
                    "not run. Verify what became of that call first."
                )
                yield from _refuse(draft, data, "RepeatedIntent", message, first=named)
                return
            reason = f"repeats {named}"
    request = _with(draft, data)
    digest = ev.args_digest(data["name"], data["arguments"])
    needs = reason is not None
    yield Entry(
        request,
        _open(
            port.tool_queue(tool.name, state.policy),
            request,
            tool.name,
            digest,
            needs_approval=needs,
            verify=tool.verify is not None,
        ),
    )
    if reason is not None:
        yield Entry(approval_requested(request, digest, reason=reason))


def approval_requested(request: Event, args_digest: str, *, reason: str, again: int = 0) -> Event:
    """The question to a person about one call (G19)."""
    return request.named(
        f"{request.id}:approval" + (f":{again}" if again else ""),
        ev.APPROVAL_REQUESTED,
        {
            "args_digest": args_digest,
            "call_id": request.data["call_id"],
            "name": request.data["name"],
            "reason": reason,
        },
    )


def _intent(tool: Tool[..., Any], settings: ToolSettings, data: dict[str, Any]) -> str | None:
    """What the call is meant to do, for tools of which a repeat would matter (G21)."""
    keyed = settings.key_from_code or settings.idempotency_key_template is not None
    once = settings.guard.delivery is Delivery.AT_MOST_ONCE
    if not (keyed or once or settings.requires_approval):
        return None
    what = data["idempotency_key"] if keyed else data["arguments"]
    return ids.digest_of(ids.canonical([tool.name, what]))


def _refuse(
    draft: Event, data: dict[str, Any], error: str, message: str, **more: Any
) -> Iterator[Entry]:
    """A call that gets its result at once, without an attempt."""
    request = _with(draft, data)
    yield Entry(request)
    yield Entry(ev.tool_failed(request, error, message, **more))


def _with(draft: Event, data: dict[str, Any]) -> Event:
    """The draft with more data; its id follows from the data as ever (L4)."""
    raw = ids.canonical(data)
    return Event(
        id=ids.derive(draft.parent or "", draft.type, raw),
        run_id=draft.run_id,
        type=draft.type,
        raw=raw,
        parent=draft.parent,
    )


def _open(
    queue: str,
    request: Event,
    name: str,
    args_digest: str,
    *,
    needs_approval: bool = False,
    verify: bool = False,
) -> port.OpenCall:
    return port.OpenCall(
        queue=queue,
        call_json=ids.json_text(request.data["call_id"]),
        name_json=ids.json_text(name),
        key_json=ids.json_text(request.data.get("idempotency_key", "")),
        args_digest=args_digest,
        needs_approval=needs_approval,
        verify=verify,
    )


# ------------------------------------------------------------------- what every run is owed


def _retry(state: RunState, resolution: Event, tools: ToolHandler | None) -> Iterator[Entry]:
    """A new request that carries the idempotency key of the one whose effect is unknown (G4)."""
    call = state.calls[resolution.parent or ""]
    first = call.request
    kept = ("arguments", "idempotency_key", "intent", "name", "turn")
    data = {name: first.data[name] for name in kept if name in first.data}
    told = 0 if call.result is None else call.result.data.get("attempt", 0)  # without records
    before = first.data.get("attempts_before", 0) + max(call.attempts, told)
    data |= {
        "attempts_before": before,  # so that no fence is seen twice under the key
        "call_id": first.data["call_id"] + "r",
        "retry_of": first.id,
    }
    draft = resolution.caused(ev.TOOL_REQUESTED, data)
    tool = tools.registry.get(data["name"]) if tools is not None else None
    if tool is None:
        yield from _refuse(
            draft, data, "UnknownTool", f"There is no tool {data['name']!r} any more."
        )
        return
    yield Entry(
        draft,
        _open(
            port.tool_queue(tool.name, state.policy),
            draft,
            tool.name,
            ev.args_digest(data["name"], data["arguments"]),
            verify=tool.verify is not None,
        ),
    )


def _cancel(state: RunState, begun: Set[str]) -> Iterator[Entry]:
    """Calls that have not begun are not executed; the run ends when none is left (L13)."""
    unstarted = list(_not_executed(state, "the run was cancelled", begun))
    last = all(_unstarted(call, begun) for call in state.open_calls.values())
    yield from unstarted
    if last and state.cancelling is not None:
        reason = state.cancelling.data.get("reason", "")
        cancelled = state.cancelling.caused(ev.RUN_CANCELLED, {"reason": reason})
        yield Entry(cancelled, port.CloseRun("cancelled"))


def _unstarted(call: CallState, begun: Set[str]) -> bool:
    return call.attempts == 0 and call.request.id not in begun


def _not_executed(state: RunState, why: str, begun: Set[str]) -> Iterator[Entry]:
    turn = state.turn
    if turn is not None and turn.reply is None and turn.failed is None:
        data = {"call_id": turn.request.data["call_id"], "turn": turn.number}
        data |= {"error": "Cancelled", "message": f"The model's answer is not needed: {why}."}
        failed = turn.request.named(ids.result_id(turn.request.id), ev.LLM_FAILED, data)
        yield Entry(failed, port.SettleUnstarted(turn.request.id))
    for call in list(state.open_calls.values()):
        if _unstarted(call, begun):
            message = f"{call.name} was not run: {why}."
            failed = ev.tool_failed(call.request, "NotExecuted", message)
            yield Entry(failed, port.SettleUnstarted(call.request.id))


def overdue(state: RunState) -> Event | None:
    """The timer of the run's deadline, once it has fired."""
    return next((t for t in state.timers_fired if t.data["name"] == DEADLINE), None)
