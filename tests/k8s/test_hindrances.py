"""What the API server refuses is said where people look, with what to do, and goes when it is mended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from aaa_operator import actions as act
from aaa_operator import names
from aaa_operator.hindrances import hindered, hindrance, run_key
from aaa_operator.observe import Problem
from k8s.scene import raw_decision, raw_policy, raw_run
from k8s.shop import Shop

BOUND_S = 20
ALWAYS = 1_000


def refused(text: str, status: int = 403) -> list[Response]:
    return [JSONResponse({"message": text}, status_code=status) for _ in range(ALWAYS)]


def message(shop: Shop, type_: str) -> str:
    found = shop.api.get("AgentRun", "refund")["status"]["conditions"]
    return str(next(each["message"] for each in found if each["type"] == type_))


async def looked(shop: Shop) -> None:
    """Refused passes write nothing new: so many that whatever is to be said has been."""
    async with asyncio.timeout(BOUND_S):
        for _ in range(4):
            await shop.look()


@pytest.mark.parametrize(
    ("verb", "kind", "said", "condition", "wanted", "what"),
    [
        ("PATCH", "Deployment", "cannot patch deployments", "WorkersReady", "False/Forbidden", "helm"),
        ("PATCH", "ConfigMap", "cannot create configmaps", "WorkersReady", "False/Forbidden", "helm"),
        (
            "PATCH", "ConfigMap", "exceeded quota: few, requested: count/configmaps=1",
            "WorkersReady", "False/QuotaExceeded", "raise it",
        ),
        ("GET", "ConfigMap", "cannot get configmaps", "Accepted", "False/Forbidden", "helm"),
        ("GET", "ServiceAccount", "cannot get accounts", "Accepted", "False/Forbidden", "helm"),
        ("GET", "Secret", "cannot get secrets", "Stalled", "True/StoreSecretUnreadable", "secrets"),
    ],
)  # fmt: skip
async def test_what_the_operator_may_not_do_stands_in_a_condition_until_it_may(
    redis_url: str, *, verb: str, kind: str, said: str, condition: str, wanted: str, what: str
) -> None:
    shop = Shop(redis_url)
    config = {"data": {"agent.py": "", "input.json": "{}"}}
    shop.api.put({"kind": "ConfigMap", "metadata": {"name": "code"}, **config})
    labels = {names.WORKER_ACCOUNT: "true"}
    shop.api.put({"kind": "ServiceAccount", "metadata": {"name": "robot", "labels": labels}})
    shop.api.answers[verb, kind] = refused(said)
    agent: dict[str, Any] = {"app": "agent:app", "serviceAccountName": "robot"}
    agent["source"] = {"configMapRef": {"name": "code"}}
    shop.api.put(raw_run(spec={"agent": agent}))
    await looked(shop)
    assert shop.condition(condition) == wanted
    assert said in message(shop, condition)
    assert what in message(shop, condition)
    shop.api.answers[verb, kind].clear()
    await shop.settled()
    assert shop.condition("Accepted") == "True/Accepted"
    assert shop.condition("Stalled") == "False/No"
    assert shop.condition("WorkersReady") == "True/Ready"
    await shop.close()


async def test_what_is_mended_is_said_at_once(redis_url: str) -> None:
    shop = Shop(redis_url)
    shop.api.answers["PATCH", "Deployment"] = refused("cannot patch deployments")
    shop.api.put(raw_run())
    await looked(shop)
    assert (await shop.operator.namespace.look()).failed
    shop.api.answers.clear()
    again = await shop.operator.namespace.look()
    assert (again.in_s, again.failed) == (0, False)
    await shop.close()


async def test_a_right_that_is_lost_while_a_run_goes_on_is_said_of_that_run(redis_url: str) -> None:
    shop = Shop(redis_url)
    shop.api.put(raw_run())
    await shop.settled()
    async with shop.engine():
        await shop.until("AwaitingApproval", "True/Waiting")
        shop.api.put(raw_policy(defaults={"maxAttempts": 2}))
        shop.api.answers["PATCH", "ConfigMap"] = refused("cannot patch configmaps")
        await looked(shop)
        assert shop.condition("WorkersReady") == "False/Forbidden"
        assert shop.condition("AwaitingApproval") == "True/Waiting"
        shop.api.answers.clear()
        await shop.until("WorkersReady", "True/Ready")
    await shop.close()


async def test_an_admission_policy_that_may_not_be_read_lets_no_decision_through(
    redis_url: str,
) -> None:
    shop = Shop(redis_url)
    shop.api.put(raw_run())
    await shop.settled()
    shop.api.put(raw_decision())
    read = shop.operator.namespace._get_path

    async def forbidden(where: str) -> dict[str, Any] | None:
        if "admissionregistration" in where:
            from aaa_operator.api import ApiFailure

            raise ApiFailure(403, "Forbidden", "cannot get validatingadmissionpolicies")
        return await read(where)

    shop.operator.namespace._get_path = forbidden  # type: ignore[method-assign]
    await looked(shop)
    assert shop.condition("Accepted", "ToolDecision", "decided") == "Unknown/Forbidden"
    await shop.close()


@pytest.mark.parametrize("status", [0, 404, 409, 429, 500, 503])
def test_what_passes_by_itself_is_no_hindrance(status: int) -> None:
    assert hindrance(status, "no") is None


def test_a_refusal_concerns_the_pool_or_the_run_that_it_was_for() -> None:
    problem = Problem("Forbidden", "no")
    pool = {"kind": "ConfigMap", "metadata": {"name": "c", "labels": {names.POOL: "aaa-1"}}}
    run = act.SetFinalizers(name="refund", resource_version="1", finalizers=(), reason="")
    found = hindered(
        [
            (act.Apply(object=pool, reason=""), problem),
            (act.Scale(pool="aaa-2", replicas=1, reason=""), problem),
            (run, problem),
            (act.DeletePod(pod="p", uid="u", evidence={}, reason=""), problem),
        ]
    )
    assert set(found) == {"aaa-1", "aaa-2", run_key("refund"), ""}
