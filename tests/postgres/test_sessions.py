"""A lease is its worker's session: freed when that ends, kept while it stands, moved by nobody."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from aaa.store import port
from aaa.store.postgres import PostgresEventStore
from aaa.testing.scene import APP, LONG_MS, Scene, held, terms
from conformance.postgres_harness import PostgresHarness, end_session
from postgres.lines import Line
from servers import PostgresServer

HOLDER = Path(__file__).with_name("holder.py")


@asynccontextmanager
async def holder(url: str, run_id: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that holds the run's call; ended by its id."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HOLDER),
        url,
        run_id,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(20):
            assert await process.stdout.readline() == b"held 1\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def retaken(scene: Scene) -> port.Claimed:
    """The call, once a claim gets it."""
    async with asyncio.timeout(5):
        while not (got := await scene.claim("w2")).claimed:
            await asyncio.sleep(0.01)
    return got.claimed[0]


@pytest.mark.guarantee("G1", "G14")
async def test_a_killed_workers_call_is_free_and_a_frozen_ones_is_not(
    scene: Scene, postgres_url: str
) -> None:
    request = await scene.call()
    async with holder(postgres_url, request.run_id) as process:
        process.send_signal(signal.SIGSTOP)
        await scene.harness.advance(150)  # three of its TTLs of 50 ms
        frozen = await scene.claim("w2")
        assert (frozen.claimed, frozen.settled_runs) == ((), ())
        process.kill()
        assert (await retaken(scene)).attempt == 2


@pytest.mark.guarantee("G1")
async def test_a_worker_that_comes_back_under_its_name_has_lost_what_it_held(
    scene: Scene, postgres_url: str
) -> None:
    await scene.call()
    await scene.pulse("w1")
    one = await scene.take_one("w1")
    term = await scene.own("w1")
    await end_session(postgres_url, "w1")
    beat = await scene.pulse("w1", held(one), owned=(APP,))
    assert (beat.lost_calls, beat.lost_owned) == ((held(one),), ((scene.home, APP),))
    assert await scene.own("w1") == term + 1
    two = await scene.take_one("w2")
    assert (two.attempt, two.request.id) == (2, one.request.id)
    assert (await scene.pulse("w1", held(one))).lost_calls == (held(one),)
    assert (await scene.settle(one, "w1")).verdict == "stale"


@pytest.mark.guarantee("G1")
async def test_a_lease_that_its_living_worker_never_names_ends_after_its_ttl(
    scene: Scene,
) -> None:
    await scene.call()
    await scene.take_one("w1", terms(ttl_ms=scene.harness.ttl_ms))
    await scene.harness.advance(scene.harness.ttl_ms + 5)
    assert not (await scene.claim("w2")).claimed
    await scene.pulse("w1")
    assert (await scene.take_one("w2")).attempt == 2


@pytest.mark.guarantee("G2", "G15", "L2")
async def test_a_commit_whose_reply_is_lost_answers_as_the_first_time(
    harness: PostgresHarness, scene: Scene, postgres_server: PostgresServer
) -> None:
    request = await scene.call()
    async with Line(postgres_server.port) as line:
        url = harness.url.replace(f":{postgres_server.port}/", f":{line.port}/")
        store = PostgresEventStore.from_url(url)
        await store.open()
        offer = scene.claims("w1", nonce="once")
        await store.commit(scene.home, [port.Own(app="other", worker="w1", ttl_ms=LONG_MS)])
        line.lose_next_reply()
        (first,) = (await store.commit(scene.home, [offer])).verdicts
        (again,) = (await store.commit(scene.home, [offer])).verdicts
        assert isinstance(first, port.Claims)
        assert first == again
        assert [one.attempt for one in first.claimed] == [1]
        assert (await scene.types(request.run_id))[-1] == "aaa.tool.started"
        assert len(await scene.types(request.run_id)) == 3
        await store.close()


@pytest.mark.guarantee("G2", "G14")
async def test_a_restart_of_the_server_shorter_than_the_lease_loses_nothing(
    scene: Scene, postgres_server: PostgresServer
) -> None:
    await scene.call("c1")
    await scene.call("c2", run="run2")
    one = await scene.take_one("w1", limit=1)
    gone = await scene.take_one("w0", terms(ttl_ms=200), limit=1)
    term = await scene.own("w1")
    postgres_server.kill()
    postgres_server.start()
    assert (await retaken(scene)).request.id == gone.request.id
    due = (await scene.claim("w2")).next_expiry_ms
    assert due is not None
    assert 0 < due <= LONG_MS
    beat = await scene.pulse("w1", held(one), owned=(APP,))
    assert (beat.lost_calls, beat.lost_owned) == ((), ())
    assert await scene.own("w1") == term
    assert (await scene.claim("w2")).next_expiry_ms is None
    assert (await scene.settle(one, "w1")).verdict == "applied"


@pytest.mark.guarantee("G14")
async def test_idle_session_timeout_evicts_the_silent_and_spares_the_beating(
    scene: Scene, postgres_url: str
) -> None:
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as admin:
        await admin.execute(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET idle_session_timeout = 400',"
            " current_database()); END $$"
        )
    await scene.call("c1")
    await scene.call("c2", run="run2")
    spared = await scene.take_one("w1", limit=1)
    silent = await scene.take_one("w0", limit=1)
    async with asyncio.timeout(10):
        while not (got := await scene.claim("w2")).claimed:
            assert not (await scene.pulse("w1", held(spared))).lost_calls
            await asyncio.sleep(0.02)
    assert [one.request.id for one in got.claimed] == [silent.request.id]
    assert (await scene.settle(spared, "w1")).verdict == "applied"
