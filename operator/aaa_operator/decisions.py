"""ToolDecisions: which one is carried to the store, and why another is not. Pure.

A decision is judged once: what was taken or refused stays as it was judged. It waits while the
admission policy that ties ``decidedBy`` to the user who wrote it is missing or changed, and while
its run cannot be seen.
"""

from __future__ import annotations

from collections.abc import Mapping

from aaa.manifest.tooldecision import ToolDecisionSpec
from aaa_operator import conditions
from aaa_operator.actions import Action, Decide, WriteStatus
from aaa_operator.conditions import Judged, no, open_
from aaa_operator.observe import (
    CallSeen,
    DecisionSeen,
    Problem,
    Progress,
    RunSeen,
    Snapshot,
    condition,
    ms_of,
)

_APPROVALS = ("Approve", "Reject")


def plan_decisions(snapshot: Snapshot) -> list[Action]:
    """What to do about the namespace's decisions."""
    runs = {run.meta.name: run for run in snapshot.runs}
    found: list[Action] = []
    for decision in snapshot.decisions:
        if condition(decision.status, "Accepted") in ("True", "False"):
            continue
        action = _plan(decision, runs, snapshot)
        if action is not None:
            found.append(action)
    return found


def _plan(decision: DecisionSeen, runs: Mapping[str, RunSeen], snapshot: Snapshot) -> Action | None:
    meta, manifest = decision.meta, decision.manifest
    if manifest is None:
        problem = decision.problem or Problem("InvalidSpec", "the spec cannot be read")
        return _say(decision, no("Accepted", problem.reason, problem.message), snapshot)
    if snapshot.decisions_barred is not None:
        barred = snapshot.decisions_barred
        return _say(decision, open_("Accepted", barred.reason, barred.message), snapshot)
    spec = manifest.spec
    run = runs.get(spec.run_ref.name)
    refusal = _refusal(spec, run, now_ms=snapshot.now_ms)
    if refusal is not None:
        return _say(decision, refusal, snapshot)
    assert run is not None  # noqa: S101 - without a run it was refused
    progress = snapshot.store.runs.get(run.run_id or "")
    if progress is None or run.run_id is None:
        waits = snapshot.store.problem or Problem("AwaitingRun", "the run has not begun yet")
        return _say(decision, open_("Accepted", waits.reason, waits.message), snapshot)
    judged = judge_call(spec, progress)
    if judged is not None:
        return _say(decision, judged, snapshot)
    return Decide(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        generation=meta.generation,
        status=decision.status,
        run_id=run.run_id,
        call_id=spec.call_id,
        args_digest=plain_digest(spec.args_digest),
        decision=spec.decision,
        by=spec.decided_by,
        result=spec.result,
        why=spec.reason or "",
        expires_ms=ms_of(spec.expires_at),
        reason=f"{spec.decided_by} decided {spec.decision} on call {spec.call_id}",
    )


def judge_call(spec: ToolDecisionSpec, progress: Progress) -> Judged | None:
    """Why the decision does not fit its call as it stands; ``None`` if it does.

    A call that nobody waits for may have been answered by this very decision before the operator
    died: that is told apart when it is carried out, from the run's log.
    """
    calls = progress.waiting if spec.decision in _APPROVALS else progress.unknown
    call: CallSeen | None = next((one for one in calls if one.call_id == spec.call_id), None)
    if call is not None and call.args_digest != plain_digest(spec.args_digest):
        return no(
            "Accepted",
            "DigestDiffers",
            f"call {spec.call_id} has other arguments now ({call.args_digest}); look at it again "
            "and create another ToolDecision",
        )
    return None


def plain_digest(text: str) -> str:
    """A digest without the name of its algorithm."""
    return text.rpartition(":")[2]


def _refusal(spec: ToolDecisionSpec, run: RunSeen | None, *, now_ms: int) -> Judged | None:
    name = spec.run_ref.name
    if run is None:
        return no("Accepted", "RunMissing", f"there is no AgentRun {name!r} in this namespace")
    if run.meta.uid != spec.run_ref.uid:
        return no(
            "Accepted",
            "RunDiffers",
            f"AgentRun {name!r} is another one now (uid {run.meta.uid}); look at it again",
        )
    expires_ms = ms_of(spec.expires_at)
    if expires_ms is not None and expires_ms <= now_ms:
        return no("Accepted", "Expired", f"it lapsed at {spec.expires_at}, before it was taken")
    return None


def _say(decision: DecisionSeen, judged: Judged, snapshot: Snapshot) -> Action | None:
    meta = decision.meta
    status = status_with(
        decision.status, judged, now_ms=snapshot.now_ms, generation=meta.generation
    )
    if status == decision.status:
        return None
    return WriteStatus(
        kind="ToolDecision",
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        status=status,
        reason=f"Accepted={judged.status}/{judged.reason}",
    )


def status_with(
    old: Mapping[str, object], judged: Judged, *, now_ms: int, generation: int
) -> dict[str, object]:
    """A decision's status with this judgement."""
    before = old.get("conditions")
    kept = before if isinstance(before, list) else []
    return {
        "observedGeneration": generation,
        "conditions": conditions.merged(kept, [judged], now_ms=now_ms, generation=generation),
    }
