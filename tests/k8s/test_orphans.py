"""What nobody claims any more is found and ended; what is not ours, or in use, is left alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aaa.client import Client, RunInfo
from aaa.store.port import Head
from aaa_operator import names
from aaa_operator.cluster import Cluster
from aaa_operator.observe import run_of
from aaa_operator.orphans import unclaimed
from aaa_operator.render import source_copy
from k8s.fake_api import FakeApi
from k8s.scene import SETTINGS, StoppedClock, World, raw_run
from k8s.shop import BOUND_S, Shop, Watcher, all_of

POOL = "aaa-0123456789abcdef"


def _gone(api: FakeApi, kind: str, name: str) -> None:
    """Somebody takes an object away, finalizers and all."""
    api.changes.append((kind, api.objects.pop((kind, "shop", name)), True))


async def _status(url: str, run_id: str) -> str:
    async with Client(url) as client:
        info = await client.info(run_id)
        return "cancelling" if info.status == "open" and info.cancelling else info.status


async def _begun(shop: Shop) -> str:
    """The run waits for an approval. Its id."""
    await shop.until("AwaitingApproval", "True/Waiting")
    return str(shop.api.get("AgentRun", "refund")["status"]["runId"])


async def test_a_run_whose_agent_run_was_torn_away_is_cancelled_and_then_its_pool_goes(
    redis_url: str,
) -> None:
    clock = StoppedClock()
    shop = Shop(redis_url, clock=clock)
    shop.api.put(raw_run())
    await shop.settled()
    pool = shop.pool()
    async with shop.engine():
        run_id = await _begun(shop)
        async with Client(redis_url) as client:
            app = (await client.info(run_id)).app
            # Neither is of a pool and a name that the operator makes up.
            await client.submit(app, {"task": "by hand"}, run_id="by-hand")
            other = app.replace(pool, POOL)
            await client.submit(other, {"task": "elsewhere"}, run_id="run.refund.uid-elsewhere")
        _gone(shop.api, "AgentRun", "refund")
        await shop.restart()  # it remembers nothing of the run, either
        async with asyncio.timeout(BOUND_S):
            while await _status(redis_url, run_id) != "cancelled":
                clock.wall_ms += 1_000
                await shop.look()
                await asyncio.sleep(0.02)
        assert await _status(redis_url, "by-hand") == "open"
        assert await _status(redis_url, "run.refund.uid-elsewhere") == "open"
    for wait_ms in (1_000, SETTINGS.idle_delay_s * 1000):
        clock.wall_ms += wait_ms
        await shop.settled()
    assert shop.api.get("Deployment", pool)["spec"]["replicas"] == 0
    _gone(shop.api, "Pod", f"{pool}-0")
    await shop.settled()
    kinds = {kind for kind, _, _ in shop.api.objects}
    assert kinds.isdisjoint(
        {"Deployment", "ConfigMap", "ControllerRevision", "PodDisruptionBudget"}
    )
    await shop.close()


async def test_an_orphan_is_found_before_its_pool_would_go(
    redis_url: str,
) -> None:
    """After the chart was taken away and installed again the pool is at zero, and would go."""
    shop = Shop(redis_url, clock=StoppedClock())
    shop.api.put(raw_run())
    await shop.settled()
    pool = shop.pool()
    async with shop.engine():
        run_id = await _begun(shop)
    deployment = shop.api.get("Deployment", pool)
    shop.api.put({**deployment, "spec": {**deployment["spec"], "replicas": 0}})
    _gone(shop.api, "Pod", f"{pool}-0")
    _gone(shop.api, "AgentRun", "refund")
    await shop.restart()
    await shop.look()  # finds it, and keeps the pool
    await shop.settled()
    assert await _status(redis_url, run_id) == "cancelling"
    assert shop.api.get("Deployment", pool)["spec"]["replicas"] == 1  # so that it can end
    await shop.close()


async def test_nothing_goes_before_the_watch_has_delivered_every_agent_run(redis_url: str) -> None:
    shop = Shop(redis_url, clock=StoppedClock())
    shop.api.put(raw_run())
    await shop.settled()
    pool = shop.pool()
    async with shop.engine():
        run_id = await _begun(shop)
    deployment = shop.api.get("Deployment", pool)
    shop.api.put({**deployment, "spec": {**deployment["spec"], "replicas": 0}})
    _gone(shop.api, "Pod", f"{pool}-0")
    await shop.close()
    hidden = shop.api.objects.pop(("AgentRun", "shop", "refund"))
    new = Watcher(shop.api, name="new", clock=StoppedClock())
    shop.api.objects["AgentRun", "shop", "refund"] = hidden
    before = len(shop.api.writes)
    await new.look()
    await new.look()
    assert shop.api.writes[before:] == []
    assert await _status(redis_url, run_id) == "open"
    await new.namespace.close()


async def test_a_pool_stays_while_its_store_cannot_be_asked_for_orphans() -> None:
    shop = Shop("redis://127.0.0.1:1/0", clock=StoppedClock())
    world = World.of(raw_run())
    pool = world.begin()
    for kind in ("Deployment", "ConfigMap", "ControllerRevision", "PodDisruptionBudget"):
        for raw in world.of_kind(kind):
            shop.api.put(raw)
    deployment = shop.api.get("Deployment", pool)
    shop.api.put({**deployment, "spec": {**deployment["spec"], "replicas": 0}})
    await shop.settled()
    assert all_of(shop.api, "Deployment")
    _gone(shop.api, "Secret", "aaa-store")  # there is no store any more that could hold some
    await shop.settled()
    assert not all_of(shop.api, "Deployment")
    await shop.close()


@pytest.mark.parametrize(
    ("run_id", "app", "orphan"),
    [
        ("run.gone.uid-gone", f"{POOL}/loop@1/x", True),
        ("key.gone", f"{POOL}/loop@1/x", True),
        ("run.refund.uid-refund", f"{POOL}/loop@1/x", False),  # would become that one
        ("key.A-100", f"{POOL}/loop@1/x", False),
        ("run.old.id", f"{POOL}/loop@1/x", False),  # is that one, under an id of another time
        ("mine", f"{POOL}/loop@1/x", False),
        ("run.gone.uid-gone", "aaa-another/loop@1/x", False),
        ("run.gone.uid-gone", "default/loop@1/x", False),
    ],
)
def test_only_what_is_certainly_ours_and_claimed_by_nobody_is_an_orphan(
    run_id: str, app: str, orphan: bool
) -> None:
    runs = [
        run_of(raw_run()),
        run_of(raw_run("keyed", spec={"runKey": "A-100"})),
        run_of(raw_run("old", status={"runId": "run.old.id"})),
    ]
    info = RunInfo(
        run_id=run_id,
        app=app,
        digest="",
        status="open",
        head=Head(0, ""),
        cursor=0,
        cancelling=False,
        suspended=False,
        parked=False,
        awaiting=0,
        unknown=0,
        created_ms=0,
        closed_ms=None,
    )
    assert unclaimed([info], runs, {POOL}) == ({run_id} if orphan else set())


def test_an_object_that_only_carries_a_pools_label_is_not_the_pools() -> None:
    cluster = Cluster()
    ours = {names.POOL: POOL, names.MANAGED_BY: names.MANAGER}
    for kind, name, labels in (
        ("Deployment", POOL, ours),
        ("Deployment", "theirs", ours),
        ("ConfigMap", f"{POOL}-policy", ours),
        ("ConfigMap", "theirs", ours),
        ("ControllerRevision", POOL, {names.POOL: POOL}),
    ):
        raw = {"metadata": {"name": name, "namespace": "shop", "labels": labels}}
        cluster.heard(kind, raw, deleted=False)
    pool = cluster.pools("shop")[POOL]
    assert pool.deployment is not None
    assert pool.deployment["metadata"]["name"] == POOL
    assert pool.config is not None
    assert pool.config["metadata"]["name"] == f"{POOL}-policy"
    assert pool.revision is None


def test_a_config_map_that_was_made_from_a_copy_of_a_source_stays() -> None:
    source: dict[str, Any] = {
        "kind": "ConfigMap",
        "metadata": {"name": "code", "namespace": "shop"},
        "data": {"agent.py": "app = 1"},
    }
    copy = source_copy(source)
    theirs = {**copy, "metadata": {**copy["metadata"], "name": "mine"}}
    edited = {**copy, "data": {"agent.py": "app = 2"}}
    edited["metadata"] = {**copy["metadata"], "name": "aaa-source-0000000000000000"}
    world = World.of(copy, theirs, edited)
    world.settle()
    left = {raw["metadata"]["name"] for raw in world.of_kind("ConfigMap")}
    assert left == {"mine", "aaa-source-0000000000000000"}
