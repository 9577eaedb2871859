"""A pool's template keeps the restricted profile, whatever a manifest says, and names its pool."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from aaa.errors import ConfigError
from aaa_operator import names
from aaa_operator.observe import Snapshot, run_of
from aaa_operator.render import PoolPlan, deployment, pool_of_revision, render_pool, revision
from aaa_operator.settings import PoolSettings, Settings
from k8s.scene import NOW_MS, SETTINGS, raw_run

EVERYTHING = {
    "app": "shop.agent:app",
    "image": "shop@sha256:1",
    "env": [{"name": "SHOP_URL", "value": "https://shop.example"}],
    "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}},
    "imagePullPolicy": "Always",
    "imagePullSecrets": [{"name": "pull"}],
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"x": 1}},
}


def _plan(
    settings: PoolSettings = SETTINGS, *, namespace_uid: str = "ns", **changes: Any
) -> PoolPlan:
    snapshot = Snapshot(namespace="shop", namespace_uid=namespace_uid, now_ms=NOW_MS)
    found = render_pool(run_of(raw_run(**changes)), snapshot, settings)
    assert isinstance(found, PoolPlan), found
    return found


def _pod(plan: PoolPlan) -> dict[str, Any]:
    pod: dict[str, Any] = plan.template["spec"]
    return pod


@pytest.mark.parametrize("agent", [{"app": "shop.agent:app"}, EVERYTHING])
def test_every_pod_keeps_the_restricted_profile(agent: dict[str, Any]) -> None:
    pod = _pod(_plan(spec={"agent": agent}))
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert all(set(v) & {"configMap", "projected", "emptyDir"} for v in pod["volumes"])
    assert not any("subPath" in mount for mount in container["volumeMounts"])
    assert container["command"] == ["aaa", "worker"]  # no shell between the kubelet and us


def test_what_an_agent_may_choose_reaches_its_pod() -> None:
    pod = _pod(_plan(spec={"agent": EVERYTHING}))
    (container,) = pod["containers"]
    for key in ("nodeSelector", "tolerations", "affinity", "imagePullSecrets"):
        assert pod[key] == EVERYTHING[key]
    assert container["image"] == EVERYTHING["image"]
    assert container["resources"] == EVERYTHING["resources"]
    assert container["env"][-1] == {"name": "SHOP_URL", "value": "https://shop.example"}


def test_a_pod_mounts_the_stores_address_and_its_certificates_and_nothing_else_of_a_secret() -> (
    None
):
    ref = {"name": "ours", "key": "address"}
    snapshot = Snapshot(
        namespace="shop", namespace_uid="ns", now_ms=NOW_MS, store_secrets=frozenset({"ours"})
    )
    run = run_of(raw_run(spec={"store": {"secretRef": ref}}))
    for plan, name, key in (
        (_plan(), SETTINGS.store_secret, SETTINGS.store_key),
        (render_pool(run, snapshot, SETTINGS), "ours", "address"),
    ):
        assert isinstance(plan, PoolPlan)
        volumes = {each["name"]: each for each in _pod(plan)["volumes"]}
        assert volumes["store"]["projected"]["sources"] == [
            {"secret": {"name": name, "items": [{"key": key, "path": "url"}]}},
            {
                "secret": {
                    "name": name,
                    "items": [{"key": "ca.crt", "path": "ca.crt"}],
                    "optional": True,
                }
            },
        ]
        mounts = {each["name"]: each for each in _pod(plan)["containers"][0]["volumeMounts"]}
        assert f"{mounts['store']['mountPath']}/ca.crt" == names.CA_FILE


@pytest.mark.parametrize(
    ("agent", "wanted"),
    [
        ({}, ["one", "pull"]),
        ({"imagePullSecrets": [{"name": "pull"}, {"name": "own"}]}, ["pull", "own", "one"]),
        ({"image": "shop@sha256:1"}, None),
        ({"image": "shop@sha256:1", "imagePullSecrets": [{"name": "own"}]}, ["own"]),
    ],
)
def test_the_stock_image_is_pulled_with_the_installations_secrets(
    agent: dict[str, Any], wanted: list[str] | None
) -> None:
    settings = replace(SETTINGS, image_pull_secrets=("one", "pull"))
    pod = _pod(_plan(settings, spec={"agent": {"app": "shop.agent:app", **agent}}))
    found = pod.get("imagePullSecrets")
    assert found == (None if wanted is None else [{"name": name} for name in wanted])
    assert "imagePullSecrets" not in _pod(_plan(spec={"agent": {"app": "a:b", "image": "i"}}))


@pytest.mark.parametrize(("drain_s", "grace_s"), [(None, 75), (0, 15), (600, 615)])
def test_the_grace_period_follows_the_drain(drain_s: int | None, grace_s: int) -> None:
    spec = {} if drain_s is None else {"drainTimeoutSeconds": drain_s}
    assert _pod(_plan(spec=spec))["terminationGracePeriodSeconds"] == grace_s


@pytest.mark.parametrize("ttl_s", [1, 15, 60])
def test_liveness_waits_longer_than_three_ttls_and_kills_quickly(ttl_s: int) -> None:
    (container,) = _pod(_plan(replace(SETTINGS, worker_ttl_s=ttl_s)))["containers"]
    probe = container["livenessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > 3 * ttl_s
    assert probe["terminationGracePeriodSeconds"] <= 10
    assert probe["httpGet"]["path"] != container["readinessProbe"]["httpGet"]["path"]


def test_the_name_is_the_hash_of_all_that_matters_and_of_nothing_else() -> None:
    plain = _plan()
    assert plain.name == _plan(metadata={"name": "another", "uid": "x"}).name
    assert plain.name == _plan(spec={"input": {"task": "else"}}).name
    different = {
        plain.name,
        _plan(spec={"agent": EVERYTHING}).name,
        _plan(namespace_uid="other").name,
        _plan(replace(SETTINGS, image="other:1")).name,
        _plan(spec={"drainTimeoutSeconds": 1}).name,
        _plan(spec={"isolation": "Dedicated"}).name,
        _plan(spec={"isolation": "Dedicated"}, metadata={"uid": "x"}).name,
    }
    assert len(different) == 7


def test_the_pools_name_stands_wherever_it_must_and_its_placeholder_nowhere() -> None:
    plan = _plan()
    text = json.dumps(deployment(plan))
    assert "\\u0000" not in text
    assert f"--scope={plan.name}" in _pod(plan)["containers"][0]["args"]
    labels = deployment(plan)["spec"]["template"]["metadata"]["labels"]
    assert labels[names.POOL] == plan.name
    assert deployment(plan)["spec"]["selector"]["matchLabels"] == {names.POOL: plan.name}
    assert "replicas" not in deployment(plan)["spec"]


def test_a_pool_is_read_back_from_its_revision_as_it_was() -> None:
    plan = _plan(spec={"isolation": "Dedicated", "workers": {"maxReplicas": 3}})
    raw = revision(plan, None)
    again = pool_of_revision(raw)
    assert deployment(again) == deployment(plan)
    assert (again.max_replicas, again.owner) == (3, plan.owner)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "AAA_OPERATOR_IMAGE is missing"),
        ({"AAA_OPERATOR_IMAGE": "a", "AAA_OPERATOR_CONCURENCY": "1"}, "not a setting"),
        ({"AAA_OPERATOR_IMAGE": "a", "AAA_OPERATOR_CONCURRENCY": "0"}, "between 1 and 1024"),
        ({"AAA_OPERATOR_IMAGE": "a", "AAA_OPERATOR_RETRY_S": "soon"}, "must be a number"),
        ({"AAA_OPERATOR_IMAGE": "a", "AAA_OPERATOR_MIN_REPLICAS": "20"}, "is above"),
    ],
)
def test_a_setting_that_cannot_be_is_named(environment: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Settings.from_environment(environment)


def test_settings_come_from_the_environment() -> None:
    found = Settings.from_environment(
        {
            "AAA_OPERATOR_IMAGE": "worker:1",
            "AAA_OPERATOR_NAMESPACES": "a, b",
            "AAA_OPERATOR_STORE_LOOK_S": "0.5",
            "AAA_OPERATOR_MAX_REPLICAS": "3",
        }
    )
    assert (found.namespaces, found.store_look_s, found.pools.max_replicas) == (("a", "b"), 0.5, 3)
