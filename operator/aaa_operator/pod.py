"""The pod template of a pool's workers, from one AgentRun and the installation's settings. Pure.

Pods keep Pod Security's restricted profile: nothing that a manifest can say loosens it. The pool's
name is the hash of the rest of its template, so that a placeholder stands for it until then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aaa.manifest import AgentRun
from aaa_operator import names
from aaa_operator.settings import PoolSettings

#: Seconds beyond the drain that the kubelet grants: settling and releasing take a moment.
_GRACE_S: Final = 15
_HEALTH_PORT: Final = 8081
#: Stands in a template for the pool's name, which is the hash of the rest. No manifest can hold it.
SELF: Final = "\0pool\0"


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
                "labelSelector": {"matchLabels": {names.POOL: SELF}},
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
    labels = {"app.kubernetes.io/name": "aaa-worker", names.POOL: SELF}
    return {"metadata": {"labels": labels}, "spec": pod}


def named(template: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The template with the pool's name in place of the placeholder."""

    def fill(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(SELF, name)
        if isinstance(value, dict):
            return {key: fill(each) for key, each in value.items()}
        if isinstance(value, list):
            return [fill(each) for each in value]
        return value

    made: dict[str, Any] = fill(dict(template))
    return made


def concurrency_of(manifest: AgentRun, settings: PoolSettings) -> int:
    """Calls that one worker runs at a time."""
    workers = manifest.spec.workers
    wanted = workers.concurrency if workers is not None else None
    return settings.concurrency if wanted is None else wanted


def config_name(pool: str) -> str:
    """The name of a pool's ConfigMap of policies."""
    return f"{pool}-policy"


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
            f"--scope={SELF}",
            f"--concurrency={concurrency_of(manifest, settings)}",
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
        {"name": "policy", "configMap": {"name": config_name(SELF)}},
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
