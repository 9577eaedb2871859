"""The objects of a worker pool, from one AgentRun and the installation's settings. Pure.

A pool is named by the hash of its whole rendered pod template, its source's digest and the
namespace's UID; a dedicated one also by its run's UID. Runs whose templates render alike share it,
and going back to an old image finds the old pool again. What may change while a pool lives (the
number of pods, the policies) is therefore not in the template.

Pods keep Pod Security's restricted profile: nothing that a manifest can say loosens it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aaa.manifest import AgentRun
from aaa.policy import PolicyLayers
from aaa_operator import names
from aaa_operator.binding import config_data
from aaa_operator.observe import Problem, Raw, RunSeen, Snapshot
from aaa_operator.settings import PoolSettings

#: Seconds beyond the drain that the kubelet grants: settling and releasing take a moment.
_GRACE_S: Final = 15
_HEALTH_PORT: Final = 8081
#: Stands in a template for the pool's name, which is the hash of the rest. No manifest can hold it.
_SELF: Final = "\0pool\0"


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
        template=_named(template, name),
        concurrency=_concurrency(manifest, settings),
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


def pod_template(
    manifest: AgentRun, settings: PoolSettings, *, source: str | None
) -> dict[str, Any]:
    """The pod template with a placeholder where the pool's own name will stand."""
    spec, agent = manifest.spec, manifest.spec.agent
    plain = agent.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True)
    drain_s = (
        settings.drain_timeout_s
        if spec.drain_timeout_seconds is None
        else spec.drain_timeout_seconds
    )
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "serviceAccountName": agent.service_account_name or settings.service_account,
        "terminationGracePeriodSeconds": drain_s + _GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.user_id,
            "runAsGroup": settings.user_id,
            "fsGroup": settings.user_id,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {names.POOL: _SELF}},
            }
        ],
        "containers": [_container(manifest, settings, drain_s=drain_s, source=source)],
        "volumes": _volumes(manifest, settings, source=source),
    }
    for key in ("nodeSelector", "tolerations", "affinity"):
        if key in plain:
            pod[key] = plain[key]
    pull = [each["name"] for each in plain.get("imagePullSecrets", [])]
    if agent.image is None:
        pull += [name for name in settings.image_pull_secrets if name not in pull]
    if pull:
        pod["imagePullSecrets"] = [{"name": name} for name in pull]
    labels = {"app.kubernetes.io/name": "aaa-worker", names.POOL: _SELF}
    return {"metadata": {"labels": labels}, "spec": pod}


def deployment(pool: PoolPlan) -> dict[str, Any]:
    """Without ``replicas``: those are scaled by the backlog, under another field manager."""
    labels = _labels(pool.name)
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


def config_name(pool: str) -> str:
    """The name of a pool's ConfigMap of policies."""
    return f"{pool}-policy"


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


# ------------------------------------------------------------------------------------- inside


def _container(
    manifest: AgentRun, settings: PoolSettings, *, drain_s: int, source: str | None
) -> dict[str, Any]:
    agent = manifest.spec.agent
    plain = agent.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True)
    ttl_s = settings.worker_ttl_s
    mounts = [
        {"name": "policy", "mountPath": names.POLICY_FOLDER, "readOnly": True},
        {"name": "store", "mountPath": names.STORE_FOLDER, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own empty volume
    ]
    if source is not None:
        mounts.append({"name": "source", "mountPath": names.SOURCE_FOLDER, "readOnly": True})
    container: dict[str, Any] = {
        "name": names.WORKER_CONTAINER,
        "image": agent.image or settings.image,
        "command": ["aaa", "worker"],
        "args": [
            f"--app={agent.app}",
            f"--scope={_SELF}",
            f"--concurrency={_concurrency(manifest, settings)}",
            f"--drain-timeout-s={drain_s}",
            f"--worker-ttl-s={ttl_s}",
            "--log-format=json",
        ],
        "env": [*_own_env(source=source), *plain.get("env", [])],
        "ports": [{"name": "health", "containerPort": _HEALTH_PORT}],
        "resources": plain.get("resources")
        or {
            "requests": {"cpu": settings.cpu_request, "memory": settings.memory_request},
            "limits": {"memory": settings.memory_limit},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        # Only whether the loop ticks, never the store: a store outage must not restart pods. The
        # threshold is beyond three TTLs: the worker's own watchdog and its lease come first.
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "health"},
            "periodSeconds": 5,
            "timeoutSeconds": 5,
            "failureThreshold": max(3, -(-3 * ttl_s // 5) + 1),
            "terminationGracePeriodSeconds": 10,
        },
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": "health"},
            "periodSeconds": 2,
            "timeoutSeconds": 2,
            "failureThreshold": 2,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    if agent.image_pull_policy is not None:
        container["imagePullPolicy"] = agent.image_pull_policy
    return container


def _own_env(*, source: str | None) -> list[dict[str, Any]]:
    """What the runtime is told. A manifest cannot set any of these names (``AAA_*``, ``PYTHON*``)."""
    env: list[dict[str, Any]] = [
        {"name": "AAA_HEALTH_PORT", "value": str(_HEALTH_PORT)},
        {"name": "AAA_POLICY_FOLDER", "value": names.POLICY_FOLDER},
        {"name": "AAA_STORE_FILE", "value": f"{names.STORE_FOLDER}/url"},
        {
            "name": "AAA_POD_NAME",
            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}},
        },
        {
            "name": "AAA_POD_UID",
            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}},
        },
    ]
    if source is not None:
        env.append({"name": "PYTHONPATH", "value": names.SOURCE_FOLDER})
    return env


def _volumes(
    manifest: AgentRun, settings: PoolSettings, *, source: str | None
) -> list[dict[str, Any]]:
    store = manifest.spec.store
    secret = store.secret_ref.name if store else settings.store_secret
    key = store.secret_ref.key if store else settings.store_key
    # Folders, never subPath: what is mounted by subPath is not refreshed.
    volumes: list[dict[str, Any]] = [
        {"name": "policy", "configMap": {"name": config_name(_SELF)}},
        {
            "name": "store",
            "projected": {
                "sources": [
                    _of_secret(secret, key, "url"),
                    _of_secret(secret, names.CA_KEY, names.CA_KEY, optional=True),
                ]
            },
        },
        {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
    ]
    if source is not None:
        volumes.append({"name": "source", "configMap": {"name": source}})
    return volumes


def _of_secret(secret: str, key: str, path: str, *, optional: bool = False) -> dict[str, Any]:
    source: dict[str, Any] = {"name": secret, "items": [{"key": key, "path": path}]}
    return {"secret": source | {"optional": True} if optional else source}


def _concurrency(manifest: AgentRun, settings: PoolSettings) -> int:
    workers = manifest.spec.workers
    wanted = workers.concurrency if workers is not None else None
    return settings.concurrency if wanted is None else wanted


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


def _named(template: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The template with the pool's name in place of the placeholder."""

    def fill(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(_SELF, name)
        if isinstance(value, dict):
            return {key: fill(each) for key, each in value.items()}
        if isinstance(value, list):
            return [fill(each) for each in value]
        return value

    made: dict[str, Any] = fill(dict(template))
    return made


def _labels(pool: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "aaa-worker",
        names.MANAGED_BY: names.MANAGER,
        names.POOL: pool,
    }


def _metadata(pool: PoolPlan, name: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": pool.namespace,
        "labels": _labels(pool.name),
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
