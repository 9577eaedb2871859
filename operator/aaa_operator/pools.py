"""Pools: what their objects should be, how many pods they need, and when they go. Pure.

A pool's template never changes. What the API server made of it is remembered by digest at its
revision; anything else found there is put back from the revision, never rendered again. An empty
pool goes to zero after its delay, and then goes; the next run with that template makes it anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aaa.errors import ConfigError
from aaa.policy import PolicyLayers
from aaa_operator import names
from aaa_operator.actions import Action, Annotate, Apply, Delete, PutBack, Scale
from aaa_operator.leaving import choose
from aaa_operator.observe import PodSeen, Pool, Problem, Snapshot, meta_of
from aaa_operator.render import (
    PoolPlan,
    budget,
    config_map,
    deployment,
    digest,
    is_source_copy,
    revision,
)
from aaa_operator.settings import PoolSettings

#: In the order in which a pool goes: pods first, what they need last.
_PARTS: Final = (
    ("Deployment", "deployment"),
    ("PodDisruptionBudget", "budget"),
    ("ConfigMap", "config"),
    ("ControllerRevision", "revision"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one run asks of its pool."""

    pool: PoolPlan
    layers: tuple[PolicyLayers, ...] = ()
    #: Calls, or turns, that want a worker now; 0 keeps the pool without asking for pods.
    calls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """What a pool's objects say about its workers."""

    app: str | None = None
    image_ids: tuple[str, ...] = ()
    #: ``None`` while a worker is ready and none is suspicious.
    problem: Problem | None = None


@dataclass(slots=True)
class PoolsPlan:
    """What to do about the pools, and when to look again."""

    actions: list[Action] = field(default_factory=list)
    again_in_ms: int | None = None

    def again(self, in_ms: int) -> None:
        self.again_in_ms = in_ms if self.again_in_ms is None else min(self.again_in_ms, in_ms)


def pool_state(pool: Pool | None) -> PoolState:
    """Why no worker of the pool is ready, in the kubelet's or the Deployment's own words."""
    if pool is None or pool.deployment is None:
        return PoolState(problem=Problem("Starting", "the pool is being made"))
    annotations = meta_of(pool.deployment).annotations
    recorded = tuple(each for each in annotations.get(names.IMAGE_IDS, "").split(",") if each)
    return PoolState(
        app=annotations.get(names.APP),
        image_ids=recorded,
        problem=_drift(pool, recorded) or _not_ready(pool),
    )


def plan_pools(snapshot: Snapshot, demands: Sequence[Demand], settings: PoolSettings) -> PoolsPlan:
    """Every pool that is needed, and every one that stands without need."""
    plan = PoolsPlan()
    by_pool: dict[str, list[Demand]] = {}
    for demand in demands:
        by_pool.setdefault(demand.pool.name, []).append(demand)
    for name in sorted(by_pool):
        standing = snapshot.pools.get(name, Pool(name=name))
        _needed(plan, standing, by_pool[name], snapshot, settings)
    for name in sorted(set(snapshot.pools) - set(by_pool)):
        _idle(plan, snapshot.pools[name], snapshot, settings)
    if not snapshot.nothing_goes:
        plan.actions += _unused_sources(snapshot, [demand.pool for demand in demands])
    return plan


def crowded_pools(demands: Iterable[Demand]) -> dict[str, Problem]:
    """The pools whose policies do not fit one ConfigMap, with what to do about it."""
    by_pool: dict[str, list[Demand]] = {}
    for demand in demands:
        by_pool.setdefault(demand.pool.name, []).append(demand)
    found = {}
    for name, asked in by_pool.items():
        try:
            config_map(asked[0].pool, _layers(asked))
        except ConfigError as error:
            found[name] = Problem("PolicyTooLarge", str(error))
    return found


