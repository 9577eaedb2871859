"""What operators do to the cluster and the store at once, many times over, and when they die: each
run begins once, statuses are written seldom, and nothing is written without a change.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import pytest

from aaa.client import Client
from aaa.llm.fake import text, tool_call
from aaa.llm.messages import ModelReply, ModelRequest
from aaa.tools import tool
from aaa_operator.apply import Applier
from k8s.fake_api import FakeApi
from k8s.scene import StoppedClock, raw_run
from k8s.shop import BOUND_S, Shop, Watcher, all_of, allow_decisions

MANY = 1_000
PAIR = 25
#: More moments than there are to die at on one run's way.
MOMENTS = 200
#: Calls of a run that goes on for a while.
PARTS = 8


class Effects:
    """What the tools did outside of any log."""

    def __init__(self) -> None:
        self.refunds: Counter[str] = Counter()
        self.look = asyncio.Event()

    def looked(self) -> None:
        """The operator has looked: refunds that waited for it go on."""
        self.look.set()
        self.look = asyncio.Event()

    def tool(self, *, approved: bool = False) -> Any:
        @tool(requires_approval=approved)
        async def refund(order_id: str, part: int = 0) -> dict[str, str]:
            """Refund an order, or a part of it, which takes until the operator has looked again."""
            if part:
                await self.look.wait()
            self.refunds[order_id] += 1
            return {"refunded": order_id}

        return refund


def _model(request: ModelRequest) -> ModelReply:
    """Refunds the order that its task names; one of a round number in parts."""
    task = next(each.content for each in request.messages if each.role == "user")
    order = re.findall(r"A-\d+", task)[0]
    done = sum(each.role == "tool" for each in request.messages)
    if done == _parts(order):
        return text("done")
    return tool_call("refund", order_id=order, part=done + 1 if _parts(order) > 1 else 0)


def _parts(order: str) -> int:
    return PARTS if order.endswith("00") else 1


def _runs(count: int) -> list[dict[str, Any]]:
    return [
        raw_run(f"run-{n}", spec={"input": {"task": f"refund A-{n}"}}, metadata={"labels": {}})
        for n in range(count)
    ]


def _finished(api: FakeApi) -> int:
    found = 0
    for raw in all_of(api, "AgentRun"):
        conditions = (raw.get("status") or {}).get("conditions") or ()
        found += any(
            (c["type"], c["status"], c["reason"]) == ("Succeeded", "True", "Completed")
            for c in conditions
        )
    return found


async def _quiet(api: FakeApi, *watchers: Watcher) -> None:
    """Everything that was left to do is done; from then on nothing is written any more."""
    async with asyncio.timeout(BOUND_S):
        before = -1
        while before != len(api.writes):
            before = len(api.writes)
            for watcher in watchers:
                await watcher.look()


# ------------------------------------------------------------------------------------ a thousand


async def test_a_thousand_runs_at_once_cost_few_status_writes_each(redis_url: str) -> None:
    # On a clock that stands: counters that wait for ten seconds to pass get no write of their own.
    effects, shop = Effects(), Shop(redis_url, clock=StoppedClock())
    for raw in _runs(MANY):
        shop.api.put(raw)
    await shop.settled()
    async with shop.engine(effects.tool(), pool=shop.pool("run-0"), model=_model, concurrency=256):
        async with asyncio.timeout(4 * BOUND_S):
            while _finished(shop.api) < MANY:
                await shop.look()
                effects.looked()
                await asyncio.sleep(0.05)
    await _quiet(shop.api, shop.operator)
    assert effects.refunds == Counter({f"A-{n}": _parts(f"A-{n}") for n in range(MANY)})
    assert len(all_of(shop.api, "Deployment")) == 1  # nothing is made for each run
    beside = _writes_beside_conditions(shop.api)
    assert len(beside) == MANY
    assert max(beside.values()) <= 3
    before = len(shop.api.writes)
    await shop.restart()
    await shop.look()
    assert shop.api.writes[before:] == []
    await shop.close()


def _writes_beside_conditions(api: FakeApi) -> Counter[str]:
    """By run: how often its status was written although no condition changed."""
    known: dict[str, dict[str, Any]] = {}
    found: Counter[str] = Counter()
    for kind, raw, _ in api.changes:
        if kind != "AgentRun":
            continue
        name, status = raw["metadata"]["name"], raw.get("status") or {}
        before = known.get(name)
        known[name] = status
        if before is None or before == status:
            found.setdefault(name, 0)
        elif _judged(before) == _judged(status):
            found[name] += 1
    return found


def _judged(status: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {(c["type"], c["status"], c["reason"]) for c in status.get("conditions") or ()}


# ---------------------------------------------------------------------------------- two at once


async def test_two_operators_at_once_begin_each_run_once(redis_url: str) -> None:
    effects, shop = Effects(), Shop(redis_url)
    other = Watcher(shop.api, name="two")
    for raw in _runs(PAIR):
        shop.api.put(raw)

    async def both() -> None:
        await asyncio.gather(shop.operator.look(), other.look())
        shop.new_pools()

    while not all_of(shop.api, "Pod"):
        await both()
    await both()
    async with shop.engine(effects.tool(), pool=shop.pool("run-0"), model=_model):
        async with asyncio.timeout(BOUND_S):
            while _finished(shop.api) < PAIR:
                await both()
                await asyncio.sleep(0.02)
    await _quiet(shop.api, shop.operator, other)
    assert effects.refunds == Counter({f"A-{n}": 1 for n in range(PAIR)})
    assert await _logs(redis_url) == PAIR
    before = len(shop.api.writes)
    await both()
    assert shop.api.writes[before:] == []
    await other.namespace.close()
    await shop.close()


# ------------------------------------------------------------------------------- killed anywhere


class Killed(BaseException):
    """The process is gone: nothing catches it."""


class Fuse:
    """Names the moments of what an operator does to the world, and kills it at one of them."""

    def __init__(self, at: str | None) -> None:
        self.at, self.blown = at, False
        self.met: Counter[str] = Counter()

    def step(self, where: str) -> None:
        self.met[where] += 1
        if self.at == f"{where} #{self.met[where]}":
            self.blown = True
            raise Killed(where)

    def moments(self) -> set[str]:
        return {f"{where} #{n + 1}" for where, count in self.met.items() for n in range(count)}


def _fused(monkeypatch: pytest.MonkeyPatch, api: FakeApi, fuse: Fuse) -> None:
    """Before and after each write: it may have been lost, or only its answer."""
    store = Applier._store

    async def fused(self: Applier, action: Any) -> None:
        fuse.step(f"before {type(action).__name__}")
        await store(self, action)
        fuse.step(f"after {type(action).__name__}")

    monkeypatch.setattr(Applier, "_store", fused)
    monkeypatch.setattr(api, "on_write", fuse.step)


async def _approved_run(shop: Shop, effects: Effects) -> None:
    """One run from its AgentRun to its end, whoever dies on the way."""

    async def until(*wanted: tuple[str, str, str, str]) -> None:
        async with asyncio.timeout(BOUND_S):
            while not any(shop.condition(t, kind, name) == is_ for t, is_, kind, name in wanted):
                try:
                    await shop.look()
                except Killed:
                    await shop.restart()
                shop.new_pools()
                await asyncio.sleep(0.005)

    run = ("AgentRun", "refund")
    await until(("Succeeded", "Unknown/Pending", *run))
    async with shop.engine(effects.tool(approved=True), model=_model):
        await until(("AwaitingApproval", "True/Waiting", *run))
        shop.api.put(shop.approval())
        await until(("Succeeded", "True/Completed", *run))
        await until(("Accepted", "True/Taken", "ToolDecision", "yes"))
    while True:
        try:
            await _quiet(shop.api, shop.operator)
        except Killed:
            await shop.restart()
        else:
            return


async def test_an_operator_killed_at_any_write_is_followed_by_one_that_goes_on(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every moment that any of the lives had, since no two of them are quite alike."""
    died: set[str] = set()
    tried: list[str | None] = []
    left: set[str | None] = {None}
    while left:
        fuse = Fuse(at=left.pop())
        tried.append(fuse.at)
        with monkeypatch.context() as patch:
            await _goes_on(redis_url, fuse, patch, runs=len(tried))
        left |= fuse.moments() - set(tried)
        died |= {fuse.at} if fuse.at and fuse.blown else set()
        assert len(tried) < MOMENTS
    for wanted in ("before Submit", "after Submit", "before Decide", "after Decide", "after PATCH"):
        assert any(where.startswith(wanted) for where in died), died


async def _goes_on(redis_url: str, fuse: Fuse, patch: pytest.MonkeyPatch, *, runs: int) -> None:
    effects, shop = Effects(), Shop(redis_url)
    allow_decisions(shop.api)
    spec = {"input": {"task": "refund A-101"}}
    shop.api.put(raw_run(metadata={"uid": f"uid-{runs}"}, spec=spec))
    _fused(patch, shop.api, fuse)
    await _approved_run(shop, effects)
    assert effects.refunds == {"A-101": 1}, fuse.at
    assert shop.api.get("AgentRun", "refund")["metadata"]["finalizers"] == [], fuse.at
    assert await _logs(redis_url) == runs, fuse.at
    before = len(shop.api.writes)
    await shop.restart()
    await shop.look()  # nor does another one find anything to do
    assert shop.api.writes[before:] == [], fuse.at
    await shop.close()


async def _logs(url: str) -> int:
    """How many runs the store has; each began with one request."""
    async with Client(url) as client:
        infos = await client.store.runs(limit=10 * MANY)
        for info in infos:
            events = await client.events(info.run_id)
            assert [event.type for event in events].count("aaa.run.requested") == 1
        return len(infos)
