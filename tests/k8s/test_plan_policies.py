"""Policies bind by their selector alone, fail closed, and only grow while a run lives."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from aaa.client import ToolLayers
from aaa.policy import PolicyLayers
from aaa_operator.binding import against, bind, config_data, conflict, layers_in
from aaa_operator.observe import PoolCode, policy_of, run_of
from k8s.scene import World, raw_policy, raw_run

AT_MOST_ONCE = [{"name": "refund", "delivery": "AtMostOnce"}]


def _bind(*policies: dict[str, Any], run: dict[str, Any] | None = None) -> Any:
    return bind(run_of(run or raw_run()), [policy_of(raw) for raw in policies])


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ({}, ("payments",)),
        ({"matchLabels": {"team": "payments"}}, ("payments",)),
        ({"matchLabels": {"team": "other"}}, ()),
        ({"matchExpressions": [{"key": "team", "operator": "Exists"}]}, ("payments",)),
        ({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, ()),
    ],
)
def test_the_selector_alone_binds(selector: dict[str, Any], names: tuple[str, ...]) -> None:
    binding = _bind(raw_policy(selector=selector))
    assert (binding.names, binding.problem) == (names, None)


def test_the_hash_is_that_of_what_is_said_and_not_of_the_order() -> None:
    first, second = raw_policy("a", tools=AT_MOST_ONCE), raw_policy("b", unlistedTools="Deny")
    assert _bind(first, second).hash == _bind(second, first).hash != _bind(first).hash


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (
            {"tools": [{"name": "refund", "maxAttempts": 2}]},
            {"tools": [{"name": "refund", "maxAttempts": 3}]},
            ("refund", "max_attempts", "'a'", "'b'"),
        ),
        ({"defaults": {"delivery": "AtMostOnce"}}, {"defaults": {"delivery": "AtLeastOnce"}}, ("'a'",)),
        ({"unlistedTools": "Allow"}, {"unlistedTools": "Deny"}, ("unlisted_tools",)),
        (
            {"tools": [{"name": "re*", "timeoutSeconds": 2}]},
            {"tools": [{"name": "ref*", "timeoutSeconds": 3}]},
            ("timeout_s",),
        ),
        (
            {"tools": [{"name": "refund", "leaseTtlSeconds": 5}]},
            {"tools": [{"name": "refund", "heartbeatSeconds": 9}]},
            ("heartbeat_s",),
        ),
    ],
)  # fmt: skip
def test_a_contradiction_is_found_before_any_worker_knows(
    one: dict[str, Any], other: dict[str, Any], words: tuple[str, ...]
) -> None:
    problem = _bind(raw_policy("a", **one), raw_policy("b", **other)).problem
    assert problem is not None
    assert problem.reason == "PolicyConflict"
    for word in words:
        assert word in problem.message


def test_entries_that_agree_or_speak_of_other_tools_are_no_conflict() -> None:
    same = _bind(raw_policy("a", tools=AT_MOST_ONCE), raw_policy("b", tools=AT_MOST_ONCE))
    assert same.problem is None
    assert conflict(PolicyLayers()) is None


@pytest.mark.parametrize(
    ("refs", "reason", "words"),
    [
        ([{"name": "payments"}], None, ""),
        ([{"name": "missing"}], "PolicyMissing", "does not exist"),
        ([{"name": "unbound"}], "PolicyMissing", "does not select"),
    ],
)
def test_a_policy_that_is_referred_to_must_be_bound(
    refs: list[dict[str, str]], reason: str | None, words: str
) -> None:
    unbound = raw_policy("unbound", selector={"matchLabels": {"team": "x"}})
    binding = _bind(raw_policy(), unbound, run=raw_run(spec={"policyRefs": refs}))
    assert (binding.problem and binding.problem.reason) == reason
    assert words in (binding.problem.message if binding.problem else "")


@pytest.mark.parametrize(
    ("spec", "reason", "holds_back"),
    [
        ({"tools": [{"name": "refund", "maxAttemps": 1}]}, "UnknownField", True),
        ({"defaults": {"delivry": "AtMostOnce"}}, "UnknownField", True),
        ({"selector": {"matchLabel": {"team": "payments"}}}, "UnknownField", True),
        ({"tools": [{"name": "re*fund"}]}, "InvalidSpec", True),
        ({"selector": {"matchLabels": {"team": "x"}}, "tols": []}, "UnknownField", False),
    ],
)
def test_a_misspelt_policy_is_refused_and_what_it_may_be_meant_for_does_not_start(
    spec: dict[str, Any], reason: str, holds_back: bool
) -> None:
    world = World.of(raw_run(), raw_policy(**spec))
    world.settle()
    assert world.condition("Accepted", "payments", "ToolPolicy") == f"False/{reason}"
    assert world.condition("Propagated", "payments", "ToolPolicy") == "False/NotAccepted"
    resolved = "False/PolicyNotAccepted" if holds_back else "True/NoPolicy"
    assert world.condition("PolicyResolved") == resolved
    assert bool(world.of_kind("Deployment")) is not holds_back


def test_a_run_begins_only_when_the_workers_have_acknowledged_its_policy() -> None:
    world = World.of(raw_run(), raw_policy(tools=AT_MOST_ONCE))
    world.settle()
    pool = world.status()["pool"]["name"]
    assert world.condition("PolicyResolved") == "Unknown/AwaitingWorkers"
    assert world.condition("Propagated", "payments", "ToolPolicy") == "False/AwaitingWorkers"
    data = world.get("ConfigMap", f"{pool}-policy")["data"]
    hash_ = world.status()["policy"]["hash"]
    (said,) = [json.loads(text) for key, text in data.items() if key == f"{hash_}.json"]
    assert said["policies"][0]["tools"][0]["settings"] == {"delivery": "at_most_once"}
    world.begin()
    assert world.condition("PolicyResolved") == "True/Resolved"
    assert world.condition("Propagated", "payments", "ToolPolicy") == "True/Acknowledged"
    assert world.status("payments", "ToolPolicy")["boundRuns"] == 1
    assert world.status()["policy"]["name"] == "payments"


def test_a_policy_that_comes_between_the_id_and_the_beginning_is_waited_for() -> None:
    world = World.of(raw_run())
    pool = world.record()
    world.put(raw_policy(tools=AT_MOST_ONCE))
    world.settle()
    assert world.created == []
    world.workers_speak(pool)
    world.settle()
    assert len(world.created) == 1


def test_a_changed_policy_reaches_the_pods_without_a_new_template() -> None:
    world = World.of(raw_run(), raw_policy(tools=AT_MOST_ONCE))
    pool = world.begin()
    template = world.get("Deployment", pool)["spec"]["template"]
    mark = world.get("Pod", f"{pool}-0")["metadata"]["annotations"]
    old = world.status()["policy"]["hash"]
    assert [run.policy for run in world.store.runs.values()] == [old]
    world.put(raw_policy(tools=[{"name": "refund", "maxAttempts": 2}]))
    world.settle()
    new = world.status()["policy"]["hash"]
    assert new != old
    assert [run.policy for run in world.store.runs.values()] == [new]  # nothing runs under the old
    assert world.condition("PolicyResolved") == "Unknown/AwaitingWorkers"
    assert world.get("Pod", f"{pool}-0")["metadata"]["annotations"] != mark
    assert world.get("Deployment", pool)["spec"]["template"] == template
    world.workers_speak(pool)
    world.settle()
    assert world.condition("PolicyResolved") == "True/Resolved"


def test_a_deleted_policys_last_word_stays_in_force_for_started_runs() -> None:
    world = World.of(raw_run(), raw_policy(tools=AT_MOST_ONCE))
    pool = world.begin()
    hash_ = world.status()["policy"]["hash"]
    world.objects.pop(("ToolPolicy", "payments"))
    world.settle()
    assert world.status()["policy"]["hash"] == hash_
    assert f"{hash_}.json" in world.get("ConfigMap", f"{pool}-policy")["data"]


def test_a_run_that_began_unbound_is_bound_by_a_policy_that_comes_later() -> None:
    world = World.of(raw_run())
    world.begin()
    world.put(raw_policy(tools=AT_MOST_ONCE))
    world.settle()
    assert world.status()["policy"]["name"] == "payments"


def test_a_label_that_went_unbinds_no_started_run() -> None:
    world = World.of(raw_run(), raw_policy(tools=AT_MOST_ONCE))
    world.begin()
    raw = world.get("AgentRun", "refund")
    world.put({**raw, "metadata": {**raw["metadata"], "labels": {}}})
    world.settle()
    assert world.status()["policy"]["name"] == "payments"


def test_a_contradiction_in_a_started_run_leaves_the_last_word_in_force_and_names_both() -> None:
    world = World.of(raw_run(), raw_policy(tools=AT_MOST_ONCE))
    pool = world.begin()
    hash_ = world.status()["policy"]["hash"]
    world.put(raw_policy("other", tools=[{"name": "refund", "delivery": "AtLeastOnce"}]))
    world.settle()
    assert world.status()["policy"]["hash"] == hash_
    assert world.condition("PolicyResolved") == "False/PolicyConflict"
    for policy in ("payments", "other"):
        assert world.condition("Propagated", policy, "ToolPolicy") == "False/PolicyConflict"
        assert "'other'" in world.message("Propagated", policy, "ToolPolicy")
    assert list(world.get("ConfigMap", f"{pool}-policy")["data"]) == [f"{hash_}.json"]


def test_a_policy_that_became_unreadable_leaves_started_runs_as_they_were() -> None:
    world = World.of(raw_run(), raw_policy(tools=AT_MOST_ONCE))
    world.begin()
    hash_ = world.status()["policy"]["hash"]
    world.put(raw_policy(tols=[]))
    world.settle()
    assert world.status()["policy"]["hash"] == hash_
    assert world.condition("Succeeded") == "Unknown/Running"


def test_layers_that_were_edited_by_hand_are_not_believed() -> None:
    layers = PolicyLayers(policies=[rules for rules in [policy_of(raw_policy()).rules] if rules])
    data = config_data([layers])
    assert layers_in({"data": data}, layers.hash) == layers
    for text in ("{", '{"policies": []}', '{"policies": [], "x": 1}'):
        assert layers_in({"data": dict.fromkeys(data, text)}, layers.hash) is None
    assert layers_in(None, layers.hash) is None


REFUND = ToolLayers(name="refund", schema="s", decorator={"lease_ttl_s": 5.0})


def test_an_entry_that_no_tool_matches_is_said_and_goes_when_the_tool_is_there() -> None:
    """A misspelt name must not read as protection."""
    entries = [{"name": "refnd", "requiresApproval": True}, {"name": "re*", "maxAttempts": 2}]
    world = World.of(raw_run(), raw_policy(tools=entries))
    pool = world.begin()
    assert world.condition("ToolsMatched", "payments", "ToolPolicy") == "Unknown/AwaitingWorkers"
    world.code_is(pool, REFUND)
    world.settle()
    assert world.condition("ToolsMatched", "payments", "ToolPolicy") == "False/UnmatchedTools"
    assert world.status("payments", "ToolPolicy")["unmatchedTools"] == ["refnd"]
    said = world.message("ToolsMatched", "payments", "ToolPolicy")
    assert said.startswith("refnd: no tool of a bound run has such a name")
    assert said.endswith("(their tools are refund)")
    world.store = replace(world.store, code={})  # scaled to zero: what was found still holds
    world.settle()
    assert world.status("payments", "ToolPolicy")["unmatchedTools"] == ["refnd"]
    world.code_is(pool, REFUND, ToolLayers(name="refnd", schema="s"))
    world.settle()
    assert world.condition("ToolsMatched", "payments", "ToolPolicy") == "True/Matched"
    assert "unmatchedTools" not in world.status("payments", "ToolPolicy")
    assert world.plan().actions == []


def test_a_policy_that_does_not_fit_the_code_keeps_a_run_from_beginning_until_it_is_changed() -> (
    None
):
    world = World.of(raw_run(), raw_policy(tools=[{"name": "refund", "heartbeatSeconds": 9}]))
    world.settle()
    pool = str(world.status()["pool"]["name"])
    world.code_is(pool, REFUND)
    world.workers_speak(pool)
    world.settle()
    assert world.created == []
    assert world.condition("PolicyResolved") == "False/MergeRefused"
    assert "heartbeat_s" in world.message("PolicyResolved")
    world.now_ms += 3_600_000  # the pool goes, and its workers' word with it: the verdict stays
    world.store = replace(world.store, code={}, apps={}, acknowledged={})
    world.settle()
    world.now_ms += 3_600_000
    world.settle()
    assert world.of_kind("Deployment") == []
    assert world.condition("PolicyResolved") == "False/MergeRefused"
    world.put(raw_policy(tools=[{"name": "refund", "heartbeatSeconds": 1}]))
    world.settle()
    world.code_is(pool, REFUND)
    world.begin()
    assert world.condition("PolicyResolved") == "True/Resolved"


def test_a_policy_that_stops_fitting_leaves_the_former_one_in_force() -> None:
    world = World.of(raw_run(), raw_policy(tools=AT_MOST_ONCE))
    pool = world.begin()
    world.code_is(pool, REFUND)
    hash_ = world.status()["policy"]["hash"]
    world.put(raw_policy(tools=[{"name": "refund", "heartbeatSeconds": 9}]))
    world.settle()
    assert world.status()["policy"]["hash"] == hash_
    assert world.condition("PolicyResolved") == "False/MergeRefused"
    assert list(world.get("ConfigMap", f"{pool}-policy")["data"]) == [f"{hash_}.json"]


def test_a_default_of_the_namespace_loosens_nothing_that_the_code_protects_and_an_entry_does() -> (
    None
):
    """What the operator says is what the worker does: one and the same merge."""
    pay = ToolLayers(name="pay", schema="s", decorator={"delivery": "at_most_once"})
    default = policy_of(raw_policy("a", defaults={"delivery": "AtLeastOnce"})).rules
    entry = policy_of(raw_policy("b", tools=[{"name": "pay", "delivery": "AtLeastOnce"}])).rules
    assert default is not None and entry is not None  # noqa: PT018 - narrows both
    assert pay.settings([default]).guard.delivery == "at_most_once"
    assert pay.settings([entry]).guard.delivery == "at_least_once"
    assert against(PolicyLayers(policies=[entry]), PoolCode(digest="d", tools=(pay,))) is None
