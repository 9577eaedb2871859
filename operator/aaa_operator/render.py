"""The objects of a worker pool, from one AgentRun and the installation's settings. Pure.

A pool is named by the hash of its whole rendered pod template, its source's digest and the
namespace's UID; a dedicated one also by its run's UID. Runs whose templates render alike share it,
and going back to an old image finds the old pool again. What may change while a pool lives (the
number of pods, the policies) is therefore not in the template.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aaa.manifest import AgentRun
from aaa.policy import PolicyLayers
from aaa_operator import names
from aaa_operator.binding import config_data
from aaa_operator.observe import Problem, Raw, RunSeen, Snapshot
from aaa_operator.pod import concurrency_of, config_name, named, pod_template
from aaa_operator.settings import PoolSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """A pool as rendered: its name, its pod template and what belongs to it."""

    name: str
    namespace: str
    template: Mapping[str, Any]
    concurrency: int
    min_replicas: int
    max_replicas: int
    #: The AgentRun that owns it; ``None`` if it is shared.
    owner: Mapping[str, Any] | None = None
    #: The immutable copy of the run's source, if it has one.
    source: Mapping[str, Any] | None = None

    @property
    def hash(self) -> str:
        return self.name.rpartition("-")[2]


def render_pool(run: RunSeen, snapshot: Snapshot, settings: PoolSettings) -> PoolPlan | Problem:
    """The pool that ``run`` needs, or what is missing for it."""
    manifest = run.manifest
    if manifest is None:
        return run.problem or Problem("InvalidSpec", "the spec cannot be read")
    source = _source(manifest, snapshot)
    if isinstance(source, Problem):
        return source
    refused = _refused(manifest, snapshot)
    if refused is not None:
        return refused
    template = pod_template(manifest, settings, source=None if source is None else _name_of(source))
    dedicated = manifest.spec.isolation == "Dedicated"
    name = pool_name(
        template, namespace_uid=snapshot.namespace_uid, run_uid=run.meta.uid if dedicated else ""
    )
    workers = manifest.spec.workers
    low = settings.min_replicas if workers is None else workers.min_replicas
    high = settings.max_replicas if workers is None else workers.max_replicas
    low = settings.min_replicas if low is None else low
    high = max(low, settings.max_replicas) if high is None else high
    return PoolPlan(
        name=name,
        namespace=snapshot.namespace,
        template=named(template, name),
        concurrency=concurrency_of(manifest, settings),
        min_replicas=min(low, high),
        max_replicas=high,
        owner=_owner(run) if dedicated else None,
        source=source,
    )


def pool_name(template: Mapping[str, Any], *, namespace_uid: str, run_uid: str = "") -> str:
    """``aaa-`` and 16 hex digits; the source's digest is in the template, as its copy's name."""
    return "aaa-" + digest({"template": template, "namespace": namespace_uid, "run": run_uid})[:16]


def digest(value: object) -> str:
    """32 hex digits over plain JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


# ----------------------------------------------------------------------------------- the objects


def labels_of(pool: str) -> dict[str, str]:
    """What every object of a pool carries."""
    return {
        "app.kubernetes.io/name": "aaa-worker",
        names.MANAGED_BY: names.MANAGER,
        names.POOL: pool,
    }


def deployment(pool: PoolPlan) -> dict[str, Any]:
    """Without ``replicas``: those are scaled by the backlog, under another field manager."""
    labels = labels_of(pool.name)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(pool, pool.name),
        "spec": {
            "revisionHistoryLimit": 0,
            "progressDeadlineSeconds": 600,
            "selector": {"matchLabels": {names.POOL: pool.name}},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "template": {
                **pool.template,
                "metadata": {"labels": {**labels, **pool.template["metadata"]["labels"]}},
            },
        },
    }


