"""From a ToolPolicy's manifest to the rules that are merged, and whom it binds."""

from __future__ import annotations

import pytest

from aaa.manifest import LabelSelector, Source, ToolPolicy, load_manifests, parse_manifest
from aaa.manifest.problems import ManifestErrors
from aaa.policy import ToolEntry, ToolPolicyRules, compile_settings

POLICY = """\
apiVersion: aaa.dev/v1alpha1
kind: ToolPolicy
metadata: {name: payments}
spec:
  selector: {matchLabels: {team: payments}}
  defaults: {leaseTtlSeconds: 30, heartbeatSeconds: 5, waitPollMilliseconds: 250}
  unlistedTools: Deny
  tools:
  - name: refund
    delivery: AtMostOnce
    onLostLease: Finish
    fenceResults: false
    requiresApproval: true
    timeoutSeconds: 20
    idempotencyKey: refund:{order_id}
  - name: search*
    enabled: true
    maxAttempts: 2
"""


def test_a_policy_says_the_same_in_the_runtime_s_words() -> None:
    (policy,) = load_manifests(POLICY, file="f.yaml")
    assert isinstance(policy, ToolPolicy)
    rules = policy.rules()
    assert rules == ToolPolicyRules(
        name="payments",
        defaults={"lease_ttl_s": 30, "heartbeat_s": 5, "wait_poll_s": 0.25},
        unlisted_tools="deny",
        tools=[
            ToolEntry(
                name="refund",
                settings={
                    "delivery": "at_most_once",
                    "on_lost_lease": "finish",
                    "fence_results": False,
                    "requires_approval": True,
                    "timeout_s": 20,
                    "idempotency_key": "refund:{order_id}",
                },
            ),
            ToolEntry(name="search*", settings={"enabled": True, "max_attempts": 2}),
        ],
    )
    merged = compile_settings("refund", policies=[rules])
    assert merged.idempotency_key_template == "refund:{order_id}"
    assert merged.origins["lease_ttl_s"] == "policy payments defaults"


def test_false_and_zero_are_said_and_absent_is_not() -> None:
    text = POLICY.replace("enabled: true", "requiresApproval: false").replace(
        "maxAttempts: 2", "fenceResults: false"
    )
    (policy,) = load_manifests(text, file="f.yaml")
    assert isinstance(policy, ToolPolicy)
    assert policy.rules().tools[1].settings == {"fence_results": False, "requires_approval": False}


@pytest.mark.parametrize(
    ("selector", "labels", "matches"),
    [
        ({}, {}, True),
        ({}, {"a": "b"}, True),
        ({"matchLabels": {"a": "b"}}, {"a": "b", "c": "d"}, True),
        ({"matchLabels": {"a": "b"}}, {"a": "c"}, False),
        ({"matchLabels": {"a": "b"}}, {}, False),
        (
            {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "c"]}]},
            {"a": "c"},
            True,
        ),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}, {}, False),
        (
            {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]},
            {"a": "b"},
            False,
        ),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}, {}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"a": ""}, True),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, {"a": ""}, False),
        (
            {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "Exists"}]},
            {"a": "b"},
            False,
        ),
    ],
)
def test_a_selector_binds_as_kubernetes_does(
    selector: dict[str, object], labels: dict[str, str], matches: bool
) -> None:
    assert LabelSelector.model_validate(selector).matches(labels) is matches


def test_an_object_from_the_api_server_is_judged_by_the_same_rules_without_a_file() -> None:
    value = {
        "apiVersion": "aaa.dev/v1alpha1",
        "kind": "ToolPolicy",
        "metadata": {"name": "payments"},
        "spec": {"selector": {}, "unlistedTool": "Deny"},
    }
    with pytest.raises(ManifestErrors) as caught:
        parse_manifest(value)
    assert str(caught.value) == (
        "spec.unlistedTool: is not a field here; did you mean 'unlistedTools'?"
    )
    value["spec"] = {"selector": {}}
    assert parse_manifest(value, source=Source(file="x")).source.file == "x"
