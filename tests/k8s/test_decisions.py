"""A decision is taken once, by whom it says, and only while that can be trusted."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from aaa_operator import actions as act
from aaa_operator.admission import EXPRESSION, judge_admission
from aaa_operator.observe import CallSeen, Problem
from k8s.scene import NOW_MS, World, raw_decision, raw_run

CALL = CallSeen(call_id="c2-0", tool="refund", args_digest="0123456789abcdef", since_ms=NOW_MS)


def _world(decision: dict[str, Any]) -> World:
    world = World.of(raw_run())
    world.begin()
    world.progress(waiting=(CALL,), unknown=(CALL,), requested=1)
    world.settle()
    world.put(decision)
    return world


def _decided(world: World) -> list[act.Decide]:
    found = []
    for action in world.plan().actions:
        if isinstance(action, act.Decide):
            found.append(action)
        else:
            world.carry_out(action)
    return found


@pytest.mark.parametrize(
    ("decision", "more"),
    [
        ("Approve", {}),
        ("Reject", {"reason": "too much"}),
        ("MarkDone", {"result": {"refunded": True}}),
        ("MarkNotDone", {}),
        ("Retry", {}),
    ],
)
def test_a_decision_that_fits_is_carried_to_the_store(decision: str, more: dict[str, Any]) -> None:
    world = _world(raw_decision(decision, **more))
    (decide,) = _decided(world)
    assert (decide.decision, decide.by, decide.call_id) == (decision, "ann", "c2-0")
    assert decide.result == more.get("result")
    assert bool(decide.expires_ms) is (decision == "Approve")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"runRef": {"name": "nobody", "uid": "x"}}, "False/RunMissing"),
        ({"runRef": {"name": "refund", "uid": "older"}}, "False/RunDiffers"),
        ({"argsDigest": "ffffffffffffffff"}, "False/DigestDiffers"),
        ({"expiresAt": "2020-01-01T00:00:00Z"}, "False/Expired"),
        ({"decision": "Perhaps"}, "False/InvalidSpec"),
        ({"result": {"a": 1}}, "False/InvalidSpec"),
    ],
)
def test_a_decision_that_does_not_fit_says_why_and_is_judged_once(
    spec: dict[str, Any], reason: str
) -> None:
    world = _world(raw_decision(**spec))
    assert _decided(world) == []
    assert world.condition("Accepted", "decided", "ToolDecision") == reason
    assert world.plan().actions == []


def test_a_digest_may_name_its_algorithm() -> None:
    world = _world(raw_decision(argsDigest="blake2b:0123456789abcdef"))
    (decide,) = _decided(world)
    assert decide.args_digest == "0123456789abcdef"


def test_no_decision_is_taken_while_nobody_can_tell_who_decided() -> None:
    world = _world(raw_decision())
    world.barred = Problem("AdmissionPolicyMissing", "install it")
    assert _decided(world) == []
    assert (
        world.condition("Accepted", "decided", "ToolDecision") == "Unknown/AdmissionPolicyMissing"
    )
    world.barred = None
    assert len(_decided(world)) == 1


def test_a_decision_waits_for_a_run_that_cannot_be_seen() -> None:
    world = World.of(raw_run(), raw_decision())
    world.settle()
    assert world.condition("Accepted", "decided", "ToolDecision") == "Unknown/AwaitingRun"


POLICY: dict[str, Any] = {
    "spec": {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": ["aaa.dev"],
                    "apiVersions": ["v1alpha1"],
                    "operations": ["CREATE"],
                    "resources": ["tooldecisions"],
                }
            ]
        },
        "validations": [{"expression": EXPRESSION}],
    }
}
BINDING: dict[str, Any] = {"spec": {"policyName": "p", "validationActions": ["Deny"]}}


def test_the_admission_policy_as_installed_is_trusted() -> None:
    assert judge_admission(POLICY, BINDING, name="p") is None
    wider = copy.deepcopy(POLICY)
    wider["spec"]["matchConstraints"]["resourceRules"][0]["apiVersions"] = ["*"]
    assert judge_admission(wider, BINDING, name="p") is None


def _changed(raw: dict[str, Any], *path: Any, to: Any) -> dict[str, Any]:
    found = copy.deepcopy(raw)
    where: Any = found
    for part in path[:-1]:
        where = where[part]
    where[path[-1]] = to
    return found


_RULE = ("spec", "matchConstraints", "resourceRules", 0)


@pytest.mark.parametrize(
    ("policy", "binding", "words"),
    [
        (None, BINDING, "Policy p is missing"),
        (POLICY, None, "Binding p is missing"),
        (_changed(POLICY, "spec", "failurePolicy", to="Ignore"), BINDING, "Policy p was changed"),
        (_changed(POLICY, "spec", "validations", to=[{"expression": "true"}]), BINDING, "changed"),
        (_changed(POLICY, "spec", "matchConditions", to=[{"name": "x"}]), BINDING, "changed"),
        (_changed(POLICY, *_RULE, "resourceNames", to=["one"]), BINDING, "changed"),
        (_changed(POLICY, *_RULE, "operations", to=["UPDATE"]), BINDING, "changed"),
        (
            _changed(POLICY, "spec", "matchConstraints", "namespaceSelector", to={"a": 1}),
            BINDING,
            "changed",
        ),
        (POLICY, _changed(BINDING, "spec", "validationActions", to=["Audit"]), "Binding p was"),
        (POLICY, _changed(BINDING, "spec", "policyName", to="q"), "Binding p was"),
        (POLICY, _changed(BINDING, "spec", "matchResources", to={"a": 1}), "Binding p was"),
    ],
)
def test_an_admission_policy_that_is_missing_or_changed_bars_decisions(
    policy: dict[str, Any] | None, binding: dict[str, Any] | None, words: str
) -> None:
    problem = judge_admission(policy, binding, name="p")
    assert problem is not None
    assert words in problem.message


def test_what_is_found_out_after_a_run_has_ended_stands_in_its_status() -> None:
    """The run told its model at once and went on; the effect is looked up a day later."""
    world = World.of(raw_run())
    world.begin()
    other = replace(CALL, call_id="c2-1")
    world.progress(status="completed", unknown=(CALL, other), requested=2, closed_ms=NOW_MS)
    world.settle()
    assert world.condition("Finished") == "True/Completed"
    assert world.condition("OutcomeUnknown") == "True/Waiting"
    before = world.status()
    world.put(raw_decision("MarkDone"))
    (decide,) = _decided(world)
    assert decide.call_id == "c2-0"
    taken = {"conditions": [{"type": "Accepted", "status": "True", "reason": "Taken"}]}
    world.put({**raw_decision("MarkDone"), "status": taken})
    world.progress(unknown=(other,))
    world.settle()
    assert [call["callId"] for call in world.status()["unknownOutcomes"]] == ["c2-1"]
    assert world.status()["toolCalls"]["unknown"] == 1
    world.progress(unknown=())
    world.settle()
    assert world.condition("OutcomeUnknown") == "False/None"
    assert "unknownOutcomes" not in world.status()
    kept = ("result", "completionTime", "runId", "pool")
    assert {key: world.status().get(key) for key in kept} == {key: before.get(key) for key in kept}
    assert world.plan().actions == []
