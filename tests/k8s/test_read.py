"""The read-only endpoint: who may ask, what is shown of what, and how much at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from aaa.algos import ToolLoop
from aaa.client import CallView, Catalogue, ToolLayers
from aaa.events import Event
from aaa.ids import canonical
from aaa.llm import LLMHandler
from aaa.llm.fake import FakeLLMClient, text, tool_call
from aaa.llm.messages import ModelReply, ModelRequest
from aaa.policy import PolicyLayers
from aaa.runtime import Engine
from aaa.tools import ToolHandler, ToolRegistry, tool
from aaa_operator import read, shown
from aaa_operator.cluster import Cluster
from aaa_operator.observe import Problem, RunSeen, policy_of
from aaa_operator.read import read_app
from aaa_operator.reading import Reading, explained
from aaa_operator.render import labels_of
from aaa_operator.serving import serve
from k8s.scene import raw_policy, raw_run

BOUND_S = 20
SECRET = "s" * 5_000
UID = "uid-refund"


@tool
async def refund(order_id: str) -> dict[str, str]:
    """Refund an order."""
    return {"receipt": SECRET + order_id}


def _model(request: ModelRequest) -> ModelReply:
    return (
        text("done") if request.messages[-1].role == "tool" else tool_call("refund", order_id="A")
    )


class _Endpoint:
    def __init__(self, base: str, session: aiohttp.ClientSession, cluster: Cluster) -> None:
        self._base, self._session, self.cluster = base, session, cluster
        #: How often a store's address was asked for.
        self.asked = 0

    async def get(self, path: str, *, uid: str | None = UID, **query: str) -> tuple[int, Any]:
        params = query if uid is None else {**query, "uid": uid}
        async with self._session.get(f"{self._base}{path}", params=params) as reply:
            return reply.status, json.loads(await reply.read())

    async def method(self, method: str, path: str) -> int:
        async with self._session.request(method, f"{self._base}{path}") as reply:
            return reply.status


@asynccontextmanager
async def _endpoint(url: str | Problem, *runs: dict[str, Any]) -> AsyncIterator[_Endpoint]:
    cluster = Cluster()
    for raw in runs:
        cluster.heard("AgentRun", raw, deleted=False)

    async def store_url(_: str, __: list[RunSeen]) -> str | Problem:
        endpoint.asked += 1
        return url

    async with AsyncExitStack() as stack:
        reading = Reading(cluster, store_url)
        stack.push_async_callback(reading.close)
        (port,) = await serve(stack, [(0, read_app(reading))], host="127.0.0.1")
        session = await stack.enter_async_context(aiohttp.ClientSession())
        endpoint = _Endpoint(f"http://127.0.0.1:{port}/v1/namespaces/", session, cluster)
        yield endpoint


async def _finished(url: str) -> dict[str, Any]:
    """A run that has completed in the store, and its AgentRun."""
    registry = ToolRegistry([refund])
    engine = Engine(url)
    LLMHandler(FakeLLMClient(_model)).attach(engine)
    ToolHandler(registry).attach(engine)
    async with asyncio.timeout(BOUND_S), engine:
        await engine.run(ToolLoop(registry), {"task": "t" * 900}, "run.refund.1")
    done = [{"type": "Succeeded", "status": "True", "reason": "Completed"}]
    began = {"runId": "run.refund.1", "startTime": "2027-01-15T07:00:00Z", "conditions": done}
    return raw_run(status=began)


async def test_only_who_knows_a_run_of_the_namespace_is_answered(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/aaa.db"
    async with _endpoint(url, await _finished(url)) as endpoint:
        for uid in (None, "", "uid-another"):
            for namespace in ("shop", "nowhere"):
                status, told = await endpoint.get(f"{namespace}/runs", uid=uid)
                assert (status, told["reason"]) == (403, "UnknownUid")
        assert (await endpoint.get("nowhere/runs"))[0] == 403
        status, told = await endpoint.get("shop/runs")
        assert (status, told["version"]) == (200, 1)
        assert told["runs"][0]["info"]["status"] == "completed"
        for method in ("POST", "PUT", "PATCH", "DELETE", "HEAD"):
            assert await endpoint.method(method, f"shop/runs?uid={UID}") == 405


async def test_a_log_is_shown_in_pages_and_its_long_values_cut(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/aaa.db"
    async with _endpoint(url, await _finished(url)) as endpoint:
        found: list[Any] = []
        after: int | None = 0
        while after is not None:
            _, page = await endpoint.get("shop/runs/refund/events", after=str(after), limit="2")
            assert len(page["events"]) <= 2
            found += page["events"]
            after = page["next"]
        assert [each["seq"] for each in found] == list(range(1, len(found) + 1))
        whole = json.dumps(found)
        assert SECRET not in whole
        assert "t" * 900 not in whole
        cut = {each["type"]: each["cut"] for each in found if each["cut"]}
        assert cut["aaa.run.requested"] == ["input"]
        assert cut["aaa.tool.completed"] == ["result"]
        assert found[-1]["data"]["value"] == {"text": "done"}


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("shop/runs/none", 404, "RunNotFound"),
        ("shop/runs/new", 409, "NotBegun"),
        ("shop/runs/lost", 404, "RunNotFound"),
        ("shop/runs/refund/events?after=x", 400, "BadRequest"),
        ("shop/runs/refund/events?limit=1001", 400, "BadRequest"),
        ("shop/runs/refund/policy", 404, "PolicyUnknown"),
    ],
)
async def test_what_cannot_be_answered_has_a_reason(
    tmp_path: Path, path: str, status: int, reason: str
) -> None:
    url = f"sqlite:///{tmp_path}/aaa.db"
    lost = {"runId": "lost", "startTime": "2027-01-15T07:00:00Z"}
    runs = (await _finished(url), raw_run("new"), raw_run("lost", status=lost))
    async with _endpoint(url, *runs) as endpoint:
        where, _, query = path.partition("?")
        key, _, value = query.partition("=")
        found, told = await endpoint.get(where, **({key: value} if key else {}))
        assert (found, told["reason"]) == (status, reason)
        assert told["message"]


async def test_a_list_asks_once_for_each_store_however_many_runs_there_are(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/aaa.db"
    done = await _finished(url)
    gone = {"runId": "gone", "startTime": "2027-01-15T07:00:00Z"}
    runs = [raw_run(f"run-{index}", status=done["status"]) for index in range(20)]
    async with _endpoint(url, done, raw_run("gone", status=gone), *runs) as endpoint:
        _, told = await endpoint.get("shop/runs")
        assert sum(run["info"] is not None for run in told["runs"]) == 21
        assert endpoint.asked == 1


async def test_a_store_that_cannot_be_used_is_said_and_the_list_goes_on_without_it() -> None:
    began = {"runId": "r", "startTime": "2027-01-15T07:00:00Z"}
    problem = Problem("StoreSecretMissing", "Secret 'aaa-store' does not exist")
    async with _endpoint(problem, raw_run(status=began)) as endpoint:
        assert await endpoint.get("shop/runs/refund") == (
            503,
            {"version": 1, "reason": problem.reason, "message": problem.message},
        )
        _, told = await endpoint.get("shop/runs")
        assert [run["info"] for run in told["runs"]] == [None]


async def test_a_policy_is_explained_from_what_the_pool_carries() -> None:
    rules = policy_of(raw_policy(tools=[{"name": "refund", "delivery": "AtMostOnce"}])).rules
    assert rules is not None
    layers = PolicyLayers(policies=[rules])
    config = {
        "metadata": {"name": "aaa-1-policy", "namespace": "shop", "labels": labels_of("aaa-1")},
        "data": {f"{layers.hash}.json": json.dumps(layers.to_json())},
    }
    status = {"pool": {"name": "aaa-1"}, "policy": {"name": "payments", "hash": layers.hash}}
    async with _endpoint(Problem("x", "y"), raw_run(status=status)) as endpoint:
        endpoint.cluster.heard("ConfigMap", config, deleted=False)
        _, told = await endpoint.get("shop/runs/refund/policy")
        assert (told["policies"], told["known"]) == (["payments"], False)
        assert told["tools"]["refund"]["settings"]["delivery"] == "at_most_once"
        assert told["tools"]["refund"]["origins"]["delivery"] == "policy payments entry 'refund'"
        _, told = await endpoint.get("shop/runs/refund/policy", tool="look")
        assert list(told["tools"]) == ["look"]
        assert told["tools"]["look"]["settings"]["delivery"] == "at_least_once"


def test_a_policy_is_merged_with_what_the_code_says_and_a_typo_shows() -> None:
    rules = policy_of(
        raw_policy(
            defaults={"maxAttempts": 5},
            tools=[{"name": "refnud", "requiresApproval": True}],
        )
    ).rules
    assert rules is not None
    layers = PolicyLayers(policies=[rules])
    refund = ToolLayers(name="refund", schema="s", decorator={"delivery": "at_most_once"})
    told = explained("r", layers, Catalogue(tools=(refund,)), tools=[])
    assert told["tools"]["refund"]["origins"]["delivery"] == "decorator"
    assert told["tools"]["refund"]["origins"]["max_attempts"] == "policy payments defaults"
    assert (told["known"], told["unmatched"]) == (True, {"payments": ("refnud",)})
    partly = explained("r", layers, Catalogue(tools=(refund,), complete=False), tools=["x"])
    assert (partly["known"], partly["unmatched"]) == (False, {})


def test_an_answer_of_a_model_shows_its_text_and_the_tools_it_wants_and_no_arguments() -> None:
    calls = [{"id": "x", "name": "refund", "arguments": {"iban": "DE00"}}]
    message = {"role": "assistant", "content": "let me see", "tool_calls": calls}
    event = _event("aaa.llm.completed", {"call_id": "m1", "message": message})
    data = shown.event_shown(event)["data"]
    assert data["message"] == {"content": "let me see", "tool_calls": [{"name": "refund"}]}


@pytest.mark.parametrize(("size", "cut"), [(50, []), (9_000, ["value"])])
def test_a_runs_own_value_is_whole_up_to_eight_kib(size: int, cut: list[str]) -> None:
    told = shown.event_shown(_event("aaa.run.completed", {"value": {"text": "v" * size}}))
    assert told["cut"] == cut
    assert len(json.dumps(told)) < 8_192 + 1_000


def test_what_a_person_decides_on_is_whole_up_to_eight_kib() -> None:
    def call(size: int) -> Any:
        view = CallView(
            run_id="r",
            call_id="c1-0",
            name="refund",
            arguments={"note": "n" * size},
            args_digest="d",
            idempotency_key="k",
            reason="requires_approval",
            attempts=0,
            since_ms=1,
        )
        return shown.call_shown(view, name="refund")

    assert (call(8_000)["cut"], call(8_000)["arguments"]) == ([], {"note": "n" * 8_000})
    assert call(9_000)["cut"] == ["arguments"]


def test_a_page_ends_before_it_is_too_large_and_is_never_empty() -> None:
    items = [{"x": "x" * 100}] * 10
    assert len(shown.fitting(iter(items), max_bytes=350)) == 3
    assert len(shown.fitting(iter(items), max_bytes=1)) == 1
    assert read.MAX_BYTES <= 1_048_576


def _event(type_: str, data: dict[str, Any]) -> Event:
    return Event(id="e", run_id="r", type=type_, raw=canonical(data), parent=None, seq=1, time=1)
