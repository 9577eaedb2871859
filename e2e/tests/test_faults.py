"""What goes wrong around a run in the cluster, and what the ledger outside says of it afterwards."""

from cluster.shell import wait_until
from runs import Scene


def test_a_call_lost_under_at_most_once_waits_for_a_decision_and_runs_no_second_time(
    scene: Scene,
) -> None:
    """Under AtMostOnce the run shows OutcomeUnknown, and a ToolDecision resolves it."""
    order = scene.order()
    scene.ledger.hold(order)
    scene.policy({"name": "pay", "delivery": "AtMostOnce", "leaseTtlSeconds": 5})
    run = scene.run(f"pay:{order}", policyRefs=[{"name": scene.name}])
    first = scene.ledger.started(order)
    scene.release.cluster.pods.stop(first.pod, namespace=scene.release.namespace)
    scene.until("agentrun", run, "OutcomeUnknown", "True")
    scene.decide(run, "MarkDone", result="looked up: paid")
    scene.until("agentrun", run, "Succeeded", "True/Completed")
    assert [each.attempt for each in scene.ledger.starts_of(order)] == [1]
    assert len(scene.events(run, "aaa.tool.started")) == 1


def test_the_same_run_key_applied_again_after_deleting_is_the_same_run(scene: Scene) -> None:
    order = scene.order()
    run = scene.run(f"pay:{order}", runKey=scene.name)
    scene.completed(run)
    run_id = scene.get("agentrun", run)["status"]["runId"]
    scene.release.kubectl("delete", "agentrun", run, "--timeout=60s")
    scene.run(f"pay:{order}", runKey=scene.name)
    assert scene.completed(run) == f"pay {order} attempt 1"
    assert scene.get("agentrun", run)["status"]["runId"] == run_id
    assert len(scene.ledger.effects_of(order)) == 1


def test_a_deployment_edited_by_hand_under_a_run_is_put_back(scene: Scene) -> None:
    order = scene.order()
    scene.ledger.hold(order)
    run = scene.run(f"pay:{order}")
    scene.ledger.started(order)
    pool = scene.pool(run)

    def image() -> str:
        pod = scene.get("deployment", pool)["spec"]["template"]["spec"]
        return str(pod["containers"][0]["image"])

    before = image()
    edit = '[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"x:1"}]'
    scene.release.kubectl("patch", "deployment", pool, "--type=json", "-p", edit)
    wait_until(lambda: image() == before, what="the image to be put back", timeout_s=30)
    scene.ledger.release(order)
    scene.completed(run)
    assert len(scene.ledger.effects_of(order)) == 1
