"""Who may decide: the roles of the chart, and the admission policy that ties a word to its author."""

import json
from typing import Any

import pytest

from cluster.shell import ClusterError
from runs import API, Scene


@pytest.fixture
def people(scene: Scene) -> Scene:
    """Eve may edit runs, Ann may approve."""
    for user, role in (("eve", "aaa-edit"), ("ann", "aaa-approver")):
        scene.release.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": f"{user}-{role}"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": role,
                },
                "subjects": [
                    {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
                ],
            }
        )
        scene.made.append(("rolebinding", f"{user}-{role}"))
    return scene


def test_only_an_approver_approves_and_only_in_the_own_name(people: Scene) -> None:
    scene, order = people, people.order()
    scene.policy({"name": "pay", "requiresApproval": True})
    run = scene.run(f"pay:{order}", policyRefs=[{"name": scene.name}])
    scene.until("agentrun", run, "AwaitingApproval", "True")
    with pytest.raises(ClusterError, match=r"(?s)eve.*cannot create resource .*tooldecisions"):
        _create(scene, "eve", _approval(scene, run, by="eve"))
    with pytest.raises(ClusterError, match="decidedBy"):
        _create(scene, "ann", _approval(scene, run, by="bob"))
    assert scene.ledger.starts_of(order) == []
    _create(scene, "ann", _approval(scene, run, by="ann"))
    scene.completed(run)
    (approved,) = scene.events(run, "aaa.tool.approved")
    assert approved["data"]["by"] == "ann"
    assert len(scene.ledger.effects_of(order)) == 1


def _approval(scene: Scene, run: str, *, by: str) -> dict[str, Any]:
    found = scene.get("agentrun", run)
    (call,) = found["status"]["pendingApprovals"]
    return {
        "apiVersion": API,
        "kind": "ToolDecision",
        "metadata": {"name": f"{run}-{by}"},
        "spec": {
            "runRef": {"name": run, "uid": found["metadata"]["uid"]},
            "callId": call["callId"],
            "argsDigest": call["argsDigest"],
            "decision": "Approve",
            "decidedBy": by,
            "expiresAt": "2099-01-01T00:00:00Z",
        },
    }


def _create(scene: Scene, user: str, decision: dict[str, Any]) -> None:
    scene.release.kubectl("create", f"--as={user}", "-f", "-", stdin=json.dumps(decision))
    scene.made.append(("tooldecision", decision["metadata"]["name"]))
