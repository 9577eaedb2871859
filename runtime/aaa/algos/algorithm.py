"""What an algorithm is: a pure function from (event, folded state) to events.

An algorithm has a name and a version, which a run is pinned to (L11). It has no hidden state and
does no input or output. It may be asked at any time, about any event, any number of times: what
it answers follows from ``state`` alone, and what it already asked for it does not ask for again
(L10). New events are made with ``event.caused(type, data)`` on an event of the state, so that
deciding again gives the same ids (L4).

What it may yield:

- :func:`ask_model`, :func:`call_tool`: requests;
- :func:`complete`, :func:`fail`: the run's end;
- :func:`set_timer`: ``aaa.timer.fired`` with this name follows after the time;
- events of types of its own, not beginning with ``aaa.``, to remember something.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from aaa import events as ev
from aaa.algos.state import RunState
from aaa.events import Event


class Algorithm(Protocol):
    """Decides what a run does next."""

    @property
    def name(self) -> str:
        """Stable over releases."""
        ...

    @property
    def version(self) -> str:
        """Changed whenever a run in flight would be decided differently."""
        ...

    def decide(self, event: Event, state: RunState) -> Iterable[Event]:
        """The events that follow; none if nothing is to be done. ``event`` is the newest one."""
        ...


def ask_model(cause: Event, *, turn: int) -> Event:
    """Ask the model with the conversation as it stands."""
    return cause.caused(ev.LLM_REQUESTED, {"call_id": f"m{turn}", "turn": turn})


def call_tool(
    cause: Event,
    *,
    name: str,
    arguments: dict[str, Any],
    call_id: str,
    turn: int,
    provider_call_id: str | None = None,
    arguments_error: str | None = None,
) -> Event:
    """Call a tool. The engine checks the arguments and adds the idempotency key."""
    data: dict[str, Any] = {
        "arguments": arguments,
        "call_id": call_id,
        "name": name,
        "turn": turn,
    }
    if provider_call_id is not None:
        data["provider_call_id"] = provider_call_id
    if arguments_error is not None:
        data["arguments_error"] = arguments_error
    return cause.caused(ev.TOOL_REQUESTED, data)


def complete(cause: Event, value: Any) -> Event:
    """End the run with a value."""
    return cause.caused(ev.RUN_COMPLETED, {"value": value})


def fail(cause: Event, *, error: str, message: str) -> Event:
    """End the run with an error: a name from the documented list, and a sentence."""
    return cause.caused(ev.RUN_FAILED, {"error": error, "message": message})


def set_timer(cause: Event, *, name: str, after_s: float) -> Event:
    """Have ``aaa.timer.fired`` appended after ``after_s`` seconds by the store's clock (L14)."""
    return cause.caused(ev.TIMER_SET, {"after_ms": max(0, round(after_s * 1000)), "name": name})
