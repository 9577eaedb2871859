"""The only writer: what it sends, what it makes of the answers, and one run from end to end."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from starlette.responses import JSONResponse

from aaa.algos import ToolLoop
from aaa.client import Client
from aaa.llm import LLMHandler
from aaa.llm.fake import FakeLLMClient, text, tool_call
from aaa.llm.messages import ModelReply, ModelRequest
from aaa.policy import PolicyLayers
from aaa.runtime import Engine
from aaa.tools import ToolHandler, ToolRegistry, tool
from aaa_operator import actions as act
from aaa_operator import names
from aaa_operator.admission import EXPRESSION, binding_path, policy_path
from aaa_operator.apply import Applier, Report
from aaa_operator.cluster import Cluster
from aaa_operator.election import Election
from aaa_operator.namespace import Namespace
from aaa_operator.settings import Settings
from k8s.fake_api import FakeApi
from k8s.scene import NOW_MS, SETTINGS, defaulted, raw_pod, raw_run

BOUND_S = 20


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
    clock = _Clock()

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


class _Clock:
    boot = 1_000.0

    def now_ms(self) -> int:
        return NOW_MS

    def boot_s(self) -> float:
        return self.boot

    async def sleep(self, seconds: float) -> None:
        self.boot += seconds

    def token(self) -> str:
        return "0" * 16


# ------------------------------------------------------------------------------- from end to end


@tool(requires_approval=True)
async def refund(order_id: str) -> dict[str, str]:
    """Refund an order."""
    return {"refunded": order_id}


def _model(request: ModelRequest) -> ModelReply:
    if request.messages[-1].role == "tool":
        return text("done")
    return tool_call("refund", order_id="A-100")


class _Shop:
    """A namespace on a fake API server, with a real Redis and a real engine as its worker."""

    def __init__(self, url: str) -> None:
        self.api, self.cluster = FakeApi(), Cluster()
        self.url = url
        self.namespace = self._operator()
        self.api.others["/api/v1/namespaces/shop"] = {"metadata": {"uid": "ns-uid"}}
        self.api.put(
            {
                "kind": "Secret",
                "metadata": {"name": "aaa-store", "labels": {names.STORE: ""}},
                "data": {"url": base64.b64encode(url.encode()).decode()},
            }
        )

    def _operator(self) -> Namespace:
        return Namespace(
            "shop",
            api=self.api.api(),
            cluster=self.cluster,
            settings=Settings(pools=SETTINGS),
            canary="operator.one",
        )

    async def restart(self) -> None:
        """Another operator process: it remembers nothing."""
        await self.namespace.close()
        self.cluster = Cluster()
        for (kind, _, _), raw in self.api.objects.items():
            self.api.changes.append((kind, raw, False))
        self.namespace = self._operator()

    async def look(self) -> None:
        """Deliver what the watch has, and what controllers would have done; then look once."""
        for kind, raw, deleted in self.api.changes:
            if kind not in ("Secret", "Event", "Lease"):
                self.cluster.heard(kind, raw, deleted=deleted)
        self.api.changes.clear()
        await self.namespace.look()
        for (kind, _, name), raw in list(self.api.objects.items()):
            if kind == "Deployment" and "dnsPolicy" not in raw["spec"]["template"]["spec"]:
                template = defaulted(raw["spec"]["template"])
                self.api.put({**raw, "spec": {**raw["spec"], "template": template}})
                self.api.put(raw_pod(f"{name}-0", name))

    def condition(self, type_: str, kind: str = "AgentRun", name: str = "refund") -> str:
        found = (self.api.get(kind, name).get("status") or {}).get("conditions") or []
        return next((f"{c['status']}/{c['reason']}" for c in found if c["type"] == type_), "")

    async def until(self, type_: str, wanted: str, **at: str) -> None:
        async with asyncio.timeout(BOUND_S):
            while self.condition(type_, **at) != wanted:
                await self.look()
                await asyncio.sleep(0.02)

    async def settled(self) -> None:
        """Look until nothing is written any more."""
        async with asyncio.timeout(BOUND_S):
            before = -1
            while before != len(self.api.writes):
                before = len(self.api.writes)
                await self.look()

    def engine(self) -> Engine:
        """A worker of the pool, as it would run in its pod."""
        pool = self.api.get("AgentRun", "refund")["status"]["pool"]["name"]
        engine = Engine(self.url, app=pool, worker=f"{pool}-0-7-abc")
        registry = ToolRegistry([refund])
        LLMHandler(FakeLLMClient(_model)).attach(engine)
        ToolHandler(registry).attach(engine)
        engine.serve(ToolLoop(registry))
        data = self.api.get("ConfigMap", f"{pool}-policy")["data"]
        layers = [PolicyLayers.from_json(json.loads(text)) for text in data.values()]
        engine.follow_policies({one.hash: one for one in layers})
        return engine


def _admission(shop: _Shop) -> None:
    name = Settings(pools=SETTINGS).admission_policy
    rule = {
        "apiGroups": ["aaa.dev"],
        "apiVersions": ["v1alpha1"],
        "operations": ["CREATE"],
        "resources": ["tooldecisions"],
    }
    shop.api.others[policy_path(name)] = {
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": EXPRESSION}],
        }
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    shop.api.others[binding_path(name)] = {"spec": binding}


def _decision(shop: _Shop) -> dict[str, Any]:
    run = shop.api.get("AgentRun", "refund")
    (call,) = run["status"]["pendingApprovals"]
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ToolDecision",
        "metadata": {"name": "yes", "generation": 1},
        "spec": {
            "runRef": {"name": "refund", "uid": run["metadata"]["uid"]},
            "callId": call["callId"],
            "argsDigest": call["argsDigest"],
            "decision": "Approve",
            "decidedBy": "ann",
            "expiresAt": "2999-01-01T00:00:00Z",
        },
    }


async def test_an_agent_run_is_refunded_once_with_one_persons_approval(redis_url: str) -> None:
    shop = _Shop(redis_url)
    shop.api.put(raw_run())
    await shop.settled()
    assert shop.condition("Succeeded") == "Unknown/Pending"
    async with shop.engine():
        await shop.until("AwaitingApproval", "True/Waiting")
        await shop.restart()
        await shop.settled()
        shop.api.put(_decision(shop))
        await shop.settled()
        at = {"kind": "ToolDecision", "name": "yes"}
        assert shop.condition("Accepted", **at) == "Unknown/AdmissionPolicyMissing"
        _admission(shop)
        await shop.until("Accepted", "True/Taken", **at)
        await shop.until("Succeeded", "True/Completed")
    await shop.settled()
    run = shop.api.get("AgentRun", "refund")
    assert run["status"]["result"] == {"text": "done"}
    assert run["metadata"]["finalizers"] == []
    await shop.namespace.close()


async def test_a_decision_that_was_taken_before_the_operator_died_counts_as_taken(
    redis_url: str,
) -> None:
    shop = _Shop(redis_url)
    _admission(shop)
    shop.api.put(raw_run())
    await shop.settled()
    async with shop.engine() as engine:
        await shop.until("AwaitingApproval", "True/Waiting")
        decision = _decision(shop)
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
    await shop.namespace.close()


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
    shop = _Shop("redis://127.0.0.1:1/0")
    del shop.api.objects["Secret", "shop", "aaa-store"]
    if secret is not None:
        shop.api.put({"kind": "Secret", **secret})
    shop.api.put(raw_run())
    await shop.settled()
    assert shop.condition("Stalled") == reason
    await shop.namespace.close()
