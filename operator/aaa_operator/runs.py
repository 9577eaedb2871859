"""One AgentRun: from what is seen of it to its next step, its status and its wish for workers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from aaa.policy import PolicyLayers
from aaa_operator import names, submit
from aaa_operator.actions import Action, Require, SetFinalizers, Submit
from aaa_operator.binding import Binding, Bound, against, bind, judged_before, layers_in
from aaa_operator.ending import RunPlan, calls_of, control, deleting, finished, write
from aaa_operator.hindrances import EVERYBODY, run_key
from aaa_operator.observe import Problem, Progress, RunSeen, Snapshot
from aaa_operator.pools import Demand, pool_state
from aaa_operator.render import PoolPlan, pool_of_revision, render_pool
from aaa_operator.settings import PoolSettings
from aaa_operator.status import COUNTERS_EVERY_MS, Facts, run_status, worth_writing


def plan_run(
    run: RunSeen,
    snapshot: Snapshot,
    settings: PoolSettings,
    *,
    crowded: Mapping[str, Problem] = MappingProxyType({}),
) -> RunPlan:
    """What to do about one AgentRun.

    ``crowded`` names pools whose policies do not fit their ConfigMap.
    """
    if run.finished:
        return finished(run, snapshot)
    if run.meta.deleting:
        return deleting(run, snapshot, settings)
    if snapshot.unread is not None and not run.started:
        return _unplaced(run, snapshot.unread, snapshot)
    pool = _pool_of(run, snapshot, settings)
    if isinstance(pool, Problem):
        return _unplaced(run, pool, snapshot)
    return _Active(run, pool, snapshot, crowded=crowded.get(pool.name)).plan()


class _Active:
    """An AgentRun that has a pool, or could have one, and has not ended."""

    def __init__(
        self, run: RunSeen, pool: PoolPlan, snapshot: Snapshot, *, crowded: Problem | None
    ) -> None:
        self.run, self.pool, self.snapshot = run, pool, snapshot
        self.wished = run.manifest.spec.desired_state if run.manifest else "Running"
        state = pool_state(snapshot.pools.get(pool.name))
        self.binding, self.in_force = _policy(run, pool, snapshot)
        if crowded is not None and self.binding.problem is None:
            self.binding = replace(self.binding, problem=crowded)
        known = snapshot.store.acknowledged.get(pool.name, frozenset())
        self.acknowledged = not self.binding.names or self.binding.hash in known
        self.actions: list[Action] = []
        self.progress: Progress | None = None
        self.facts = Facts(
            policy=self.binding.problem,
            policy_names=self.binding.names,
            policy_hash=self.in_force.hash if self.binding.problem is None or run.started else None,
            policy_acknowledged=self.acknowledged,
            pool=pool.name,
            image_ids=state.image_ids,
            workers=snapshot.hindered.get(pool.name) or state.problem,
            stalled=snapshot.quarantined.get(run.run_id or "")
            or snapshot.hindered.get(run_key(run.meta.name))
            or snapshot.hindered.get(EVERYBODY),
        )
        self.step = submit.next_step(
            run,
            store=snapshot.store,
            config_maps=snapshot.config_maps,
            app=snapshot.store.apps.get(pool.name) or state.app,
            policy_in_force=self.acknowledged,
        )

    def plan(self) -> RunPlan:
        self._judge()
        if self._may_begin():
            self._begin()
        if self._never_begun():
            self.facts = replace(self.facts, never_begun=True)
        self.actions += _write(self.run, self.facts, self.snapshot)
        return RunPlan(
            actions=tuple(self.actions),
            demand=self._demand(),
            bound=Bound(
                policies=self.binding.names,
                pool=self.pool.name,
                acknowledged=self.acknowledged and self.binding.problem is None,
            ),
            again_in_ms=_counters_due(self.run, self.snapshot) if self.progress else None,
        )

    def _judge(self) -> None:
        """What the step means for the status."""
        match self.step:
            case submit.Refuse(problem):
                self.facts = replace(self.facts, accepted=problem)
            case submit.Lost(problem):
                self.facts = replace(self.facts, stalled=problem)
            case submit.Wait(problem) if problem is self.snapshot.store.problem:
                self.facts = replace(self.facts, waits=problem, stalled=problem)
            case submit.Wait(problem):
                self.facts = replace(self.facts, waits=problem)
            case submit.Follow(progress):
                self.progress = progress
                stalled = self.facts.stalled or _parked(progress)
                changed = submit.input_changed(self.run, self.snapshot.config_maps)
                self.facts = replace(
                    self.facts, progress=progress, stalled=stalled, accepted=changed
                )
                if not progress.ended and names.FINALIZER not in self.run.meta.finalizers:
                    # Taken off when the chart was uninstalled, or by hand.
                    self.actions.append(_hold(self.run, "the run goes on"))
                self.actions += _controls(self.run, progress, self.wished)
                self.actions += self._required(progress)

    def _required(self, progress: Progress) -> list[Action]:
        """What is in force now is required at once: until a worker has read it, calls wait."""
        wanted = self.in_force.hash
        if progress.ended or self.binding.problem is not None or progress.policy == wanted:
            return []
        reason = f"the run's policies are now {', '.join(self.binding.names) or 'none'}"
        return [Require(run_id=self.run.run_id or "", policy=wanted, reason=reason)]

    def _begin(self) -> None:
        """The steps that lead to the run."""
        match self.step:
            case submit.Record():
                ids = {
                    "runId": self.step.run_id,
                    "storeId": self.step.store_id,
                    "inputDigest": self.step.input_digest,
                }
                self.facts = replace(self.facts, ids=ids)
            case submit.Hold():
                self.actions.append(_hold(self.run, "about to be submitted"))
            case submit.Create():
                self.actions.append(_submit(self.run, self.step, policy=self.in_force.hash))

    def _may_begin(self) -> bool:
        return self.wished == "Running" and self.binding.problem is None

    def _never_begun(self) -> bool:
        """Cancelled before it was created, which only a store that can be seen can tell."""
        absent = not isinstance(self.step, submit.Follow) and self.snapshot.store.problem is None
        return self.wished == "Cancelled" and absent and not self.run.started

    def _demand(self) -> Demand | None:
        hopeless = isinstance(self.step, submit.Refuse | submit.Lost)
        idle = not self.run.started and self.progress is None
        if idle and (hopeless or not self._may_begin()):
            return None
        layers = [self.in_force]
        if self.binding.problem is None:
            layers.append(self.binding.layers)
        calls = 0 if hopeless else calls_of(self.progress, needs=True)
        return Demand(pool=self.pool, layers=tuple(layers), calls=calls)


def _pool_of(run: RunSeen, snapshot: Snapshot, settings: PoolSettings) -> PoolPlan | Problem:
    """The pool where the run was placed, or the one that it would be placed in now."""
    placed = (run.status.get("pool") or {}).get("name") if run.run_id is not None else None
    standing = snapshot.pools.get(placed or "")
    if standing is not None and standing.revision is not None:
        return pool_of_revision(standing.revision)
    rendered = render_pool(run, snapshot, settings)
    if isinstance(rendered, PoolPlan) and placed not in (None, rendered.name) and run.started:
        return Problem(
            "PoolLost",
            f"pool {placed} was deleted, and its template is not what this AgentRun gives now; the "
            "run waits: create another AgentRun, or put back the ControllerRevision of the pool",
        )
    return rendered


def _policy(run: RunSeen, pool: PoolPlan, snapshot: Snapshot) -> tuple[Binding, PolicyLayers]:
    """What binds the run now, and the layers in force: the former, unless they contradict."""
    seen = snapshot.pools.get(pool.name)
    last = (run.status.get("policy") or {}).get("hash")
    previous = layers_in(seen.config if seen else None, last) if run.started else None
    binding = bind(run, snapshot.policies, previous=previous)
    if binding.problem is None and binding.names:
        code = snapshot.store.code.get(pool.name)
        refused = (
            against(binding.layers, code)
            if code is not None
            else judged_before(run, binding.layers)
        )
        binding = replace(binding, problem=refused)
    if run.started and binding.problem is not None and previous is not None:
        return binding, previous
    return binding, binding.layers


def _controls(run: RunSeen, progress: Progress, wished: str) -> list[Action]:
    if progress.ended or run.run_id is None:
        return []
    if wished == "Cancelled":
        if progress.cancelling:
            return []
        return [control(run, "cancel", "spec.desiredState is Cancelled")]
    if wished == "Suspended" and not progress.suspended:
        return [control(run, "suspend", "spec.desiredState is Suspended")]
    if wished == "Running" and progress.suspended:
        return [control(run, "resume", "spec.desiredState is Running")]
    return []


def _unplaced(run: RunSeen, problem: Problem, snapshot: Snapshot) -> RunPlan:
    """No pool can be rendered: before the run began it is refused, afterwards it stalls."""
    facts = Facts(stalled=problem) if run.started else Facts(accepted=problem)
    progress = snapshot.store.runs.get(run.run_id or "")
    actions: list[Action] = []
    if progress is not None and snapshot.store.problem is None:
        facts = replace(facts, progress=progress)
        wished = run.manifest.spec.desired_state if run.manifest else "Running"
        actions += _controls(run, progress, wished) if run.manifest else []
    return RunPlan(actions=(*actions, *_write(run, facts, snapshot)))


def _write(run: RunSeen, facts: Facts, snapshot: Snapshot) -> list[Action]:
    status = run_status(run, facts, now_ms=snapshot.now_ms)
    last_ms = snapshot.written_ms.get(run.meta.uid)
    if not worth_writing(run.status, status, last_ms=last_ms, now_ms=snapshot.now_ms):
        return []
    succeeded = next(each for each in status["conditions"] if each["type"] == "Succeeded")
    return [write(run, status, f"Succeeded={succeeded['status']}/{succeeded['reason']}")]


def _hold(run: RunSeen, reason: str) -> SetFinalizers:
    return SetFinalizers(
        name=run.meta.name,
        resource_version=run.meta.resource_version,
        finalizers=(*run.meta.finalizers, names.FINALIZER),
        reason=reason,
    )


def _submit(run: RunSeen, step: submit.Create, *, policy: str) -> Submit:
    return Submit(
        name=run.meta.name,
        run_id=step.run_id,
        app=step.app,
        input=step.input,
        deadline_s=step.deadline_s,
        policy=policy,
        reason="the run is accepted, its policy in force and its app known",
    )


def _parked(progress: Progress) -> Problem | None:
    if not progress.parked:
        return None
    return Problem(
        "Parked",
        f"the run is parked: {progress.parked_because or 'its algorithm failed'}; mend the image "
        "and create another AgentRun, or resume it",
    )


def _counters_due(run: RunSeen, snapshot: Snapshot) -> int | None:
    """Counters that were not worth a write by themselves get one later."""
    last_ms = snapshot.written_ms.get(run.meta.uid)
    return (
        None if last_ms is None else max(0, last_ms + COUNTERS_EVERY_MS - snapshot.now_ms) or None
    )
