"""The server hangs, ends our sessions, or has forgotten us."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from aaa.errors import StoreUnavailable, StoreWentBack
from aaa.ids import partition_of
from aaa.store import port
from aaa.store.postgres import PostgresEventStore, connect
from aaa.testing.scene import Scene, creates
from servers import PostgresServer

_END_ALL = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


async def execute(url: str, statement: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as admin:
        await admin.execute(statement.encode())


@pytest.mark.guarantee("L2")
async def test_a_server_that_hangs_is_unavailable_in_bounded_time(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "CUT_AFTER_S", 0.5)
    store = PostgresEventStore.from_url(postgres_url + "?connect_timeout=2")
    await store.open()
    create = creates("run")
    partition = partition_of("run", store.partitions)
    postgres_server.pause()
    try:
        async with asyncio.timeout(15):
            with pytest.raises(StoreUnavailable):
                await store.commit(partition, [create])
    finally:
        postgres_server.resume()
    async with asyncio.timeout(15):
        (verdict,) = (await store.commit(partition, [create])).verdicts
    assert isinstance(verdict, port.Appended)
    assert [event.type for event in await store.read("run")] == ["aaa.run.requested"]
    await store.close()


@pytest.mark.guarantee("L6")
async def test_when_all_sessions_are_ended_commits_and_wakes_go_on(
    scene: Scene, postgres_url: str
) -> None:
    woken: asyncio.Queue[int] = asyncio.Queue()
    other = await scene.harness.another()
    other.on_wake(woken.put_nowait)
    run = scene.run_id()
    await scene.create(run)
    await execute(postgres_url, _END_ALL)
    while not woken.empty():
        woken.get_nowait()
    names = iter(range(1_000))
    async with asyncio.timeout(20):
        while woken.empty():
            await scene.create(scene.run_id(f"more{next(names)}"))
            await asyncio.sleep(0.05)
    assert woken.get_nowait() == scene.home
    assert (await scene.info(run)).status == "open"


@pytest.mark.guarantee("G23")
async def test_a_database_that_lost_its_tables_has_gone_back(
    scene: Scene, postgres_url: str
) -> None:
    await scene.create(scene.run_id())
    await execute(postgres_url, "DROP SCHEMA aaa CASCADE")
    with pytest.raises(StoreWentBack, match="gone from Postgres"):
        await scene.create(scene.run_id("another"))
