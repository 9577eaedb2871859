"""What the API server refuses the operator for good, as whoever must mend it is told. Pure.

A refusal that passes by itself (another version, a busy server) is no hindrance: it is tried again.
Nor is one that is mended: the next pass is not refused, and forgets it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from aaa_operator import actions as act
from aaa_operator import names
from aaa_operator.actions import Action
from aaa_operator.observe import Problem

#: HTTP's answers that stay as they are until somebody changes something.
_LASTING: Final = (400, 401, 403, 413, 422)
EVERYBODY: Final = ""


def hindrance(status: int, said: str) -> Problem | None:
    """Why the operator cannot do or read something, and what to do; ``None`` if it only has to wait.

    ``status`` is HTTP's, ``said`` what the API server answered to which request.
    """
    if status not in _LASTING:
        return None
    said = said[:1_000]
    if "exceeded quota" in said:
        return Problem(
            "QuotaExceeded", f"a ResourceQuota of the namespace is full: raise it ({said})"
        )
    if status in (401, 403):
        return Problem(
            "Forbidden",
            "the operator lacks a right, or an admission policy refuses it: give its service account "
            f"the chart's Role again (helm upgrade), or mend the policy ({said})",
        )
    return Problem(
        "Refused",
        f"the API server refuses an object of the operator's: mend what it names ({said})",
    )


def hindered(results: Iterable[tuple[Action, Problem]]) -> Mapping[str, Problem]:
    """Whom it concerns: a pool by its name, a run as ``run/<name>``, or :data:`EVERYBODY`."""
    return {_whom(action): problem for action, problem in results}


def run_key(name: str) -> str:
    return f"run/{name}"


def _whom(action: Action) -> str:
    match action:
        case act.Apply():
            labels = action.object["metadata"].get("labels") or {}
            return str(labels.get(names.POOL, EVERYBODY))
        case act.Scale():
            return action.pool
        case act.PutBack():
            return action.name
        case act.Annotate(kind="Deployment" | "ControllerRevision"):
            return action.name
        case act.SetFinalizers():
            return run_key(action.name)
        case _:
            return EVERYBODY
