"""AgentRuns that have ended or are being deleted: what is still to be done, until nothing is. Pure.

A deletion always ends: when the run has ended, when the store does not hold it, when its policy
no longer waits, or five minutes after the drain's deadline, whatever the store says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from aaa_operator import names
from aaa_operator.actions import Action, Control, Delete, SetFinalizers, WriteStatus
from aaa_operator.binding import Bound, layers_in
from aaa_operator.observe import Progress, RunSeen, Snapshot, ms_of
from aaa_operator.pools import Demand
from aaa_operator.render import pool_of_revision
from aaa_operator.settings import PoolSettings
from aaa_operator.status import late_status

#: Milliseconds after a drain's deadline at which a deletion ends whatever the store says.
RELEASE_AFTER_MS: Final = 300_000
BY: Final = "aaa-operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One AgentRun: what to do, and what it asks of a pool."""

    actions: tuple[Action, ...] = ()
    demand: Demand | None = None
    bound: Bound | None = None
    again_in_ms: int | None = None


def finished(run: RunSeen, snapshot: Snapshot) -> RunPlan:
    """Release it; and delete it when its time has come."""
    if names.FINALIZER in run.meta.finalizers:
        return RunPlan(actions=(release(run, "the run has ended"),))
    progress = snapshot.store.runs.get(run.run_id or "")
    if progress is not None and snapshot.store.problem is None:
        status = late_status(run, progress, now_ms=snapshot.now_ms)
        if status != run.status:
            return RunPlan(actions=(write(run, status, "what people have found out"),))
    spec = run.manifest.spec if run.manifest else None
    ended_ms = ms_of(run.status.get("completionTime"))
    if spec is None or spec.ttl_seconds_after_finished is None or ended_ms is None:
        return RunPlan()
    if run.meta.deleting:
        return RunPlan()
    left_ms = ended_ms + spec.ttl_seconds_after_finished * 1000 - snapshot.now_ms
    if left_ms > 0:
        return RunPlan(again_in_ms=left_ms)
    delete = Delete(
        kind="AgentRun",
        name=run.meta.name,
        uid=run.meta.uid,
        reason=f"{spec.ttl_seconds_after_finished} s after its end (ttlSecondsAfterFinished)",
    )
    return RunPlan(actions=(delete,))


def deleting(run: RunSeen, snapshot: Snapshot, settings: PoolSettings) -> RunPlan:
    """Cancel, let calls settle as the policy says, release; a deletion always ends."""
    if names.FINALIZER not in run.meta.finalizers:
        return RunPlan()
    progress = snapshot.store.runs.get(run.run_id or "")
    known = snapshot.store.problem is None
    if progress is not None and known and progress.ended:
        return RunPlan(actions=(release(run, "the run has ended"),))
    if known and progress is None:
        return RunPlan(actions=(release(run, "the store does not hold the run"),))
    actions: list[Action] = []
    if known and progress is not None and not progress.cancelling:
        actions.append(control(run, "cancel", "the AgentRun is being deleted"))
    left_ms = _patience_ms(run, snapshot, settings, known=known)
    if left_ms <= 0:
        return RunPlan(actions=(*actions, release(run, "its deletionPolicy waits no longer")))
    return RunPlan(
        actions=tuple(actions), demand=_draining(run, progress, snapshot), again_in_ms=left_ms
    )


def _patience_ms(run: RunSeen, snapshot: Snapshot, settings: PoolSettings, *, known: bool) -> int:
    """Milliseconds that the deletion still waits for calls in flight."""
    spec = run.manifest.spec if run.manifest else None
    policy = "Force" if snapshot.terminating else spec.deletion_policy if spec else "Drain"
    drain_s = spec.drain_timeout_seconds if spec else None
    drain_ms = 1000 * (settings.drain_timeout_s if drain_s is None else drain_s)
    # Without the store not even a cancellation can be asked for: then Force waits for the drain,
    # unless the namespace itself is going.
    if policy == "Force":
        patience_ms = 0 if known or snapshot.terminating else drain_ms
    elif policy == "DrainThenForce":
        patience_ms = drain_ms
    else:
        patience_ms = drain_ms + RELEASE_AFTER_MS
    return patience_ms - (snapshot.now_ms - (run.meta.deleted_ms or snapshot.now_ms))


def _draining(run: RunSeen, progress: Progress | None, snapshot: Snapshot) -> Demand | None:
    """The workers are still needed: a call in flight can only settle where it runs."""
    pool = (run.status.get("pool") or {}).get("name", "")
    standing = snapshot.pools.get(pool)
    if standing is None or standing.revision is None:
        return None
    layers = layers_in(standing.config, (run.status.get("policy") or {}).get("hash"))
    return Demand(
        pool=pool_of_revision(standing.revision),
        layers=() if layers is None else (layers,),
        calls=calls_of(progress, needs=True),
    )


def control(run: RunSeen, verb: Literal["cancel", "suspend", "resume"], reason: str) -> Control:
    """An order to the store about a run that has an id."""
    if run.run_id is None:
        raise AssertionError(f"{verb} of a run without an id")
    return Control(run_id=run.run_id, verb=verb, by=BY, reason=reason)


def write(run: RunSeen, status: Mapping[str, Any], reason: str) -> WriteStatus:
    """The run's whole status, if it is still what was looked at."""
    return WriteStatus(
        kind="AgentRun",
        name=run.meta.name,
        uid=run.meta.uid,
        resource_version=run.meta.resource_version,
        status=status,
        reason=reason,
    )


def release(run: RunSeen, reason: str) -> SetFinalizers:
    left = tuple(each for each in run.meta.finalizers if each != names.FINALIZER)
    return SetFinalizers(
        name=run.meta.name,
        resource_version=run.meta.resource_version,
        finalizers=left,
        reason=reason,
    )


def calls_of(progress: Progress | None, *, needs: bool) -> int:
    """Calls, or turns, that want a worker now."""
    if progress is None:
        return 1 if needs else 0
    if progress.ended or progress.suspended or progress.parked:
        return progress.running
    people = len(progress.waiting) + len(progress.unknown)
    return progress.busy or (0 if people else 1)
