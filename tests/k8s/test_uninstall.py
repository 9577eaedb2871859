"""What the chart's hooks do: uninstalling leaves nothing running and nothing stuck; waiting for a run."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.responses import JSONResponse

from aaa.testing.clock import ManualClock
from aaa_operator import names
from aaa_operator.api import ApiFailure
from aaa_operator.awaited import awaited
from aaa_operator.settings import Settings
from aaa_operator.uninstall import Uninstall
from k8s.fake_api import FakeApi
from k8s.scene import SETTINGS

OPERATOR = {"app.kubernetes.io/name": "aaa-operator", "app.kubernetes.io/instance": "aaa"}
SELECTOR = ",".join(f"{key}={value}" for key, value in OPERATOR.items())
POOL = {names.POOL: "aaa-1", names.MANAGED_BY: names.MANAGER}


class Kubelet(ManualClock):
    """A clock by which pods of Deployments without replicas go, a second after each look."""

    def __init__(self, api: FakeApi, *, stuck: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.api, self.stuck = api, stuck

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        scaled = {
            (key[1], raw["metadata"]["name"])
            for key, raw in self.api.objects.items()
            if key[0] == "Deployment" and raw["spec"]["replicas"] == 0
        }
        for key, raw in list(self.api.objects.items()):
            owner = (key[1], raw["metadata"].get("annotations", {}).get("of"))
            if key[0] == "Pod" and owner in scaled and key[2] not in self.stuck:
                del self.api.objects[key]


def _deployment(api: FakeApi, name: str, labels: dict[str, str], *, namespace: str) -> None:
    api.put(
        {
            "kind": "Deployment",
            "metadata": {"name": name, "labels": labels},
            "spec": {"replicas": 2},
        },
        namespace=namespace,
    )
    for number in (1, 2):
        metadata = {"name": f"{name}-{number}", "labels": labels, "annotations": {"of": name}}
        api.put({"kind": "Pod", "metadata": metadata}, namespace=namespace)


def _run(api: FakeApi, name: str, *, namespace: str = "shop", **metadata: Any) -> None:
    finalizers = ["example.org/other", names.FINALIZER]
    raw = {"name": name, "finalizers": finalizers, **metadata}
    api.put({"kind": "AgentRun", "metadata": raw}, namespace=namespace)


def _installed() -> FakeApi:
    api = FakeApi()
    api.page = 2  # so that whoever lists must ask on
    _deployment(api, "aaa-operator", OPERATOR, namespace="shop")
    _deployment(api, "aaa-1", POOL, namespace="shop")
    _deployment(api, "aaa-1", POOL, namespace="elsewhere")
    _deployment(api, "somebodys", {"app": "web"}, namespace="shop")
    for name in ("one", "two", "three"):
        _run(api, name)
    _run(api, "four", namespace="elsewhere")
    for namespace in ("shop", "elsewhere"):
        api.put({"kind": "ConfigMap", "metadata": {"name": names.HEARTBEAT}}, namespace=namespace)
    return api


async def _uninstall(api: FakeApi, clock: ManualClock, *namespaces: str) -> list[str]:
    task = Uninstall(api.api(), namespaces=namespaces, timeout_s=30, clock=clock)
    return await task.carry_out(namespace="shop", operator="aaa-operator", selector=SELECTOR)


def _finalizers(api: FakeApi) -> dict[tuple[str, str], list[str]]:
    return {
        key[1:]: raw["metadata"]["finalizers"]
        for key, raw in api.objects.items()
        if key[0] == "AgentRun"
    }


async def test_the_operator_goes_first_then_the_workers_then_the_finalizers() -> None:
    api = _installed()
    assert await _uninstall(api, Kubelet(api), "shop") == []
    order = [(kind, name) for _, kind, name, _ in api.writes]
    heartbeat = ("ConfigMap", names.HEARTBEAT)
    assert order[:3] == [("Deployment", "aaa-operator"), heartbeat, ("Deployment", "aaa-1")]
    assert {kind for kind, _ in order[3:]} == {"AgentRun"}
    left = sorted(key[2] for key in api.objects if key[0] == "Pod" and key[1] == "shop")
    assert left == ["somebodys-1", "somebodys-2"]
    assert all("deletionTimestamp" not in raw["metadata"] for raw in api.objects.values())


@pytest.mark.parametrize(
    ("watched", "beats_in"),
    [(("shop", "elsewhere"), "shop"), (("elsewhere",), "elsewhere"), ((), "shop")],
)
async def test_the_heartbeat_goes_from_where_the_operator_kept_it(
    watched: tuple[str, ...], beats_in: str
) -> None:
    api = _installed()
    await _uninstall(api, Kubelet(api), *watched)
    settings = Settings(pools=SETTINGS, namespaces=watched, lease_namespace="shop")
    assert settings.heartbeat_namespace == beats_in
    left = {key[1] for key in api.objects if key[0] == "ConfigMap"}
    assert left == {"shop", "elsewhere"} - {beats_in}


async def test_only_the_watched_namespaces_are_touched_and_only_our_finalizer_goes() -> None:
    api = _installed()
    await _uninstall(api, Kubelet(api), "shop")
    theirs = _finalizers(api)
    assert theirs.pop(("elsewhere", "four")) == ["example.org/other", names.FINALIZER]
    assert set(map(tuple, theirs.values())) == {("example.org/other",)}
    assert api.get("Deployment", "aaa-1", namespace="elsewhere")["spec"]["replicas"] == 2


async def test_without_namespaces_the_whole_cluster_is_drained() -> None:
    api = _installed()
    assert await _uninstall(api, Kubelet(api)) == []
    assert not any(names.FINALIZER in each for each in _finalizers(api).values())
    assert api.get("Deployment", "aaa-1", namespace="elsewhere")["spec"]["replicas"] == 0


async def test_a_pod_that_does_not_go_is_named_and_runs_are_released_all_the_same() -> None:
    api = _installed()
    clock = Kubelet(api, stuck=("aaa-1-2",))
    before_s = clock.boot_s()
    assert await _uninstall(api, clock, "shop") == ["shop/aaa-1-2"]
    assert clock.boot_s() - before_s < 40
    assert names.FINALIZER not in _finalizers(api)["shop", "one"]


async def test_a_run_that_was_changed_meanwhile_is_released_by_a_second_look() -> None:
    api = _installed()
    api.answers["PATCH", "AgentRun"] = [JSONResponse({"reason": "Conflict"}, status_code=409)]
    assert await _uninstall(api, Kubelet(api), "shop") == []
    assert names.FINALIZER not in _finalizers(api)["shop", "one"]


async def test_doing_it_again_writes_nothing_but_the_operators_scale() -> None:
    api = _installed()
    await _uninstall(api, Kubelet(api), "shop")
    api.writes.clear()
    assert await _uninstall(api, Kubelet(api), "shop") == []
    assert [(kind, name) for _, kind, name, _ in api.writes] == [("Deployment", "aaa-operator")]


async def test_an_api_server_that_refuses_ends_it() -> None:
    api = _installed()
    refusal = JSONResponse({"reason": "Forbidden", "message": "no"}, status_code=403)
    api.answers["PATCH", "Deployment"] = [refusal]
    with pytest.raises(ApiFailure, match="no"):
        await _uninstall(api, Kubelet(api), "shop")
    assert names.FINALIZER in _finalizers(api)["shop", "one"]


def _conditions(**status: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": each} for kind, each in status.items()]}


@pytest.mark.parametrize(
    ("status", "expected", "words"),
    [
        (_conditions(Succeeded="True", Finished="True"), True, "Succeeded=True"),
        (_conditions(Succeeded="False", Finished="True"), False, "Succeeded=False"),
        (_conditions(Succeeded="Unknown", Finished="False"), False, "not finished after 5 s"),
        ({}, False, "the operator has said nothing about it yet"),
    ],
)
async def test_a_run_is_waited_for_and_only_success_is_success(
    status: dict[str, Any], expected: bool, words: str
) -> None:
    api = FakeApi()
    api.put({"kind": "AgentRun", "metadata": {"name": "hello"}, "status": status})
    found, said = await awaited(
        api.api(), "hello", namespace="shop", timeout_s=5, clock=ManualClock()
    )
    assert (found, words in said) == (expected, True), said


async def test_a_run_that_is_not_there_is_said_to_be_missing() -> None:
    _, said = await awaited(
        FakeApi().api(), "hello", namespace="shop", timeout_s=5, clock=ManualClock()
    )
    assert "agentruns/hello" in said
