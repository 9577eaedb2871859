"""What a run comes to: for callers that wait for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aaa import events as ev
from aaa.events import Event


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run failed: a name from the documented list, and a sentence."""

    error: str
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """``status``: ``completed`` (``value``), ``failed`` (``error``) or ``cancelled``."""

    run_id: str
    status: str
    value: Any = None
    error: Failure | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A submitted run. ``dup``: it was there already, with the same input."""

    run_id: str
    dup: bool


def outcome_of(ending: Event) -> Outcome:
    """The outcome that a run's last event tells."""
    status = ev.ENDINGS[ending.type]
    data = ending.data
    error = Failure(data["error"], data["message"]) if status == "failed" else None
    return Outcome(ending.run_id, status, data.get("value"), error)
