"""What the statuses say, rebuilt from the world at every pass.

``Succeeded`` is the summary: ``Unknown`` while the run is active, its reason being the one word of
``kubectl get arun``. A write is worth it when a condition, an id or a waiting call changes;
counters ride along, or wait until ten seconds have passed since the last write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aaa.manifest.agentrun import MAX_RESULT_BYTES
from aaa_operator import conditions
from aaa_operator.conditions import Judged, because, no, open_, yes
from aaa_operator.observe import CallSeen, Problem, Progress, RunSeen, timestamp_of

#: Least time between two writes that only counters ask for.
COUNTERS_EVERY_MS: Final = 10_000
_MAX_CALLS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of one AgentRun in this pass."""

    accepted: Problem | None = None
    policy: Problem | None = None
    policy_names: tuple[str, ...] = ()
    policy_hash: str | None = None
    #: The workers have acknowledged the hash.
    policy_acknowledged: bool = False
    pool: str | None = None
    image_ids: tuple[str, ...] = ()
    #: ``None`` while at least one worker is ready.
    workers: Problem | None = None
    waits: Problem | None = None
    stalled: Problem | None = None
    progress: Progress | None = None
    #: Cancelled before it was ever created.
    never_begun: bool = False
    ids: Mapping[str, str] | None = None


def run_status(run: RunSeen, facts: Facts, *, now_ms: int) -> dict[str, Any]:
    """The whole status of an AgentRun."""
    old, progress = run.status, facts.progress
    judged = run_conditions(run, facts)
    status: dict[str, Any] = {
        key: old[key]
        for key in ("runId", "storeId", "inputDigest", "startTime", "completionTime", "result")
        if key in old
    }
    status |= facts.ids or {}
    status["observedGeneration"] = run.meta.generation
    if progress is not None:
        status |= _progress(progress, began=old.get("startTime"))
    else:
        for key in ("toolCalls", "pendingApprovals", "unknownOutcomes"):
            if key in old:
                status[key] = old[key]
    if facts.never_begun:
        status.setdefault("completionTime", timestamp_of(now_ms))
    if facts.pool is not None:
        status["pool"] = {"name": facts.pool, "hash": facts.pool.rpartition("-")[2]}
        if facts.image_ids:
            status["pool"]["imageIDs"] = list(facts.image_ids[:16])
    elif "pool" in old:
        status["pool"] = old["pool"]
    if facts.policy_hash is not None:
        names = ", ".join(facts.policy_names)[:1024]
        status["policy"] = {"name": names, "hash": facts.policy_hash}
    elif "policy" in old:
        status["policy"] = old["policy"]
    status["conditions"] = conditions.merged(
        old.get("conditions") or (), judged, now_ms=now_ms, generation=run.meta.generation
    )
    return status


def late_status(run: RunSeen, progress: Progress, *, now_ms: int) -> dict[str, Any]:
    """The status of a run that has ended, with what people have found out since.

    Only calls of unknown outcome can still change: everything else was said when it ended.
    """
    status = {key: value for key, value in run.status.items() if key != "unknownOutcomes"}
    late = _progress(progress, began=run.status.get("startTime"))
    status["toolCalls"] = late["toolCalls"]
    if "unknownOutcomes" in late:
        status["unknownOutcomes"] = late["unknownOutcomes"]
    status["conditions"] = conditions.merged(
        run.status.get("conditions") or (),
        [_unknown(progress.unknown)],
        now_ms=now_ms,
        generation=run.meta.generation,
    )
    return status


def _unknown(calls: Sequence[CallSeen]) -> Judged:
    return _calls(
        "OutcomeUnknown", calls, "find out what happened, then answer with a ToolDecision"
    )


def run_conditions(run: RunSeen, facts: Facts) -> list[Judged]:
    """Every condition of an AgentRun, each judged anew."""
    progress = facts.progress
    judged = [
        because("Accepted", facts.accepted) if facts.accepted else yes("Accepted", "Accepted"),
        _policy(facts),
        because("WorkersReady", facts.workers) if facts.workers else yes("WorkersReady", "Ready"),
        because("Stalled", facts.stalled, status="True") if facts.stalled else no("Stalled", "No"),
    ]
    if progress is None and run.started:
        # Out of sight: what was last seen of the run itself stays as it is.
        return [*judged, *(_ending(facts) if facts.stalled else ())]
    waiting = progress.waiting if progress else ()
    unknown = progress.unknown if progress else ()
    return [
        *judged,
        _calls("AwaitingApproval", waiting, "a ToolDecision with Approve or Reject answers"),
        _unknown(unknown),
        _suspended(run, progress),
        *_ending(facts),
    ]


def worth_writing(
    old: Mapping[str, Any], new: Mapping[str, Any], *, last_ms: int | None, now_ms: int
) -> bool:
    """Whether the difference deserves a write now."""
    if old == new:
        return False
    if _without_riders(old) != _without_riders(new):
        return True
    return last_ms is None or now_ms - last_ms >= COUNTERS_EVERY_MS


