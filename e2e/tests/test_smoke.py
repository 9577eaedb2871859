"""From `helm install` to a refund that happened once, through a policy and a frozen pod, and out."""

import pytest

from cluster.shell import wait_until
from release import Release
from runs import Scene

pytestmark = pytest.mark.smoke


def test_an_agent_run_succeeds_and_the_ledger_outside_counts_one_effect(scene: Scene) -> None:
    order = scene.order()
    run = scene.run(f"transfer:{order}")
    assert scene.completed(run) == f"transfer {order} attempt 1"
    assert len(scene.ledger.effects_of(order)) == 1
    row = scene.release.kubectl("get", "arun", run, "--no-headers").split()
    assert row[:3] == [run, "Completed", "1"]


def test_a_policy_stands_in_the_config_map_and_in_the_next_started_event(scene: Scene) -> None:
    order = scene.order()
    scene.policy({"name": "pay", "delivery": "AtMostOnce"})
    run = scene.run(f"pay:{order}", policyRefs=[{"name": scene.name}])
    scene.completed(run)
    status = scene.get("agentrun", run)["status"]
    wanted = status["policy"]["hash"]
    carried = scene.release.get("configmap", f"{scene.pool(run)}-policy")["data"]
    assert '"delivery":"at_most_once"' in carried[f"{wanted}.json"].replace(" ", "")
    (started,) = scene.events(run, "aaa.tool.started")
    assert started["data"]["policy"] == wanted
    assert len(scene.ledger.effects_of(order)) == 1


def test_a_frozen_worker_is_replaced_and_its_call_runs_elsewhere_in_time(scene: Scene) -> None:
    order = scene.order()
    scene.ledger.hold(order)
    scene.policy({"name": "pay", "leaseTtlSeconds": 5, "waitPollMilliseconds": 200})
    run = scene.run(
        f"pay:{order}", workers={"minReplicas": 2, "maxReplicas": 2}, isolation="Dedicated"
    )
    first = scene.ledger.started(order)
    pool = scene.pool(run)
    wait_until(lambda: len(scene.pods(pool)) == 2, what="two ready workers", timeout_s=60)
    namespace = scene.release.namespace
    uid = scene.get("pod", first.pod)["metadata"]["uid"]
    scene.release.cluster.pods.stop(first.pod, namespace=namespace)
    second = scene.ledger.started(order, attempt=2, timeout_s=30)
    assert second.pod != first.pod
    assert scene.completed(run) == f"pay {order} attempt 2"
    wait_until(
        lambda: uid not in {each["metadata"]["uid"] for each in scene.release.all_of("pods")},
        what="the frozen pod to go",
        timeout_s=120,
    )
    evicted = [e for e in scene.release.all_of("events") if e["reason"] == "FrozenWorker"]
    assert [e["involvedObject"]["uid"] for e in evicted if e["involvedObject"]["uid"] == uid] == [
        uid
    ]
    assert [each.attempt for each in scene.ledger.effects_of(order)] == [2]


def test_uninstalling_leaves_records_and_definitions_and_no_pod(
    scene: Scene, installed: Release
) -> None:
    order = scene.order()
    run = scene.run(f"pay:{order}")
    scene.completed(run)
    installed.uninstall()
    wait_until(lambda: not installed.all_of("pods"), what="no pod", timeout_s=120)
    assert scene.get("agentrun", run)["status"]["result"]
    assert not scene.get("agentrun", run)["metadata"].get("finalizers")
    assert installed.all_of("persistentvolumeclaims")
    installed.install()
    again = scene.run(f"pay:{scene.order(2)}", name=f"{run}-2")
    scene.completed(again)
    assert len(scene.ledger.effects_of(order)) == 1
