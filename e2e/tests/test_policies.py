"""What a ToolPolicy changes in runs that have begun, and what it cannot change any more."""

from typing import Any

from cluster.shell import wait_until
from runs import Scene


def test_a_policy_that_changes_between_two_calls_governs_the_second_in_the_same_pod(
    scene: Scene,
) -> None:
    first, second = scene.order(1), scene.order(2)
    scene.ledger.hold(first)
    scene.policy({"name": "pay", "maxAttempts": 2})
    run = scene.run(f"pay:{first} pay:{second}", policyRefs=[{"name": scene.name}])
    began = scene.ledger.started(first)
    before = _hash(scene, run)
    after = _changed(scene, run, {"name": "pay", "delivery": "AtMostOnce"})
    scene.ledger.release(first)
    scene.completed(run)
    policies = [each["data"]["policy"] for each in scene.events(run, "aaa.tool.started")]
    assert policies == [before, after]
    assert {each.pod for each in scene.ledger.starts} >= {began.pod}
    assert scene.ledger.starts_of(second)[0].pod == began.pod
    (container,) = scene.get("pod", began.pod)["status"]["containerStatuses"]
    assert container["restartCount"] == 0


def test_a_policy_loosened_while_a_call_is_open_leaves_the_call_as_it_began(scene: Scene) -> None:
    order = scene.order()
    scene.ledger.hold(order)
    scene.policy({"name": "pay", "delivery": "AtMostOnce", "leaseTtlSeconds": 5})
    run = scene.run(f"pay:{order}", policyRefs=[{"name": scene.name}])
    first = scene.ledger.started(order)
    _changed(scene, run, {"name": "pay", "delivery": "AtLeastOnce", "leaseTtlSeconds": 5})
    scene.release.cluster.pods.kill(first.pod, namespace=scene.release.namespace)
    scene.until("agentrun", run, "OutcomeUnknown", "True")
    scene.decide(run, "MarkNotDone", reason="not in the ledger")
    scene.until("agentrun", run, "Succeeded", "True/Completed")
    assert [each.attempt for each in scene.ledger.starts_of(order)] == [1]


def test_a_default_of_the_namespace_does_not_loosen_what_the_author_declared(scene: Scene) -> None:
    order = scene.order()
    scene.ledger.hold(order)
    loose = {"delivery": "AtLeastOnce", "leaseTtlSeconds": 5}
    scene.policy(defaults=loose)
    run = scene.run(f"transfer:{order}", policyRefs=[{"name": scene.name}])
    first = scene.ledger.started(order)
    scene.release.cluster.pods.kill(first.pod, namespace=scene.release.namespace)
    scene.until("agentrun", run, "OutcomeUnknown", "True")
    scene.decide(run, "MarkDone", result="looked up")
    scene.until("agentrun", run, "Succeeded", "True/Completed")
    assert [each.attempt for each in scene.ledger.starts_of(order)] == [1]


def test_an_entry_by_name_loosens_what_the_author_declared(scene: Scene) -> None:
    order = scene.order()
    scene.ledger.hold(order)
    scene.policy({"name": "transfer", "delivery": "AtLeastOnce", "leaseTtlSeconds": 5})
    run = scene.run(f"transfer:{order}", policyRefs=[{"name": scene.name}])
    first = scene.ledger.started(order)
    scene.release.cluster.pods.kill(first.pod, namespace=scene.release.namespace)
    assert scene.completed(run) == f"transfer {order} attempt 2"
    assert [each.attempt for each in scene.ledger.effects_of(order)] == [2]


def test_an_entry_for_a_tool_that_is_not_there_is_said_until_it_is_mended(scene: Scene) -> None:
    order = scene.order()
    scene.ledger.hold(order)
    scene.policy({"name": "pya", "requiresApproval": True})
    run = scene.run(f"pay:{order}", policyRefs=[{"name": scene.name}])
    scene.ledger.started(order)
    found = scene.until("toolpolicy", scene.name, "ToolsMatched", "False/UnmatchedTools")
    assert "their tools are pay, transfer" in found["message"]
    scene.policy({"name": "pay", "maxAttempts": 3})
    scene.until("toolpolicy", scene.name, "ToolsMatched", "True/Matched", timeout_s=30)
    scene.ledger.release(order)
    scene.completed(run)


def test_a_misspelt_field_keeps_runs_from_starting_until_it_is_mended(scene: Scene) -> None:
    order = scene.order()
    scene.policy({"name": "pay", "deliverry": "AtMostOnce"})
    found = scene.until("toolpolicy", scene.name, "Accepted", "False/UnknownField", timeout_s=30)
    assert "deliverry" in found["message"]
    run = scene.run(f"pay:{order}")
    scene.until("agentrun", run, "PolicyResolved", "False/PolicyNotAccepted", timeout_s=30)
    assert scene.ledger.starts_of(order) == []
    scene.policy({"name": "pay", "delivery": "AtMostOnce"})
    scene.completed(run)
    assert len(scene.ledger.effects_of(order)) == 1


def _hash(scene: Scene, run: str) -> str:
    return str(scene.get("agentrun", run)["status"]["policy"]["hash"])


def _changed(scene: Scene, run: str, *tools: dict[str, Any]) -> str:
    """Change the policy of a run and wait until its workers have it; the new hash."""
    before = _hash(scene, run)
    scene.policy(*tools)
    wait_until(lambda: _hash(scene, run) != before, what="the run's new policy", timeout_s=30)
    scene.until("toolpolicy", scene.name, "Propagated", "True/Acknowledged", timeout_s=30)
    return _hash(scene, run)