# ------------------------------------------------------------------------------------- inside


def _without_riders(status: Mapping[str, Any]) -> dict[str, Any]:
    """Without what alone deserves no write: counters, and what the pool's images turned out to be."""
    found = {key: value for key, value in status.items() if key != "toolCalls"}
    if "pool" in found:
        found["pool"] = {key: value for key, value in found["pool"].items() if key != "imageIDs"}
    return found


def _progress(progress: Progress, *, began: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "startTime": began or timestamp_of(progress.created_ms),
        "toolCalls": {
            "requested": progress.requested,
            "running": progress.running,
            "completed": progress.completed,
            "failed": progress.failed,
            "unknown": len(progress.unknown),
        },
    }
    if progress.waiting:
        found["pendingApprovals"] = [_call(call) for call in progress.waiting[:_MAX_CALLS]]
    if progress.unknown:
        found["unknownOutcomes"] = [_call(call) for call in progress.unknown[:_MAX_CALLS]]
    if progress.ended:
        found["completionTime"] = timestamp_of(progress.closed_ms or progress.created_ms)
        if progress.status == "completed":
            found["result"] = _result(progress.value)
    return found


def _call(call: CallSeen) -> dict[str, Any]:
    return {
        "callId": call.call_id,
        "tool": call.tool,
        "argsDigest": call.args_digest,
        "since": timestamp_of(call.since_ms),
        "message": call.message[:1024],
    }


def _result(value: Any) -> Any:
    size = len(json.dumps(value, ensure_ascii=False).encode())
    if size <= MAX_RESULT_BYTES:
        return value
    return {
        "truncated": True,
        "bytes": size,
        "message": "too long for a status; read it with aaa show",
    }


def _policy(facts: Facts) -> Judged:
    if facts.policy is not None:
        return because("PolicyResolved", facts.policy)
    if facts.policy_hash is None:
        return open_("PolicyResolved", "Pending", "not judged yet")
    if not facts.policy_names:
        return yes("PolicyResolved", "NoPolicy", "no ToolPolicy selects this run")
    names = ", ".join(facts.policy_names)
    if not facts.policy_acknowledged:
        return open_("PolicyResolved", "AwaitingWorkers", f"no worker has acknowledged {names} yet")
    return yes("PolicyResolved", "Resolved", f"in force: {names}")


def _calls(type_: str, calls: Sequence[CallSeen], what: str) -> Judged:
    if not calls:
        return no(type_, "None")
    named = ", ".join(f"{call.tool} ({call.call_id})" for call in calls[:8])
    more = f" and {len(calls) - 8} more" if len(calls) > 8 else ""
    return yes(type_, "Waiting", f"{named}{more}; {what}")


def _suspended(run: RunSeen, progress: Progress | None) -> Judged:
    wished = run.manifest is not None and run.manifest.spec.desired_state == "Suspended"
    if progress is None:
        return (
            yes("Suspended", "NotBegun", "desiredState is Suspended; the run was not begun")
            if wished
            else no("Suspended", "No")
        )
    if progress.suspended:
        return yes(
            "Suspended", "Suspended", "nothing new is started; desiredState: Running goes on"
        )
    return (
        open_("Suspended", "Suspending") if wished and not progress.ended else no("Suspended", "No")
    )


def _ending(facts: Facts) -> tuple[Judged, Judged]:
    progress = facts.progress
    if facts.never_begun:
        return (
            no("Succeeded", "Cancelled", "cancelled before it began"),
            yes("Finished", "Cancelled"),
        )
    if progress is None or not progress.ended:
        problem = _why_active(facts)
        return open_("Succeeded", problem.reason, problem.message), no("Finished", "Active")
    if progress.status == "completed":
        return yes("Succeeded", "Completed"), yes("Finished", "Completed")
    reason = progress.status.capitalize()
    said = ": ".join(text for text in (progress.error, progress.message) if text)
    return no("Succeeded", reason, said), yes("Finished", reason)


def _why_active(facts: Facts) -> Problem:
    """The one word for an active run; what a person must do comes first."""
    progress = facts.progress
    if facts.accepted is not None and progress is None:
        return Problem("NotAccepted", facts.accepted.message)
    if facts.stalled is not None:
        return Problem("Stalled", facts.stalled.message)
    if progress is None:
        found = facts.policy or facts.workers or facts.waits
        return Problem("Pending", found.message if found else "about to begin")
    if progress.cancelling:
        return Problem("Cancelling", "waits for calls in flight to settle")
    if progress.suspended:
        return Problem("Suspended", "")
    if progress.unknown and not progress.busy:
        return Problem("OutcomeUnknown", "a person has to say what became of a call")
    if progress.waiting and not progress.busy:
        return Problem("AwaitingApproval", "a person has to approve or reject a call")
    return Problem("Running", "")