def config_map(pool: PoolPlan, layers: Iterable[PolicyLayers]) -> dict[str, Any]:
    """The pool's policies, one key a hash. Raises :class:`ConfigError` if they do not fit."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(pool, config_name(pool.name)),
        "data": config_data(layers),
    }


def budget(pool: PoolPlan) -> dict[str, Any]:
    """One pod of the pool may be disrupted at a time; one that is not ready may always go."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(pool, pool.name),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": {names.POOL: pool.name}},
        },
    }


def revision(pool: PoolPlan, live_template: Mapping[str, Any] | None) -> dict[str, Any]:
    """Keeps the template as it was rendered, and the digest of what the API server made of it."""
    made = deployment(pool)
    metadata = _metadata(pool, pool.name)
    if live_template is not None:
        metadata["annotations"] = {names.LIVE_TEMPLATE: digest(live_template)}
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": metadata,
        "revision": 1,
        "data": {
            "template": made["spec"]["template"],
            "concurrency": pool.concurrency,
            "minReplicas": pool.min_replicas,
            "maxReplicas": pool.max_replicas,
        },
    }


def pool_of_revision(raw: Raw) -> PoolPlan:
    """The pool as its revision keeps it: what stands is never rendered again."""
    metadata, data = raw["metadata"], raw["data"]
    owners = metadata.get("ownerReferences") or ()
    return PoolPlan(
        name=metadata["name"],
        namespace=metadata["namespace"],
        template=data["template"],
        concurrency=data["concurrency"],
        min_replicas=data["minReplicas"],
        max_replicas=data["maxReplicas"],
        owner=owners[0] if owners else None,
    )


def source_copy(config: Raw) -> dict[str, Any]:
    """An immutable ConfigMap of a source's content, named by its digest."""
    content = {key: config[key] for key in ("data", "binaryData") if config.get(key)}
    metadata = config.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "immutable": True,
        "metadata": {
            "name": f"aaa-source-{digest(content)[:16]}",
            "namespace": metadata.get("namespace", ""),
            "labels": {names.MANAGED_BY: names.MANAGER},
            "annotations": {names.COPIED_FROM: metadata.get("name", "")},
        },
        **content,
    }


def is_source_copy(raw: Raw) -> bool:
    """Whether it is such a copy, and not somebody's ConfigMap made from one."""
    metadata = raw["metadata"]
    ours = (metadata.get("labels") or {}).get(names.MANAGED_BY) == names.MANAGER
    return ours and bool(metadata["name"] == source_copy(raw)["metadata"]["name"])


# ------------------------------------------------------------------------------------- inside


def _source(manifest: AgentRun, snapshot: Snapshot) -> dict[str, Any] | Problem | None:
    source = manifest.spec.agent.source
    if source is None:
        return None
    found = snapshot.config_maps.get(source.config_map_ref.name)
    if found is None:
        return Problem(
            "SourceMissing",
            f"spec.agent.source: ConfigMap {source.config_map_ref.name!r} does not exist",
        )
    return source_copy(found)


def _refused(manifest: AgentRun, snapshot: Snapshot) -> Problem | None:
    account = manifest.spec.agent.service_account_name
    if account is not None and account not in snapshot.worker_accounts:
        return Problem(
            "ServiceAccountNotAllowed",
            f"spec.agent.serviceAccountName: {account!r} does not exist or lacks the label "
            f'{names.WORKER_ACCOUNT}: "true"',
        )
    store = manifest.spec.store
    if store is not None and store.secret_ref.name not in snapshot.store_secrets:
        return Problem(
            "StoreSecretMissing",
            f"spec.store.secretRef: Secret {store.secret_ref.name!r} does not exist or lacks the "
            f"label {names.STORE}",
        )
    return None


def _metadata(pool: PoolPlan, name: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": pool.namespace,
        "labels": labels_of(pool.name),
    }
    if pool.owner is not None:
        metadata["ownerReferences"] = [dict(pool.owner)]
    return metadata


def _owner(run: RunSeen) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": "AgentRun",
        "name": run.meta.name,
        "uid": run.meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _name_of(source: Mapping[str, Any]) -> str:
    return str(source["metadata"]["name"])
