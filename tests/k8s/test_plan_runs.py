"""An AgentRun becomes one run in the store, is followed, and ends; nothing is written in vain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aaa_operator import actions as act
from aaa_operator import names
from aaa_operator.observe import CallSeen, Problem, StoreSeen, timestamp_of
from k8s.scene import NOW_MS, STORE, World, raw_pod, raw_run


def _kinds(actions: list[act.Action]) -> list[str]:
    return [type(action).__name__ for action in actions]


def test_a_run_gets_its_id_in_the_status_before_it_exists_anywhere() -> None:
    world = World.of(raw_run())
    world.settle()
    assert "runId" not in world.status()
    world.workers_speak(world.status()["pool"]["name"])
    first = world.plan().actions
    (write,) = [action for action in first if isinstance(action, act.WriteStatus)]
    assert write.resource_version == world.get("AgentRun", "refund")["metadata"]["resourceVersion"]
    assert write.status["runId"] == "run.refund.uid-refund"
    assert write.status["storeId"] == STORE
    assert not [action for action in first if isinstance(action, act.Submit | act.SetFinalizers)]


def test_from_an_object_to_its_end_and_then_nothing_is_left_to_do() -> None:
    world = World.of(raw_run())
    world.settle()
    assert world.condition("Succeeded") == "Unknown/Pending"
    assert world.created == []  # no worker has said yet what it serves
    pool = world.begin()
    assert world.created == ["run.refund.uid-refund"]
    assert world.condition("Succeeded") == "Unknown/Running"
    assert world.condition("WorkersReady") == "True/Ready"
    assert world.condition("PolicyResolved") == "True/NoPolicy"
    assert world.get("AgentRun", "refund")["metadata"]["finalizers"] == [names.FINALIZER]
    world.progress(status="completed", value={"text": "done"}, closed_ms=NOW_MS + 5_000)
    world.settle()
    assert world.condition("Succeeded") == "True/Completed"
    assert world.condition("Finished") == "True/Completed"
    assert world.status()["result"] == {"text": "done"}
    assert world.get("AgentRun", "refund")["metadata"]["finalizers"] == []
    assert world.get("Deployment", pool)["metadata"]["annotations"][names.APP]
    assert world.plan().actions == []


def test_a_run_that_goes_on_after_a_new_installation_is_held_again() -> None:
    """Uninstalling takes the finalizer off; without it a deletion would leave the run going."""
    world = World.of(raw_run())
    world.begin()
    raw = world.get("AgentRun", "refund")
    raw["metadata"]["finalizers"] = ["example.org/other"]
    world.put(raw)
    world.settle()
    held = world.get("AgentRun", "refund")["metadata"]["finalizers"]
    assert held == ["example.org/other", names.FINALIZER]
    assert world.created == ["run.refund.uid-refund"]


def test_every_step_can_be_the_operators_last_and_the_run_still_begins_once() -> None:
    steps = len(_begun(World.of(raw_run()), stop_after=None))
    for stop in range(steps):
        world = World.of(raw_run())
        _begun(world, stop_after=stop)
        world.written_ms.clear()  # a new process remembers nothing
        world.begin()
        assert world.created == ["run.refund.uid-refund"], f"stopped after {stop}"


def _begun(world: World, *, stop_after: int | None) -> list[act.Action]:
    """Carry out the way to a begun run, one action a plan, up to a number of actions."""
    taken: list[act.Action] = []
    for _ in range(100):
        if stop_after is not None and len(taken) >= stop_after:
            return taken
        todo = world.plan().actions
        if not todo:
            pool = world.status().get("pool", {}).get("name")
            if not pool or world.store.apps:
                return taken
            world.workers_speak(pool)
            continue
        world.carry_out(todo[0])
        taken.append(todo[0])
    raise AssertionError("never begun")


def test_a_run_that_the_store_has_lost_is_stalled_and_never_submitted_again() -> None:
    world = World.of(raw_run())
    world.begin()
    world.store = replace(world.store, runs={})
    assert not [action for action in world.settle() if isinstance(action, act.Submit)]
    assert world.condition("Stalled") == "True/StoreLost"
    assert world.condition("Succeeded") == "Unknown/Stalled"
    assert "create another AgentRun" in world.message("Stalled")


def test_another_store_is_never_given_a_run_that_began_elsewhere() -> None:
    world = World.of(raw_run())
    world.record()
    world.store = replace(world.store, identity="store-2")
    assert not [action for action in world.settle() if isinstance(action, act.Submit)]
    assert world.condition("Stalled") == "True/StoreLost"
    world.store = replace(world.store, identity=STORE)
    world.settle()
    assert world.created == ["run.refund.uid-refund"]
    assert world.condition("Stalled") == "False/No"


def test_a_restored_backup_of_the_objects_finds_the_run_that_is_there() -> None:
    world = World.of(raw_run())
    world.begin()
    old = world.get("AgentRun", "refund")
    status = {key: value for key, value in old["status"].items() if key != "startTime"}
    world.put({**old, "status": status})
    world.settle()
    assert world.created == ["run.refund.uid-refund"]
    assert world.status()["startTime"] == timestamp_of(NOW_MS)


def test_the_same_key_is_the_same_run_after_deleting_and_applying_again() -> None:
    keyed = {"runKey": "order-A-100"}
    world = World.of(raw_run(spec=keyed))
    world.begin()
    world.progress(status="completed", value=1, closed_ms=NOW_MS)
    world.objects.pop(("AgentRun", "refund"))
    world.put(raw_run(spec=keyed, metadata={"uid": "another"}))
    world.settle()
    assert world.created == ["key.order-A-100"]
    assert world.condition("Succeeded") == "True/Completed"
    world.put(raw_run("other", spec={**keyed, "input": {"task": "something else"}}))
    world.settle()
    assert world.condition("Stalled", "other") == "True/RunConflict"


@pytest.mark.parametrize(
    ("key", "run_id"),
    [("a-1", "key.a-1"), ("a:1", "key.a-1."), ("run.refund.uid", "key.run.refund.uid")],
)
def test_keys_and_names_never_meet_in_one_run_id(key: str, run_id: str) -> None:
    world = World.of(raw_run(spec={"runKey": key}))
    world.record()
    assert world.status()["runId"].startswith(run_id)


def test_input_that_changed_before_the_beginning_is_refused_and_afterwards_reported() -> None:
    world = World.of(raw_run())
    world.record()
    world.put({**world.get("AgentRun", "refund"), "spec": raw_run(spec={"input": {}})["spec"]})
    world.settle()
    assert world.created == []
    assert world.condition("Accepted") == "False/InputChanged"
    world.put({**world.get("AgentRun", "refund"), "spec": raw_run()["spec"]})
    world.begin()
    assert world.condition("Accepted") == "True/Accepted"
    world.put({**world.get("AgentRun", "refund"), "spec": raw_run(spec={"input": {}})["spec"]})
    world.settle()
    assert world.condition("Accepted") == "False/InputChanged"
    assert world.condition("Succeeded") == "Unknown/Running"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (None, "False/InputMissing"),
        ({"other.json": "{}"}, "False/InputMissing"),
        ({"input.json": "{"}, "False/InvalidInput"),
        ({"input.json": "[1]"}, "False/InvalidInput"),
        ({"input.json": '{"a": "' + "x" * 70_000 + '"}'}, "False/InvalidInput"),
        ({"input.json": '{"task": "x"}'}, "True/Accepted"),
    ],
)
def test_input_from_a_config_map(config: dict[str, str] | None, reason: str) -> None:
    world = World.of(raw_run(spec={"input": {"configMapRef": {"name": "given"}}}))
    if config is not None:
        world.put({"kind": "ConfigMap", "metadata": {"name": "given"}, "data": config})
    world.settle()
    assert world.condition("Accepted") == reason


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        ({"agent": {"app": "nothing"}}, "InvalidSpec", "module:attribute"),
        ({"agent": {"app": "a:b"}, "inptu": {}}, "UnknownField", "did you mean 'input'"),
        (
            {"agent": {"app": "a:b", "serviceAccountName": "admin"}},
            "ServiceAccountNotAllowed",
            "lacks the label",
        ),
        (
            {"agent": {"app": "a:b", "source": {"configMapRef": {"name": "code"}}}},
            "SourceMissing",
            "'code' does not exist",
        ),
        ({"store": {"secretRef": {"name": "mine"}}}, "StoreSecretMissing", "aaa.dev/store"),
        (
            {"agent": {"app": "a:b", "env": [{"name": "LD_PRELOAD", "value": "x"}]}},
            "InvalidSpec",
            "reserved",
        ),
    ],
)
def test_what_cannot_be_accepted_says_what_to_do_and_recovers(
    spec: dict[str, Any], reason: str, words: str
) -> None:
    world = World.of(raw_run(spec=spec))
    world.settle()
    assert world.condition("Accepted") == f"False/{reason}"
    assert words in world.message("Accepted")
    assert world.condition("Succeeded") == "Unknown/NotAccepted"
    assert world.of_kind("Deployment") == []
    world.put({**world.get("AgentRun", "refund"), "spec": raw_run()["spec"]})
    world.begin()
    assert world.condition("Accepted") == "True/Accepted"


def test_a_bad_image_can_be_mended_because_the_run_has_no_id_before_workers_come_up() -> None:
    world = World.of(raw_run(spec={"agent": {"app": "shop.agent:app", "image": "shop:typo"}}))
    world.settle()
    bad = world.status()["pool"]["name"]
    waiting = {"reason": "ImagePullBackOff", "message": "not found"}
    world.put(raw_pod(f"{bad}-0", bad, ready=False, state={"waiting": waiting}))
    world.settle()
    assert "runId" not in world.status()
    assert "cannot be pulled" in world.message("Succeeded")
    world.put({**world.get("AgentRun", "refund"), "spec": raw_run()["spec"]})
    assert world.begin() != bad
    assert world.condition("WorkersReady") == "True/Ready"
    world.now_ms += 60_000
    world.settle()
    assert [raw["metadata"]["name"] for raw in world.of_kind("Deployment")] != [bad]
    assert len(world.of_kind("Deployment")) == 1


def test_a_person_is_waited_for_and_named_in_the_status() -> None:
    world = World.of(raw_run())
    world.begin()
    call = CallSeen(call_id="c2-0", tool="refund", args_digest="0123456789abcdef", since_ms=NOW_MS)
    world.progress(requested=1, waiting=(call,))
    world.settle()
    assert world.condition("AwaitingApproval") == "True/Waiting"
    assert world.condition("Succeeded") == "Unknown/AwaitingApproval"
    (pending,) = world.status()["pendingApprovals"]
    assert (pending["callId"], pending["argsDigest"]) == ("c2-0", "0123456789abcdef")
    world.progress(waiting=(), unknown=(call,))
    world.settle()
    assert world.condition("OutcomeUnknown") == "True/Waiting"
    assert world.condition("Succeeded") == "Unknown/OutcomeUnknown"
    assert "pendingApprovals" not in world.status()
    assert world.status()["toolCalls"]["unknown"] == 1


def test_counters_alone_are_written_once_in_ten_seconds_at_most() -> None:
    world = World.of(raw_run())
    world.begin()
    before = world.get("AgentRun", "refund")["metadata"]["resourceVersion"]
    world.now_ms += 4_000
    world.progress(requested=1, running=1, busy=1)
    plan = world.plan()
    assert plan.actions == []
    assert plan.again_in_ms == 6_000
    world.now_ms += 6_000
    world.settle()
    assert world.status()["toolCalls"]["running"] == 1
    assert world.get("AgentRun", "refund")["metadata"]["resourceVersion"] != before


def test_a_long_result_stands_by_reference() -> None:
    world = World.of(raw_run())
    world.begin()
    world.progress(status="completed", value="x" * 9_000, closed_ms=NOW_MS)
    world.settle()
    assert world.status()["result"]["truncated"] is True


@pytest.mark.parametrize(("wished", "verb"), [("Suspended", "suspend"), ("Cancelled", "cancel")])
def test_the_desired_state_reaches_the_store_once(wished: str, verb: str) -> None:
    world = World.of(raw_run())
    world.begin()
    run = world.get("AgentRun", "refund")
    world.put({**run, "spec": {**run["spec"], "desiredState": wished}})
    controls = [action for action in world.settle() if isinstance(action, act.Control)]
    assert [control.verb for control in controls] == [verb]


def test_a_suspended_run_is_not_begun_and_goes_on_when_it_may() -> None:
    world = World.of(raw_run(spec={"desiredState": "Suspended"}))
    world.settle()
    assert world.condition("Suspended") == "True/NotBegun"
    assert world.of_kind("Deployment") == []
    run = world.get("AgentRun", "refund")
    world.put({**run, "spec": {**run["spec"], "desiredState": "Running"}})
    world.begin()
    assert world.condition("Suspended") == "False/No"


def test_a_run_cancelled_before_it_began_is_finished_without_a_trace_in_the_store() -> None:
    world = World.of(raw_run(spec={"desiredState": "Cancelled"}))
    world.settle()
    assert world.condition("Finished") == "True/Cancelled"
    assert world.created == []
    assert world.of_kind("Deployment") == []


def test_an_unreachable_store_stalls_the_run_and_tells_no_lies_about_it() -> None:
    world = World.of(raw_run())
    world.begin()
    call = CallSeen(call_id="c2-0", tool="refund", args_digest="d", since_ms=NOW_MS)
    world.progress(waiting=(call,), requested=1)
    world.settle()
    seen = world.store
    world.store = StoreSeen(problem=Problem("StoreUnreachable", "no answer from redis"))
    world.settle()
    assert world.condition("Stalled") == "True/StoreUnreachable"
    assert world.condition("AwaitingApproval") == "True/Waiting"
    assert world.status()["toolCalls"]["requested"] == 1
    world.store = seen
    world.settle()
    assert world.condition("Stalled") == "False/No"


def test_a_parked_run_is_stalled_with_the_reason() -> None:
    world = World.of(raw_run())
    world.begin()
    world.progress(parked=True, parked_because="decide() raised KeyError")
    world.settle()
    assert world.condition("Stalled") == "True/Parked"
    assert "KeyError" in world.message("Stalled")


def test_a_finished_run_goes_after_its_time_and_not_before() -> None:
    world = World.of(raw_run(spec={"ttlSecondsAfterFinished": 60}))
    world.begin()
    world.progress(status="failed", error="ToolError", message="no", closed_ms=NOW_MS)
    world.settle()
    assert world.condition("Succeeded") == "False/Failed"
    assert world.message("Succeeded") == "ToolError: no"
    world.now_ms = NOW_MS + 59_000
    plan = world.plan()
    assert (plan.actions, plan.again_in_ms) == ([], 1_000)
    world.now_ms = NOW_MS + 60_000
    (delete,) = [
        action
        for action in world.settle()
        if isinstance(action, act.Delete) and action.kind == "AgentRun"
    ]
    assert delete.uid == "uid-refund"


def _deleted(policy: str, **spec: Any) -> World:
    world = World.of(raw_run(spec={"deletionPolicy": policy, "drainTimeoutSeconds": 30, **spec}))
    world.begin()
    world.progress(running=1, busy=1, requested=1)
    raw = world.get("AgentRun", "refund")
    world.put({**raw, "metadata": {**raw["metadata"], "deletionTimestamp": timestamp_of(NOW_MS)}})
    return world


@pytest.mark.parametrize(
    ("policy", "terminating", "store", "gone_after_s"),
    [
        ("Drain", False, True, 330),
        ("DrainThenForce", False, True, 30),
        ("Force", False, True, 0),
        ("Drain", True, True, 0),
        ("Drain", False, False, 330),
        ("DrainThenForce", False, False, 30),
        ("Force", False, False, 30),
        ("Drain", True, False, 0),
    ],
)
def test_a_deletion_always_ends(
    policy: str, terminating: bool, store: bool, gone_after_s: int
) -> None:
    world = _deleted(policy)
    world.terminating = terminating
    if not store:
        world.store = StoreSeen(problem=Problem("StoreUnreachable", "no answer"))
    if gone_after_s:
        world.settle()
        world.now_ms = NOW_MS + gone_after_s * 1000 - 1_000
        world.settle()
        assert world.plan().again_in_ms is not None
        assert ("AgentRun", "refund") in world.objects
    world.now_ms = NOW_MS + gone_after_s * 1000
    world.settle()
    assert ("AgentRun", "refund") not in world.objects


def test_a_deleted_run_is_cancelled_and_released_when_its_calls_have_settled() -> None:
    world = _deleted("Drain")
    (cancel,) = world.settle()
    assert isinstance(cancel, act.Control)
    world.progress(status="cancelled", running=0, busy=0, closed_ms=NOW_MS)
    world.settle()
    assert ("AgentRun", "refund") not in world.objects


def test_a_deletion_of_what_never_began_or_has_ended_waits_for_nothing() -> None:
    never = World.of(raw_run(metadata={"deletionTimestamp": timestamp_of(NOW_MS)}))
    assert never.plan().actions == []  # it has no finalizer of ours
    half = World.of(raw_run())
    half.record()
    raw = half.get("AgentRun", "refund")
    half.put(
        {
            **raw,
            "metadata": {
                **raw["metadata"],
                "finalizers": [names.FINALIZER],
                "deletionTimestamp": timestamp_of(NOW_MS),
            },
        }
    )
    assert not [action for action in half.settle() if isinstance(action, act.Submit)]
    assert ("AgentRun", "refund") not in half.objects


def test_a_thousand_runs_share_one_pool_and_nothing_is_made_per_run() -> None:
    world = World.of(*(raw_run(f"run-{number}") for number in range(200)))
    actions = world.settle()
    assert len([a for a in actions if isinstance(a, act.Apply)]) == 4
    assert len([a for a in actions if isinstance(a, act.WriteStatus)]) <= 2 * 200
    assert world.plan().actions == []
    assert "Submit" not in _kinds(actions)
