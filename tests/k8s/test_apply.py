"""The only writer: what it sends, what it makes of the answers, and one run from end to end."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from starlette.responses import JSONResponse

from aaa.client import Client
from aaa.errors import OutcomeUnknown
from aaa.tools import tool
from aaa_operator import actions as act
from aaa_operator import names
from aaa_operator.apply import Applier, Report
from aaa_operator.election import Election
from k8s.fake_api import FakeApi
from k8s.scene import NOW_MS, StoppedClock, raw_pod, raw_run
from k8s.shop import DEFAULTS, Shop, allow_decisions, decision


async def _carry_out(api: FakeApi, *actions: act.Action) -> Report:
    applier = Applier(api.api(), None, namespace="shop", now_ms=NOW_MS)
    return await applier.carry_out(actions)


def _status(version: str) -> act.WriteStatus:
    return act.WriteStatus(
        kind="AgentRun",
        name="refund",
        uid="uid-refund",
        resource_version=version,
        status={"runId": "r"},
        reason="test",
    )


async def test_a_status_is_written_only_over_the_version_that_was_looked_at() -> None:
    api = FakeApi()
    version = api.put(raw_run(status={"old": 1}))["metadata"]["resourceVersion"]
    first = await _carry_out(api, _status(version))
    assert (first.done, first.written) == (1, ["uid-refund"])
    assert api.get("AgentRun", "refund")["status"] == {"runId": "r"}
    second = await _carry_out(api, _status(version))
    assert (second.stale, second.failures, second.written) == (1, [], [])


async def test_a_failure_keeps_no_other_action_back_and_asks_for_patience() -> None:
    api = FakeApi()
    version = api.put(raw_run())["metadata"]["resourceVersion"]
    busy = JSONResponse({"reason": "TooMany"}, status_code=429, headers={"Retry-After": "7"})
    forbidden = JSONResponse({"message": "not allowed to patch"}, status_code=403)
    api.answers["PATCH", "Pod"] = [forbidden, busy]
    note = act.Annotate(kind="Pod", name="p", annotations={"a": "b"}, reason="test")
    report = await _carry_out(api, note, note, _status(version))
    assert report.done == 1
    assert len(report.failures) == 2
    assert "not allowed to patch" in report.failures[0]
    assert report.retry_after_s == 7.0


async def test_only_the_very_object_is_deleted_and_only_the_very_pod_evicted() -> None:
    api = FakeApi()
    pod = api.put(raw_pod("p", "aaa-1"))["metadata"]
    evidence = {"worker": "p-1-abc"}

    def evict(uid: str, version: str) -> act.Evict:
        return act.Evict(
            pod="p", uid=uid, resource_version=version, grace_s=1, evidence=evidence, reason="test"
        )

    for wrong in (evict("another", pod["resourceVersion"]), evict(pod["uid"], "0")):
        assert (await _carry_out(api, wrong)).stale == 1
    late = act.DeletePod(pod="p", uid="another", evidence=evidence, reason="test")
    assert (await _carry_out(api, late)).stale == 1
    assert not [key for key in api.objects if key[0] == "Event"]
    assert (await _carry_out(api, evict(pod["uid"], pod["resourceVersion"]))).done == 1
    (event,) = [raw for key, raw in api.objects.items() if key[0] == "Event"]
    assert event["reason"] == "FrozenWorker"
    assert event["metadata"]["annotations"]["aaa.dev/worker"] == "p-1-abc"


async def test_what_is_put_back_is_remembered_as_the_api_server_answered() -> None:
    from aaa_operator.render import digest

    api = FakeApi()
    template = {"spec": {"containers": [{"name": "worker"}]}}
    meta = {"name": "aaa-1"}
    version = api.put({"kind": "Deployment", "metadata": meta, "spec": {"template": {}}})
    api.put({"kind": "ControllerRevision", "metadata": dict(meta)})
    back = act.PutBack(
        name="aaa-1",
        resource_version=version["metadata"]["resourceVersion"],
        template=template,
        reason="test",
    )
    await _carry_out(api, back)
    assert api.get("Deployment", "aaa-1")["spec"]["template"] == template
    kept = api.get("ControllerRevision", "aaa-1")["metadata"]["annotations"]
    assert kept == {names.LIVE_TEMPLATE: digest(template)}


async def test_of_two_operators_one_leads_and_the_other_waits_its_turn() -> None:
    api = FakeApi()
    clock = StoppedClock()

    def election(me: str) -> Election:
        return Election(api.api(), namespace="shop", name="l", me=me, ttl_s=15, clock=clock)

    one, two = election("one"), election("two")
    assert await one._try()
    assert not await two._try()
    clock.boot += 14
    assert await one._try()  # renewed: the other's count begins again
    assert not await two._try()
    clock.boot += 14.9
    assert not await two._try()
    clock.boot += 0.2
    assert await two._try()
    assert not await one._try()
    assert api.get("Lease", "l")["spec"]["leaseTransitions"] == 2


# ------------------------------------------------------------------------------- from end to end


async def test_an_agent_run_is_refunded_once_with_one_persons_approval(redis_url: str) -> None:
    shop = Shop(redis_url)
    shop.api.put(raw_run())
    await shop.settled()
    assert shop.condition("Succeeded") == "Unknown/Pending"
    async with shop.engine():
        await shop.until("AwaitingApproval", "True/Waiting")
        await shop.restart()
        await shop.settled()
        shop.api.put(shop.approval())
        await shop.settled()
        at = {"kind": "ToolDecision", "name": "yes"}
        assert shop.condition("Accepted", **at) == "Unknown/AdmissionPolicyMissing"
        allow_decisions(shop.api)
        await shop.until("Accepted", "True/Taken", **at)
        await shop.until("Succeeded", "True/Completed")
    await shop.settled()
    run = shop.api.get("AgentRun", "refund")
    assert run["status"]["result"] == {"text": "done"}
    assert run["metadata"]["finalizers"] == []
    # As long as a worker's pod stands the store is looked at: it may freeze without a run, too.
    assert (await shop.operator.namespace.look()).in_s == DEFAULTS.store_look_s
    for raw in [raw for (kind, _, _), raw in shop.api.objects.items() if kind == "Pod"]:
        shop.operator.cluster.heard("Pod", raw, deleted=True)
    in_s = (await shop.operator.namespace.look()).in_s
    assert in_s is not None
    assert in_s > DEFAULTS.store_look_s
    await shop.close()


async def test_a_decision_that_was_taken_before_the_operator_died_counts_as_taken(
    redis_url: str,
) -> None:
    shop = Shop(redis_url)
    allow_decisions(shop.api)
    shop.api.put(raw_run())
    await shop.settled()
    async with shop.engine() as engine:
        await shop.until("AwaitingApproval", "True/Waiting")
        decision = shop.approval()
        spec = decision["spec"]
        run_id = shop.api.get("AgentRun", "refund")["status"]["runId"]
        await Client(engine.store).approve(
            run_id, spec["callId"], by="ann", args_digest=spec["argsDigest"]
        )
        shop.api.put(decision)
        other = {**decision, "metadata": {"name": "late", "generation": 1}}
        shop.api.put({**other, "spec": {**spec, "decidedBy": "bob"}})
        await shop.until("Accepted", "True/Taken", kind="ToolDecision", name="yes")
        await shop.until("Accepted", "False/Refused", kind="ToolDecision", name="late")
    await shop.close()


async def test_a_decision_about_a_call_that_the_run_does_not_have_is_refused_and_not_tried_again(
    redis_url: str,
) -> None:
    shop = Shop(redis_url)
    allow_decisions(shop.api)
    shop.api.put(raw_run())
    await shop.settled()
    async with shop.engine():
        await shop.until("AwaitingApproval", "True/Waiting")
        run = shop.api.get("AgentRun", "refund")
        (call,) = run["status"]["pendingApprovals"]
        wrong = {**call, "callId": "c9-9"}
        shop.api.put(decision(run, wrong, decision="MarkDone", reason="seen"))
        await shop.until("Accepted", "False/Refused", kind="ToolDecision", name="yes")
        assert not (await shop.operator.namespace.look()).failed
    await shop.close()


async def test_an_unknown_outcome_is_resolved_after_its_run_has_ended_and_both_objects_tell(
    redis_url: str,
) -> None:
    @tool(delivery="at_most_once")
    async def refund(order_id: str, note: str = "") -> dict[str, str]:
        raise OutcomeUnknown("the provider did not answer")

    shop = Shop(redis_url)
    allow_decisions(shop.api)
    shop.api.put(raw_run())
    await shop.settled()
    async with shop.engine(refund) as engine:
        await shop.until("Succeeded", "True/Completed")
        run = shop.api.get("AgentRun", "refund")
        (call,) = run["status"]["unknownOutcomes"]
        assert shop.condition("OutcomeUnknown") == "True/Waiting"
        shop.api.put(decision(run, call, decision="MarkDone", reason="seen at the provider"))
        at = {"kind": "ToolDecision", "name": "yes"}
        await shop.until("Accepted", "True/Taken", **at)
        await shop.until("OutcomeUnknown", "False/None")
        events = await Client(engine.store).events(run["status"]["runId"])
    (told,) = [event.data for event in events if event.type == "aaa.tool.resolved"]
    assert (told["by"], told["outcome"]) == ("ann", "done")
    status = shop.api.get("AgentRun", "refund")["status"]
    assert "unknownOutcomes" not in status
    assert status["toolCalls"]["unknown"] == 0
    await shop.close()


@pytest.mark.parametrize(
    ("secret", "reason"),
    [
        (None, "True/StoreSecretMissing"),
        ({"metadata": {"name": "aaa-store"}, "data": {}}, "True/StoreSecretMissing"),
        (
            {
                "metadata": {"name": "aaa-store", "labels": {names.STORE: ""}},
                "data": {"url": base64.b64encode(b"sqlite:////etc/passwd").decode()},
            },
            "True/StoreUrlRefused",
        ),
        (
            {
                "metadata": {"name": "aaa-store", "labels": {names.STORE: ""}},
                "data": {"url": base64.b64encode(b"redis://127.0.0.1:1/0").decode()},
            },
            "True/StoreUnreachable",
        ),
    ],
)
async def test_a_store_that_cannot_be_used_says_what_to_do(secret: Any, reason: str) -> None:
    shop = Shop("redis://127.0.0.1:1/0")
    del shop.api.objects["Secret", "shop", "aaa-store"]
    if secret is not None:
        shop.api.put({"kind": "Secret", **secret})
    shop.api.put(raw_run())
    await shop.settled()
    assert shop.condition("Stalled") == reason
    await shop.close()
