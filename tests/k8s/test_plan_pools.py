"""Pools are made once, keep their template, follow the backlog, and go when nobody needs them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from aaa_operator import actions as act
from aaa_operator import names
from aaa_operator.observe import Progress
from aaa_operator.pools import contains, replicas_for
from aaa_operator.render import PoolPlan
from k8s.scene import NOW_MS, SETTINGS, World, raw_pod, raw_policy, raw_run


def _pool(**changes: Any) -> PoolPlan:
    plain = PoolPlan(
        name="aaa-1", namespace="shop", template={}, concurrency=10, min_replicas=2, max_replicas=5
    )
    return replace(plain, **changes)


@pytest.mark.parametrize(
    ("calls", "low", "high", "replicas"),
    [
        (0, 2, 5, 0),
        (1, 2, 5, 2),
        (1, 0, 5, 1),
        (20, 2, 5, 2),
        (21, 2, 5, 3),
        (10_000, 2, 5, 5),
        (1, 0, 0, 1),
    ],
)
def test_pods_follow_the_backlog_between_the_bounds(
    calls: int, low: int, high: int, replicas: int
) -> None:
    assert replicas_for(calls, _pool(min_replicas=low, max_replicas=high)) == replicas


@pytest.mark.parametrize(
    ("live", "wanted", "contained"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": [{"x": 1, "y": 2}]}, {"a": [{"x": 1}]}, True),
        ({"a": [{"x": 1}, {"x": 2}]}, {"a": [{"x": 1}]}, False),
        ({"a": None}, {"a": {}}, False),
        (None, {}, False),
    ],
)
def test_additions_of_the_api_server_are_no_difference(
    live: Any, wanted: Any, contained: bool
) -> None:
    assert contains(live, wanted) is contained


def test_what_a_pod_mounts_stands_before_the_deployment_that_makes_pods() -> None:
    source = {"kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"agent.py": "app = 1"}}
    spec = {"agent": {"app": "agent:app", "source": {"configMapRef": {"name": "code"}}}}
    world = World.of(raw_run(spec=spec), source)
    applied = [a.object for a in world.settle() if isinstance(a, act.Apply)]
    kinds = [each["kind"] for each in applied]
    assert kinds == [
        "ConfigMap",
        "ConfigMap",
        "ControllerRevision",
        "PodDisruptionBudget",
        "Deployment",
    ]
    assert applied[0]["immutable"] is True
    assert applied[0]["data"] == {"agent.py": "app = 1"}


def test_runs_of_one_template_share_a_pool_and_another_image_makes_another() -> None:
    other = {"agent": {"app": "shop.agent:app", "image": "shop:2"}}
    world = World.of(raw_run("a"), raw_run("b"), raw_run("c", spec=other))
    world.settle()
    pools = {name: world.status(name)["pool"]["name"] for name in "abc"}
    assert pools["a"] == pools["b"] != pools["c"]
    assert len(world.of_kind("Deployment")) == 2


def test_a_dedicated_run_owns_its_pool() -> None:
    dedicated = {"isolation": "Dedicated", "workers": {"maxReplicas": 3, "concurrency": 7}}
    world = World.of(raw_run("a", spec=dedicated), raw_run("b", spec=dedicated))
    world.settle()
    assert world.status("a")["pool"]["name"] != world.status("b")["pool"]["name"]
    deployment = world.get("Deployment", world.status("a")["pool"]["name"])
    (owner,) = deployment["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == ("uid-a", True)
    assert "--concurrency=7" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]


def test_a_running_run_stays_where_it_began_whatever_its_template_would_be_now() -> None:
    world = World.of(raw_run())
    pool = world.begin()
    world.objects.pop(("AgentRun", "refund"))
    # The installation was upgraded: the stock image is another one now.
    run = raw_run(spec={"agent": {"app": "shop.agent:app", "image": "other:2"}})
    status = {
        "runId": "run.refund.uid-refund",
        "storeId": "store-1",
        "inputDigest": world.store.runs["run.refund.uid-refund"].digest,
        "startTime": "2027-01-15T08:00:00Z",
        "pool": {"name": pool, "hash": pool[4:]},
    }
    world.put({**run, "status": status})
    world.settle()
    assert world.status()["pool"]["name"] == pool
    assert [raw["metadata"]["name"] for raw in world.of_kind("Deployment")] == [pool]


def _edited(world: World, pool: str, edit: str) -> None:
    raw = copy.deepcopy(world.get("Deployment", pool))
    spec = raw["spec"]["template"]["spec"]
    if edit == "image":
        spec["containers"][0]["image"] = "evil:1"
    elif edit == "added":
        spec["hostNetwork"] = True
    elif edit == "removed":
        del spec["securityContext"]
    elif edit == "container":
        spec["containers"].append({"name": "sidecar", "image": "evil:1"})
    elif edit == "restart":
        raw["spec"]["template"]["metadata"]["annotations"] = {"restartedAt": "now"}
    world.put(raw)


@pytest.mark.parametrize("edit", ["image", "added", "removed", "container", "restart"])
def test_a_deployment_edited_by_hand_is_put_back_from_its_revision(edit: str) -> None:
    world = World.of(raw_run())
    pool = world.begin()
    before = copy.deepcopy(world.get("Deployment", pool)["spec"]["template"])
    _edited(world, pool, edit)
    back = [a for a in world.settle() if isinstance(a, act.PutBack)]
    assert len(back) == 1
    assert world.get("Deployment", pool)["spec"]["template"] == before


def test_a_deployment_edited_while_its_pool_is_idle_is_put_back_too() -> None:
    """Its pods may still be finishing calls: none of them is to be replaced by something else."""
    world = World.of(raw_run())
    pool = world.begin()
    before = copy.deepcopy(world.get("Deployment", pool)["spec"]["template"])
    world.objects = {key: raw for key, raw in world.objects.items() if key[0] != "AgentRun"}
    world.settle()
    _edited(world, pool, "image")
    back = [a for a in world.settle() if isinstance(a, act.PutBack)]
    assert len(back) == 1
    assert world.get("Deployment", pool)["spec"]["template"] == before


def test_a_deployment_edited_before_it_was_first_seen_is_put_back_too() -> None:
    world = World.of(raw_run())
    while not world.of_kind("Deployment"):
        world.carry_out(world.plan().actions[0])
    pool = world.of_kind("Deployment")[0]["metadata"]["name"]
    _edited(world, pool, "image")
    world.settle()
    container = world.get("Deployment", pool)["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == SETTINGS.image


def test_a_deployment_deleted_by_hand_comes_back_as_it_was() -> None:
    world = World.of(raw_run())
    pool = world.begin()
    before = world.objects.pop(("Deployment", pool))
    world.settle()
    assert world.get("Deployment", pool)["spec"]["template"] == before["spec"]["template"]


@pytest.mark.parametrize("kind", ["PodDisruptionBudget", "ConfigMap"])
def test_what_else_is_deleted_or_changed_by_hand_comes_back(kind: str) -> None:
    world = World.of(raw_run())
    pool = world.begin()
    name = pool if kind == "PodDisruptionBudget" else f"{pool}-policy"
    before = world.objects.pop((kind, name))
    world.settle()
    part = "spec" if kind == "PodDisruptionBudget" else "data"
    assert world.get(kind, name)[part] == before[part]


def _busy(world: World, calls: int) -> None:
    world.progress(requested=calls, running=calls, busy=calls)


def test_a_pool_grows_at_once_and_shrinks_only_after_its_delay() -> None:
    world = World.of(raw_run())
    pool = world.begin()
    _busy(world, 200)
    world.settle()
    assert world.get("Deployment", pool)["spec"]["replicas"] == 4
    _busy(world, 10)
    world.settle()
    assert world.get("Deployment", pool)["spec"]["replicas"] == 4
    delay_ms = SETTINGS.idle_delay_s * 1000
    assert world.plan().again_in_ms == delay_ms or world.plan().again_in_ms is not None
    world.now_ms += delay_ms - 1
    world.settle()
    assert world.get("Deployment", pool)["spec"]["replicas"] == 4
    world.now_ms += 1
    world.settle()
    assert world.get("Deployment", pool)["spec"]["replicas"] == 1


def test_of_a_pool_that_shrinks_the_least_busy_pods_go_and_first_those_of_another_image() -> None:
    world = World.of(raw_run(), raw_run("other"))
    pool = world.begin()
    world.begin("other")
    _busy(world, 200)
    world.settle()
    holders = {f"{pool}-0-7-abc", f"{pool}-1-7-abc"}
    world.progress(busy=10, running=2, holders=frozenset(holders))
    world.progress("other", busy=100, running=1, holders=frozenset({f"{pool}-0-7-abc"}))
    world.settle()
    world.now_ms += SETTINGS.idle_delay_s * 1000
    world.settle()
    assert _pods(world) == {f"{pool}-0", f"{pool}-1"}  # of four: those that run calls
    world.put(raw_pod(f"{pool}-1", pool, imageID="sha256:two"))
    world.progress("other", busy=10, running=1, holders=frozenset({f"{pool}-1-7-abc"}))
    world.settle()
    world.now_ms += SETTINGS.idle_delay_s * 1000
    world.settle()
    assert _pods(world) == {f"{pool}-0"}  # though the other one is busier


def test_a_pod_that_was_to_go_and_got_busy_in_between_costs_as_much_as_others_again() -> None:
    world = World.of(raw_run())
    pool = world.begin()
    _busy(world, 100)
    world.settle()
    busy = raw_pod(f"{pool}-0", pool)
    busy["metadata"]["annotations"] = {names.DELETION_COST: "-1000"}
    world.put(busy)
    world.progress(busy=1, running=1, holders=frozenset({f"{pool}-0-7-abc"}))
    world.settle()
    world.now_ms += SETTINGS.idle_delay_s * 1000
    world.settle()
    assert _pods(world) == {f"{pool}-0"}


def _pods(world: World) -> set[str]:
    return {raw["metadata"]["name"] for raw in world.of_kind("Pod")}


def test_need_that_returns_within_the_delay_keeps_the_pods() -> None:
    world = World.of(raw_run())
    pool = world.begin()
    _busy(world, 200)
    world.settle()
    _busy(world, 10)
    world.settle()
    world.now_ms += SETTINGS.idle_delay_s * 1000 - 1
    _busy(world, 200)
    world.settle()
    annotations = world.get("Deployment", pool)["metadata"]["annotations"]
    assert names.IDLE_SINCE not in annotations
    assert world.get("Deployment", pool)["spec"]["replicas"] == 4


def test_an_empty_pool_goes_to_zero_and_then_goes_and_comes_back_with_the_next_run() -> None:
    world = World.of(raw_run())
    pool = world.begin()
    world.progress(status="completed", value=1, closed_ms=NOW_MS)
    world.settle()
    assert world.get("Deployment", pool)["spec"]["replicas"] == 1
    world.now_ms += SETTINGS.idle_delay_s * 1000
    world.settle()
    assert [kind for kind, _ in world.objects] == ["AgentRun"]
    world.put(raw_run("next"))
    assert world.begin("next") == pool


def test_a_suspended_run_lets_its_pool_go_to_zero_and_keeps_it() -> None:
    world = World.of(raw_run())
    pool = world.begin()
    run = world.get("AgentRun", "refund")
    world.put({**run, "spec": {**run["spec"], "desiredState": "Suspended"}})
    world.settle()
    world.now_ms += SETTINGS.idle_delay_s * 1000
    world.settle()
    assert world.get("Deployment", pool)["spec"]["replicas"] == 0
    assert world.condition("WorkersReady") == "False/ScaledToZero"


def test_a_run_that_waits_for_a_person_needs_no_pod() -> None:
    from aaa_operator.observe import CallSeen

    world = World.of(raw_run())
    pool = world.begin()
    call = CallSeen(call_id="c2-0", tool="refund", args_digest="d", since_ms=NOW_MS)
    world.progress(waiting=(call,))
    world.settle()
    world.now_ms += SETTINGS.idle_delay_s * 1000
    world.settle()
    assert world.get("Deployment", pool)["spec"]["replicas"] == 0
    world.progress(waiting=(), busy=1)
    world.settle()
    assert world.get("Deployment", pool)["spec"]["replicas"] == 1


@pytest.mark.parametrize(
    ("waiting", "reason", "words"),
    [
        ({"reason": "ImagePullBackOff", "message": "not found"}, "ImagePullBackOff", "spec.agent"),
        ({"reason": "CreateContainerConfigError"}, "CreateContainerConfigError", "missing"),
        ({"reason": "CrashLoopBackOff"}, "CrashLoopBackOff", "kubectl logs --previous aaa-"),
        ({"reason": "ContainerCreating"}, "Starting", "no worker is ready yet"),
    ],
)
def test_a_pod_that_does_not_start_says_why(waiting: Any, reason: str, words: str) -> None:
    world = World.of(raw_run())
    world.settle()
    pool = world.status()["pool"]["name"]
    world.put(raw_pod(f"{pool}-0", pool, ready=False, state={"waiting": waiting}))
    world.settle()
    assert world.condition("WorkersReady") == f"False/{reason}"
    assert words in world.message("WorkersReady")


def test_a_full_quota_is_named() -> None:
    world = World.of(raw_run())
    world.settle()
    pool = world.status()["pool"]["name"]
    world.objects.pop(("Pod", f"{pool}-0"))
    said = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
    deployment = world.get("Deployment", pool)
    status = {"conditions": [{**said, "message": "exceeded quota: pods"}]}
    world.put({**deployment, "status": status})
    world.settle()
    assert world.condition("WorkersReady") == "False/FailedCreate"
    assert "exceeded quota" in world.message("WorkersReady")


def test_a_tag_that_moved_under_a_pool_is_told() -> None:
    world = World.of(raw_run())
    pool = world.begin()
    world.put(raw_pod(f"{pool}-1", pool, imageID="sha256:two"))
    world.settle()
    assert world.condition("WorkersReady") == "False/ImageDrift"
    assert "pin a digest" in world.message("WorkersReady")
    for image in ("sha256:one", "sha256:two"):
        assert image in world.message("WorkersReady")


def test_a_source_that_no_pool_mounts_any_more_is_removed() -> None:
    source = {"kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"agent.py": "app = 1"}}
    spec = {"agent": {"app": "agent:app", "source": {"configMapRef": {"name": "code"}}}}
    world = World.of(raw_run(spec=spec), source)
    world.begin()
    world.progress(status="completed", value=1, closed_ms=NOW_MS)
    world.settle()
    world.now_ms += SETTINGS.idle_delay_s * 1000
    world.settle()
    assert [raw["metadata"]["name"] for raw in world.of_kind("ConfigMap")] == ["code"]


def test_policies_that_do_not_fit_a_config_map_are_named_and_reach_no_worker() -> None:
    key = "k" * 250 + "{a}"
    entries = [{"name": f"tool{n:04}" + "x" * 100, "idempotencyKey": key} for n in range(256)]
    policies = [raw_policy(f"p{n:02}", tools=entries) for n in range(9)]
    world = World.of(raw_run(), *policies)
    world.settle()
    assert world.condition("PolicyResolved") == "False/PolicyTooLarge"
    assert world.created == []


def test_a_pool_whose_template_is_lost_is_not_replaced_by_another_one() -> None:
    world = World.of(raw_run())
    pool = world.begin()
    for kind in ("Deployment", "ControllerRevision"):
        world.objects.pop((kind, pool))
    run = world.get("AgentRun", "refund")
    moved = {**run["spec"], "agent": {"app": "shop.agent:app", "image": "other:2"}}
    world.put({**run, "spec": moved})
    world.settle()
    assert world.condition("Stalled") == "True/PoolLost"


def test_progress_without_calls_still_wants_a_worker_for_its_next_turn() -> None:
    from aaa_operator.ending import calls_of

    plain = Progress(app="a", digest="d")
    assert calls_of(plain, needs=True) == 1
    assert calls_of(replace(plain, busy=5), needs=True) == 5
    assert calls_of(replace(plain, suspended=True, running=2), needs=True) == 2
    assert calls_of(replace(plain, status="completed"), needs=True) == 0
