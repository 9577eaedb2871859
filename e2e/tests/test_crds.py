"""What the real API server makes of the definitions: what it takes, what it refuses, what it shows.

Nothing needs the operator: manifests are sent as a dry run, which does everything but store them.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from cluster import Cluster
from cluster.kubectl import Kubectl
from cluster.paths import E2E
from cluster.shell import ClusterError, wait_until

API = "aaa.dev/v1alpha1"
PLACE = "aaa-crds"
DEFINITIONS = ("agentruns.aaa.dev", "toolpolicies.aaa.dev", "tooldecisions.aaa.dev")
AGENT = {"image": "registry.example/refunds:1", "app": "refunds:app"}
ABOUT = {
    "runRef": {"name": "r", "uid": "6f1c1a52-3b0e-4f55-8f6e-0d6a2a9c8f11"},
    "callId": "c1-0",
    "argsDigest": "sha256:" + "0" * 64,
    "decidedBy": "jane",
}
END = "2027-01-01T00:00:00Z"


def agent_run(**spec: Any) -> dict[str, Any]:
    return _object("AgentRun", {"agent": AGENT, "input": {"task": "x"}, **spec})


def policy(*tools: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return _object("ToolPolicy", {"selector": {}, "tools": list(tools), **spec})


def decision(verb: str, **spec: Any) -> dict[str, Any]:
    return _object("ToolDecision", {**ABOUT, "decision": verb, **spec})


def env(*entries: dict[str, Any]) -> dict[str, Any]:
    return agent_run(agent={**AGENT, "env": list(entries)})


def _object(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": "x"}, "spec": spec}


ACCEPTED: dict[str, dict[str, Any]] = {
    "a run with the least": agent_run(),
    "a run with a key": agent_run(runKey="order-1"),
    "a pool of its own": agent_run(isolation="Dedicated", workers={"maxReplicas": 2}),
    "a value from a Secret": env(
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    ),
    "a policy of every run": policy({"name": "refund", "delivery": "AtMostOnce"}),
    "a policy by prefix": policy({"name": "pay*", "requiresApproval": True}),
    # Kept, so that the operator can name it: pruning a misspelt protection would fail open.
    "a misspelt field of a policy": policy({"name": "refund", "delivry": "AtMostOnce"}),
    "an approval with an end": decision("Approve", expiresAt=END),
    "a rejection with a reason": decision("Reject", reason="twice"),
    "a word on an unknown outcome": decision("MarkNotDone"),
}

#: What is sent, and what the refusal must say.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "workers of a shared pool": (
        agent_run(workers={"maxReplicas": 2}),
        "workers may only be given with isolation: Dedicated",
    ),
    "more at least than at most": (
        agent_run(isolation="Dedicated", workers={"minReplicas": 3, "maxReplicas": 2}),
        "minReplicas must not be above maxReplicas",
    ),
    "a reserved variable": (
        env({"name": "PYTHONPATH", "value": "/x"}),
        "AAA_*, PYTHON* and LD_* are reserved; choose another name",
    ),
    "a value twice": (
        env(
            {
                "name": "A",
                "value": "x",
                "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}},
            }
        ),
        "valueFrom cannot stand beside value; keep one",
    ),
    "a value from nowhere": (
        env({"name": "A", "valueFrom": {}}),
        "needs exactly one of secretKeyRef, configMapKeyRef and fieldRef",
    ),
    "a variable twice": (
        env({"name": "A", "value": "1"}, {"name": "A", "value": "2"}),
        'Duplicate value: {"name":"A"}',
    ),
    "an unknown state": (
        agent_run(desiredState="Paused"),
        'supported values: "Running", "Suspended", "Cancelled"',
    ),
    "no agent": (_object("AgentRun", {"input": {}}), "spec.agent: Required value"),
    "a misspelt field of a run": (agent_run(runkey="k"), 'unknown field "spec.runkey"'),
    "a policy that binds nothing": (
        _object("ToolPolicy", {"tools": []}),
        "spec.selector: Required value",
    ),
    "a heartbeat above its lease": (
        policy({"name": "pay", "leaseTtlSeconds": 5, "heartbeatSeconds": 5}),
        "heartbeatSeconds must be below leaseTtlSeconds",
    ),
    "at most once without a guard": (
        policy({"name": "pay", "enabled": False, "delivery": "AtMostOnce"}),
        "enabled: false cannot stand with delivery: AtMostOnce",
    ),
    "an approval without a guard": (
        policy({"name": "pay", "enabled": False, "requiresApproval": True}),
        "enabled: false cannot stand with requiresApproval: true",
    ),
    "a tool twice": (policy({"name": "pay"}, {"name": "pay"}), 'Duplicate value: {"name":"pay"}'),
    "a selector without values": (
        policy(selector={"matchExpressions": [{"key": "a", "operator": "In"}]}),
        "In and NotIn need values; Exists and DoesNotExist take none",
    ),
    "an approval without an end": (
        decision("Approve"),
        "expiresAt is missing; an approval has an end",
    ),
    "a rejection without a reason": (
        decision("Reject"),
        "reason is missing; say why the call is rejected",
    ),
}


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> Iterator[Kubectl]:
    """The API server with the definitions, and a namespace for what is stored."""
    kubectl = cluster.kubectl
    kubectl("apply", "--server-side", "--force-conflicts", "-f", str(E2E.parent / "crds"))
    for name in DEFINITIONS:
        kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=30s")
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PLACE}})
    yield kubectl
    kubectl("delete", "namespace", PLACE, "--wait=false")


def _send(server: Kubectl, what: dict[str, Any], *words: str) -> None:
    server("apply", "-n", PLACE, "--validate=strict", *words, "-f", "-", stdin=json.dumps(what))


def _refusal(server: Kubectl, what: dict[str, Any], *words: str) -> str:
    with pytest.raises(ClusterError) as refused:
        _send(server, what, *words)
    return str(refused.value)


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_api_server_takes_what_the_manifests_allow(server: Kubectl, name: str) -> None:
    what = copy.deepcopy(ACCEPTED[name])
    if what["kind"] == "ToolDecision":
        # Where the chart is installed, its admission policy demands the sender's own name.
        user = json.loads(server("auth", "whoami", "-o", "json"))["status"]["userInfo"]
        what["spec"]["decidedBy"] = user["username"]
    _send(server, what, "--dry-run=server")


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_by_the_api_server_says_what_to_mend(server: Kubectl, name: str) -> None:
    what, message = REFUSED[name]
    assert message in _refusal(server, what, "--dry-run=server")


def test_the_server_takes_each_definition_whole_and_finds_its_schema_structural(
    server: Kubectl,
) -> None:
    for name in DEFINITIONS:
        conditions = server.get("crd", name)["status"]["conditions"]
        assert {each["type"]: each["status"] for each in conditions} == {
            "NamesAccepted": "True",
            "Established": "True",
        }


def test_an_agent_may_be_mended_until_the_run_has_an_id_and_not_afterwards(
    server: Kubectl,
) -> None:
    made = agent_run(runKey="k")
    _send(server, made)
    mended = copy.deepcopy(made)
    mended["spec"]["agent"]["image"] = "registry.example/refunds:2"
    _send(server, mended)
    _patch_status(server, {"runId": "run-1"})
    assert "spec.agent cannot be changed once the run has an id" in _refusal(server, made)
    moved = copy.deepcopy(mended)
    moved["spec"]["isolation"] = "Dedicated"
    assert "spec.isolation cannot be changed once the run has an id" in _refusal(server, moved)
    renamed = copy.deepcopy(mended)
    renamed["spec"]["runKey"] = "other"
    assert "spec.runKey cannot be changed; create another AgentRun" in _refusal(server, renamed)


def test_a_cancelled_run_stays_cancelled(server: Kubectl) -> None:
    made = agent_run(desiredState="Cancelled")
    made["metadata"]["name"] = "cancelled"
    _send(server, made)
    made["spec"]["desiredState"] = "Running"
    assert "a cancelled run stays cancelled" in _refusal(server, made)


def _patch_status(server: Kubectl, status: dict[str, Any]) -> None:
    patch = json.dumps({"status": status})
    words = ("patch", "agentrun", "x", "-n", PLACE, "--subresource=status", "--type=merge")
    server(*words, "-p", patch)


def test_people_find_runs_by_short_name_and_category_with_readable_columns(
    server: Kubectl,
) -> None:
    made = agent_run()
    made["metadata"]["name"] = "listed"
    _send(server, made)
    header, *rows = server("get", "arun", "-n", PLACE).splitlines()
    assert header.split() == ["NAME", "STATUS", "TOOLS", "POOL", "POLICY", "AGE"]
    assert any(row.startswith("listed ") for row in rows)
    wait_until(
        lambda: "agentrun.aaa.dev/listed" in server("get", "aaa", "-n", PLACE, "-o", "name"),
        what="the category aaa to be discovered",
        timeout_s=30,
    )
    server("get", "tpol,tdec", "-n", PLACE)


@pytest.mark.parametrize("path", ["agentrun.spec", "toolpolicy.spec", "tooldecision.spec"])
def test_kubectl_explain_describes_every_field(server: Kubectl, path: str) -> None:
    said = server("explain", path)
    assert "<no description>" not in said
    fields = said.split("FIELDS:\n", 1)[1]
    named = [line for line in fields.splitlines() if "\t<" in line]
    described = [line for line in fields.splitlines() if line.startswith("    ")]
    assert named
    assert len(described) >= len(named)