def replicas_for(calls: int, pool: PoolPlan) -> int:
    """Pods for so many calls: none without work, else between the pool's bounds."""
    if calls <= 0:
        return 0
    wanted = -(-calls // pool.concurrency)
    return max(1, min(pool.max_replicas, max(pool.min_replicas, wanted)))


def contains(live: Any, wanted: Any) -> bool:
    """Whether everything in ``wanted`` stands in ``live``; the API server's additions are fine."""
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(
            key in live and contains(live[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(live, list)
            and len(live) == len(wanted)
            and all(contains(a, b) for a, b in zip(live, wanted, strict=True))
        )
    return bool(live == wanted)


# ----------------------------------------------------------------------------------- its parts


def _needed(
    plan: PoolsPlan,
    standing: Pool,
    demands: Sequence[Demand],
    snapshot: Snapshot,
    settings: PoolSettings,
) -> None:
    pool = demands[0].pool
    if pool.source is not None and pool.source["metadata"]["name"] not in snapshot.config_maps:
        plan.actions.append(Apply(object=pool.source, reason="a run was accepted with this source"))
    _config(plan, standing, pool, _layers(demands))
    if standing.revision is None:
        plan.actions.append(Apply(object=revision(pool, None), reason="keeps the pool's template"))
    wanted = budget(pool)
    if standing.budget is None or not contains(standing.budget, wanted):
        plan.actions.append(Apply(object=wanted, reason="the pool's disruption budget"))
    made = deployment(pool)
    if standing.deployment is None:
        plan.actions.append(Apply(object=made, reason="a run needs this pool"))
        return
    _template(plan, standing, made)
    _notes(plan, standing, snapshot)
    calls = sum(demand.calls for demand in demands)
    _scale(plan, standing, pool, calls=calls, snapshot=snapshot, settings=settings)


def _config(
    plan: PoolsPlan, standing: Pool, pool: PoolPlan, layers: Sequence[PolicyLayers]
) -> None:
    try:
        wanted = config_map(pool, layers)
    except ConfigError:
        return  # said in the runs' status (:func:`crowded_pools`); what stands stays in force
    if standing.config is None or standing.config.get("data") != wanted["data"]:
        plan.actions.append(Apply(object=wanted, reason="the policies in use have changed"))
    mark = digest(sorted(wanted["data"]))[:16]
    for pod in standing.pods:
        # The kubelet alone takes a minute; a changed annotation makes it look at once.
        if not pod.meta.deleting and pod.meta.annotations.get(names.POLICY_HASHES) != mark:
            plan.actions.append(
                Annotate(
                    kind="Pod",
                    name=pod.meta.name,
                    annotations={names.POLICY_HASHES: mark},
                    reason="so that the kubelet refreshes the mounted policies now",
                )
            )


def _template(plan: PoolsPlan, standing: Pool, made: Mapping[str, Any]) -> None:
    live_deployment = standing.deployment or {}
    live = live_deployment["spec"]["template"]
    kept = meta_of(standing.revision).annotations if standing.revision is not None else {}
    recorded = kept.get(names.LIVE_TEMPLATE)
    rendered = (standing.revision or {}).get("data", {}).get("template") or made["spec"]["template"]
    if recorded is None and contains(live, rendered):
        plan.actions.append(
            Annotate(
                kind="ControllerRevision",
                name=standing.name,
                annotations={names.LIVE_TEMPLATE: digest(live)},
                reason="what the API server made of the template",
            )
        )
    elif recorded != digest(live):
        plan.actions.append(_put_back(standing, rendered))
    rest = {key: value for key, value in made["spec"].items() if key != "template"}
    if not contains(live_deployment["spec"], rest) or not contains(
        live_deployment.get("metadata"), made["metadata"]
    ):
        # With the live template, so that only the rest is put back here.
        whole = {**made, "spec": {**rest, "template": rendered}}
        plan.actions.append(
            Apply(object=whole, reason="the Deployment was changed by somebody else")
        )


def _put_back(standing: Pool, rendered: Mapping[str, Any]) -> PutBack:
    return PutBack(
        name=standing.name,
        resource_version=meta_of(standing.deployment or {}).resource_version,
        template=rendered,
        reason="the Deployment's template was changed by somebody else",
    )


def _edited(standing: Pool) -> Mapping[str, Any] | None:
    """The template as the revision keeps it, where another one stands in the Deployment."""
    kept = standing.revision or {}
    recorded = meta_of(kept).annotations.get(names.LIVE_TEMPLATE) if kept else None
    template: Mapping[str, Any] | None = kept.get("data", {}).get("template")
    live = (standing.deployment or {}).get("spec", {}).get("template")
    return template if recorded is not None and recorded != digest(live) else None


def _notes(plan: PoolsPlan, standing: Pool, snapshot: Snapshot) -> None:
    annotations = meta_of(standing.deployment or {}).annotations
    notes: dict[str, str | None] = {}
    app = snapshot.store.apps.get(standing.name)
    if app is not None and annotations.get(names.APP) != app:
        notes[names.APP] = app
    if names.IMAGE_IDS not in annotations:
        seen = sorted({pod.image_id for pod in standing.pods if pod.ready and pod.image_id})
        if seen:
            notes[names.IMAGE_IDS] = seen[0]
    if notes:
        plan.actions.append(
            Annotate(
                kind="Deployment",
                name=standing.name,
                annotations=notes,
                reason="what the pool's first worker runs and serves",
            )
        )


def _scale(
    plan: PoolsPlan,
    standing: Pool,
    pool: PoolPlan,
    *,
    calls: int,
    snapshot: Snapshot,
    settings: PoolSettings,
) -> None:
    live = standing.deployment or {}
    wanted, now = replicas_for(calls, pool), live["spec"].get("replicas", 1)
    idle = meta_of(live).annotations.get(names.IDLE_SINCE)
    if wanted < now:
        _shrink(plan, standing, wanted, idle=idle, snapshot=snapshot, settings=settings)
        return
    if idle is not None:
        plan.actions.append(_idle_mark(pool.name, None))
    if wanted > now:
        reason = f"{calls} calls want workers of {pool.concurrency} each"
        plan.actions.append(Scale(pool=pool.name, replicas=wanted, reason=reason))


def _shrink(
    plan: PoolsPlan,
    standing: Pool,
    wanted: int,
    *,
    idle: str | None,
    snapshot: Snapshot,
    settings: PoolSettings,
) -> bool:
    """Scale down once the need has been smaller for the delay; whether that is now."""
    delay_ms = settings.idle_delay_s * 1000
    if idle is None or not idle.isdigit():
        plan.actions.append(_idle_mark(standing.name, str(snapshot.now_ms)))
        plan.again(delay_ms)
        return False
    left_ms = int(idle) + delay_ms - snapshot.now_ms
    if left_ms > 0:
        plan.again(left_ms)
        return False
    reason = f"less work for {settings.idle_delay_s} s"
    if wanted > 0:
        plan.actions += choose(standing, snapshot, left=wanted)
    plan.actions.append(Scale(pool=standing.name, replicas=wanted, reason=reason))
    return True


def _idle_mark(pool: str, value: str | None) -> Annotate:
    return Annotate(
        kind="Deployment",
        name=pool,
        annotations={names.IDLE_SINCE: value},
        reason="the pool is busy again" if value is None else "the pool needs fewer pods",
    )


def _idle(plan: PoolsPlan, standing: Pool, snapshot: Snapshot, settings: PoolSettings) -> None:
    """A pool that no run needs: to zero after the delay, and away when its last pod has gone."""
    if standing.deployment is not None:
        meta = meta_of(standing.deployment)
        if meta.deleting:
            return
        if standing.deployment["spec"].get("replicas", 1) > 0:
            if (template := _edited(standing)) is not None:
                plan.actions.append(_put_back(standing, template))
            idle = meta.annotations.get(names.IDLE_SINCE)
            _shrink(plan, standing, 0, idle=idle, snapshot=snapshot, settings=settings)
            return
    if standing.pods or snapshot.nothing_goes:
        return
    for kind, part in _PARTS:
        raw = getattr(standing, part)
        if raw is not None and not meta_of(raw).deleting:
            found = meta_of(raw)
            reason = "no run needs the pool any more"
            plan.actions.append(Delete(kind=kind, name=found.name, uid=found.uid, reason=reason))


def _unused_sources(snapshot: Snapshot, wanted: Sequence[PoolPlan]) -> list[Action]:
    """Copies of sources that neither a standing nor a wanted pool mounts."""
    standing = snapshot.pools.values()
    texts = [json.dumps(pool.revision) for pool in standing if pool.revision]
    texts += [json.dumps(pool.deployment) for pool in standing if pool.deployment]
    texts += [json.dumps(pool.template) for pool in wanted]
    found: list[Action] = []
    for raw in snapshot.config_maps.values():
        meta = meta_of(raw)
        if meta.deleting or not is_source_copy(raw):
            continue
        if not any(json.dumps(meta.name) in text for text in texts):
            reason = "no pool mounts this copy of a source any more"
            found.append(Delete(kind="ConfigMap", name=meta.name, uid=meta.uid, reason=reason))
    return found


def _layers(demands: Sequence[Demand]) -> list[PolicyLayers]:
    by_hash = {layers.hash: layers for demand in demands for layers in demand.layers}
    return [by_hash[hash_] for hash_ in sorted(by_hash)]


def _drift(pool: Pool, recorded: Sequence[str]) -> Problem | None:
    if not recorded:
        return None
    for pod in pool.pods:
        if pod.image_id and pod.image_id not in recorded and not pod.meta.deleting:
            return Problem(
                "ImageDrift",
                f"pod {pod.meta.name} runs {pod.image_id} and the pool began with {recorded[0]}: "
                "the image's tag has moved; pin a digest and create another AgentRun",
            )
    return None


def _not_ready(pool: Pool) -> Problem | None:
    live: list[PodSeen] = [pod for pod in pool.pods if not pod.meta.deleting]
    if any(pod.ready for pod in live):
        return None
    for pod in live:
        if pod.trouble is not None:
            said = pod.trouble.message.replace("{pod}", pod.meta.name)
            return Problem(pod.trouble.reason, f"pod {pod.meta.name}: {said}")
    deployed = pool.deployment or {}
    for found in (deployed.get("status") or {}).get("conditions") or ():
        if found.get("type") == "ReplicaFailure" and found.get("status") == "True":
            return Problem(
                str(found.get("reason") or "FailedCreate"),
                f"no pod can be made: {found.get('message', '')}",
            )
    if (deployed.get("spec") or {}).get("replicas", 1) == 0:
        return Problem("ScaledToZero", "no pod; one is started when there is work")
    return Problem("Starting", "no worker is ready yet")
