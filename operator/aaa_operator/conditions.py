"""Conditions as Kubernetes writes them: one of a type, with the moment at which it last changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from aaa_operator.observe import Problem, timestamp_of

MAX_MESSAGE: Final = 4_096

Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class Judged:
    """One condition, newly judged."""

    type: str
    status: Truth
    reason: str
    message: str = ""


def yes(type_: str, reason: str, message: str = "") -> Judged:
    return Judged(type_, "True", reason, message)


def no(type_: str, reason: str, message: str = "") -> Judged:
    return Judged(type_, "False", reason, message)


def open_(type_: str, reason: str, message: str = "") -> Judged:
    return Judged(type_, "Unknown", reason, message)


def because(type_: str, problem: Problem, *, status: Truth = "False") -> Judged:
    return Judged(type_, status, problem.reason, problem.message)


def merged(
    old: Iterable[Mapping[str, Any]], judged: Iterable[Judged], *, now_ms: int, generation: int
) -> list[dict[str, Any]]:
    """The list for a status. ``lastTransitionTime`` stays while the status does; conditions of
    other writers stay where they are.
    """
    before = {str(each.get("type")): each for each in old}
    new = {each.type: each for each in judged}
    found = [dict(each) for type_, each in before.items() if type_ not in new]
    for each in new.values():
        last = before.get(each.type, {})
        same = last.get("status") == each.status
        since = last.get("lastTransitionTime") if same else None
        found.append(
            {
                "type": each.type,
                "status": each.status,
                "reason": each.reason,
                "message": each.message[:MAX_MESSAGE],
                "lastTransitionTime": since or timestamp_of(now_ms),
                "observedGeneration": generation,
            }
        )
    return found
