"""Events in words: what happened to what, for lines, timelines and the live display."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from aaa import events as ev
from aaa.cli.text import moment, one, short
from aaa.events import Event

#: Styles by the tone of a line.
STYLES: Final = {"good": "green", "bad": "red", "ask": "yellow", "quiet": "dim", "": ""}


@dataclass(frozen=True, slots=True)
class Line:
    """One event: its subject (``run``, ``model``, ``refund c6-0``), what happened, more."""

    subject: str
    words: str
    detail: str = ""
    tone: str = ""


class Names:
    """The tool of each request, learnt from the events that are shown one after the other."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def of(self, event: Event) -> str | None:
        """The tool that an event is about, as far as its request has been seen."""
        if event.type == ev.TOOL_REQUESTED:
            self._names[event.id] = event.data["name"]
        return self._names.get(event.parent or "")


def line_of(event: Event, names: Names | None = None) -> Line:
    """The event in words. Every text of others in it is cleaned and short.

    ``names`` tells the tool where the event itself does not, as in what a person has said.
    """
    data = event.data
    name = names.of(event) if names is not None else None
    if name is not None and "call_id" in data and "name" not in data:
        data = {**data, "name": name}
    if event.type == ev.APPROVED and "for_s" in data:
        data = {**data, "until": f"until {moment(event.time + data['for_s'] * 1000)}"}
    maker = _WORDS.get(event.type)
    if maker is None:
        return Line("algorithm", short(event.type, 60), short(data), "quiet")
    return maker(data)


def subject_of(data: dict[str, Any]) -> str:
    """A tool call's subject."""
    return f"{short(data.get('name', 'tool'), 60)} {short(data.get('call_id', ''), 40)}".strip()


def _run(words: str, tone: str = "", *keys: str) -> Callable[[dict[str, Any]], Line]:
    def make(data: dict[str, Any]) -> Line:
        told = [short(data[key]) for key in keys if data.get(key)]
        return Line("run", words, ": ".join(told), tone)

    return make


def _completed(_: dict[str, Any]) -> Line:
    return Line("run", "completed", "", "good")  # the value is shown whole, at the end


def result_text(value: Any) -> Any:
    """A loop's answer is its text; anything else is itself."""
    if isinstance(value, dict) and set(value) == {"text"} and isinstance(value["text"], str):
        return value["text"]
    return value


def _model_completed(data: dict[str, Any]) -> Line:
    message = data.get("message", {})
    calls = message.get("tool_calls") or []
    if calls:
        names = ", ".join(short(call.get("name", "?"), 60) for call in calls)
        return Line("model", f"wants {one(len(calls), 'call')}", names)
    return Line("model", "answered", short(message.get("content", "")))


def _tool(words: str, tone: str, *keys: str) -> Callable[[dict[str, Any]], Line]:
    def make(data: dict[str, Any]) -> Line:
        told = [short(data[key]) for key in keys if data.get(key)]
        return Line(subject_of(data), words, ": ".join(told), tone)

    return make


def _tool_requested(data: dict[str, Any]) -> Line:
    again = " again, by a person's word" if "retry_of" in data else ""
    return Line(subject_of(data), f"requested{again}", short(data.get("arguments", {})), "quiet")


def _tool_started(data: dict[str, Any]) -> Line:
    return Line(subject_of(data), f"attempt {data.get('attempt')} started")


def _tool_completed(data: dict[str, Any]) -> Line:
    words = "found done by verify" if data.get("verified") else "completed"
    return Line(subject_of(data), words, short(data.get("result")), "good")


def _tool_failed(data: dict[str, Any]) -> Line:
    accepted = f", a loss that {data['accepted_by']} accepted" if "accepted_by" in data else ""
    words = f"failed: {short(data['error'], 60)}{accepted}"
    return Line(subject_of(data), words, short(data["message"]), "bad")


def _fenced(data: dict[str, Any]) -> Line:
    rest = "" if data.get("stopped", True) else "; it could not be stopped"
    words = f"attempt {data.get('attempt')} lost its lease{rest}"
    return Line(subject_of(data), words, "", "bad")


def _stale(data: dict[str, Any]) -> Line:
    words = f"attempt {data.get('attempt')} ended too late to count"
    outcome = data.get("outcome", {})
    kept = outcome.get("result", outcome.get("message", outcome))
    return Line(subject_of(data), words, short(kept), "ask")


def _resolved(data: dict[str, Any]) -> Line:
    word = {"done": "it was done", "not_done": "it was not done", "retry": "run it again"}
    said = word.get(data["outcome"], short(data["outcome"]))
    if data.get("reason"):
        said += f": {short(data['reason'])}"
    return Line(subject_of(data), f"resolved by {short(data['by'], 60)}", said, "ask")


def _by(words: str, tone: str, *keys: str) -> Callable[[dict[str, Any]], Line]:
    def make(data: dict[str, Any]) -> Line:
        told = [short(data[key]) for key in keys if data.get(key)]
        by = short(data.get("by", "somebody"), 60)
        subject = subject_of(data) if "call_id" in data else "run"
        return Line(subject, f"{words} by {by}", ": ".join(told), tone)

    return make


def _begun(data: dict[str, Any]) -> Line:
    given = data.get("input")
    task = given.get("task") if isinstance(given, dict) and set(given) == {"task"} else given
    return Line("run", "begun", short(task))


_WORDS: dict[str, Callable[[dict[str, Any]], Line]] = {
    ev.RUN_REQUESTED: _begun,
    ev.RUN_COMPLETED: _completed,
    ev.RUN_FAILED: _run("failed", "bad", "error", "message"),
    ev.RUN_CANCEL_REQUESTED: _by("cancel asked for", "ask", "reason"),
    ev.RUN_CANCELLED: _run("cancelled", "bad", "reason"),
    ev.RUN_SUSPENDED: _by("suspended", "ask"),
    ev.RUN_RESUMED: _by("resumed", ""),
    ev.RUN_PARKED: _run("parked", "bad", "error", "message"),
    ev.RUN_POLICY: lambda data: Line("run", "policy", short(data["policy"], 40), "quiet"),
    ev.LLM_REQUESTED: lambda data: Line("model", "asked", f"turn {data.get('turn')}", "quiet"),
    ev.LLM_COMPLETED: _model_completed,
    ev.LLM_FAILED: lambda data: Line(
        "model", f"failed: {short(data['error'], 60)}", short(data["message"]), "bad"
    ),
    ev.TOOL_REQUESTED: _tool_requested,
    ev.TOOL_STARTED: _tool_started,
    ev.TOOL_COMPLETED: _tool_completed,
    ev.TOOL_FAILED: _tool_failed,
    ev.TOOL_FENCED: _fenced,
    ev.TOOL_STALE_RESULT: _stale,
    ev.TOOL_RESOLVED: _resolved,
    ev.APPROVAL_REQUESTED: _tool("waits for approval", "ask", "reason"),
    ev.APPROVED: _by("approved", "good", "until"),
    ev.REJECTED: _by("rejected", "bad", "reason"),
    ev.TIMER_SET: lambda data: Line(
        "timer", f"{short(data['name'], 60)} set", f"in {data['after_ms'] / 1000:g} s", "quiet"
    ),
    ev.TIMER_FIRED: lambda data: Line("timer", f"{short(data['name'], 60)} fired", "", "ask"),
}
