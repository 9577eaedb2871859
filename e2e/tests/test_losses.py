"""Workers, pods and the store that go in the middle of a call, judged by the ledger outside."""

from cluster.shell import wait_until
from runs import Scene


def test_a_killed_workers_call_runs_again_and_takes_effect_once(scene: Scene) -> None:
    order = scene.order()
    scene.ledger.hold(order)
    scene.policy({"name": "pay", "leaseTtlSeconds": 5, "waitPollMilliseconds": 200})
    run = scene.run(f"pay:{order}", policyRefs=[{"name": scene.name}])
    first = scene.ledger.started(order)
    scene.release.cluster.pods.kill(first.pod, namespace=scene.release.namespace)
    assert scene.completed(run) == f"pay {order} attempt 2"
    assert [each.attempt for each in scene.ledger.effects_of(order)] == [2]
    assert _evicted(scene, first.pod) == []


def test_a_pod_deleted_by_hand_is_replaced_and_its_call_runs_again(scene: Scene) -> None:
    order = scene.order()
    scene.ledger.hold(order)
    scene.policy({"name": "pay", "leaseTtlSeconds": 5, "waitPollMilliseconds": 200})
    run = scene.run(f"pay:{order}", policyRefs=[{"name": scene.name}])
    first = scene.ledger.started(order)
    scene.release.kubectl("delete", "pod", first.pod, "--grace-period=1", "--wait=false")
    assert scene.completed(run) == f"pay {order} attempt 2"
    second = scene.ledger.started(order, attempt=2)
    assert second.pod != first.pod
    assert [each.attempt for each in scene.ledger.effects_of(order)] == [2]


def test_a_store_that_is_killed_and_comes_back_with_its_data_repeats_nothing(scene: Scene) -> None:
    """The outage is shorter than the call's lease; no worker is taken for frozen."""
    order = scene.order()
    scene.ledger.hold(order)
    scene.policy({"name": "pay", "leaseTtlSeconds": 120})
    run = scene.run(f"pay:{order}", policyRefs=[{"name": scene.name}])
    first = scene.ledger.started(order)
    redis = f"{scene.release.name}-redis-0"
    before = scene.get("pod", redis)["metadata"]["uid"]
    scene.release.kubectl("delete", "pod", redis, "--grace-period=0", "--force")
    _redis_ready(scene, other_than=before)
    scene.ledger.release(order)
    assert scene.completed(run) == f"pay {order} attempt 1"
    assert [each.attempt for each in scene.ledger.starts_of(order)] == [1]
    assert _evicted(scene, first.pod) == []


def test_a_store_that_is_gone_for_long_evicts_nobody_and_work_goes_on_when_it_is_back(
    scene: Scene,
) -> None:
    order = scene.order()
    scene.ledger.hold(order)
    scene.policy({"name": "pay", "leaseTtlSeconds": 300})
    run = scene.run(f"pay:{order}", policyRefs=[{"name": scene.name}])
    first = scene.ledger.started(order)
    uid = scene.get("pod", first.pod)["metadata"]["uid"]
    redis = f"statefulset/{scene.release.name}-redis"
    scene.release.kubectl("scale", redis, "--replicas=0")
    try:
        # Said after ten seconds; by then a live worker's lease of 15 s has mostly run out.
        scene.until("agentrun", run, "Stalled", "True/StoreUnreachable", timeout_s=120)
    finally:
        scene.release.kubectl("scale", redis, "--replicas=1")
    _redis_ready(scene)
    scene.until("agentrun", run, "Stalled", "False", timeout_s=120)
    scene.ledger.release(order)
    assert scene.completed(run) == f"pay {order} attempt 1"
    assert scene.get("pod", first.pod)["metadata"]["uid"] == uid
    assert _evicted(scene, first.pod) == []


def test_an_operator_killed_with_runs_in_flight_begins_none_twice(scene: Scene) -> None:
    orders = [scene.order(number) for number in range(1, 21)]
    runs = [
        scene.run(f"pay:{order}", name=f"{scene.name}-{number}")
        for number, order in enumerate(orders, 1)
    ]
    for _ in range(3):
        _kill_operators(scene)
    for run in runs:
        scene.completed(run, timeout_s=240)
    assert [len(scene.ledger.starts_of(order)) for order in orders] == [1] * len(orders)


def _kill_operators(scene: Scene) -> None:
    """Kill whatever operator runs, and wait for the next one."""
    before = _operators(scene)
    scene.release.kubectl("delete", "pod", *before, "--grace-period=0", "--force", "--wait=false")
    wait_until(lambda: bool(_operators(scene) - before), what="a new operator", timeout_s=60)


def _operators(scene: Scene) -> set[str]:
    label = "app.kubernetes.io/name=aaa-operator"
    pods = scene.release.all_of("pods", selector=label)
    return {str(each["metadata"]["name"]) for each in pods}


def _redis_ready(scene: Scene, *, other_than: str = "") -> None:
    name = f"{scene.release.name}-redis-0"

    def ready() -> bool:
        found = [
            each
            for each in scene.release.cluster.kubectl.ready_pods(
                "app.kubernetes.io/name=aaa-redis", namespace=scene.release.namespace
            )
            if each["metadata"]["name"] == name
        ]
        return bool(found) and found[0]["metadata"]["uid"] != other_than

    wait_until(ready, what="Redis to be back", timeout_s=120)


def _evicted(scene: Scene, pod: str) -> list[str]:
    return [
        str(each["message"])
        for each in scene.release.all_of("events")
        if each["reason"] == "FrozenWorker" and each["involvedObject"]["name"] == pod
    ]
