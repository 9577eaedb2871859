"""The Redis store when answers are lost, functions vanish and servers die."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio.connection import AbstractConnection

from aaa import events as ev
from aaa.errors import ConfigError, StoreMismatch, StoreTooNew, StoreUnavailable
from aaa.store import port
from aaa.store.redis import RedisEventStore
from aaa.store.redis.link import packed
from aaa.testing.scene import Scene, creates, held, opens, settles, terms, tool_requested
from servers import RedisServer, ReplicaPair
from stores.redis_words import Wire, opened, verdict


@pytest.fixture
def empty_server(redis_server: RedisServer, redis_url: str) -> RedisServer:
    """The session's own server, even where another one is named: these tests hurt it."""
    redis_server.start().reset()
    return redis_server


async def test_functions_that_were_flushed_are_loaded_again(empty_server: RedisServer) -> None:
    async with opened(empty_server.url) as s:
        await s.call()
        with empty_server.client() as client:
            client.execute_command("FUNCTION", "FLUSH", "SYNC")
        one = await s.take_one("w1")
        with empty_server.client() as client:
            client.execute_command("FUNCTION", "FLUSH", "SYNC")
        assert (await s.pulse("w1", held(one))).lost_calls == ()
        await s.close()


async def test_a_batch_whose_answer_was_lost_answers_the_same_when_it_is_sent_again(
    empty_server: RedisServer,
) -> None:
    async with Wire(empty_server.port) as wire, opened(wire.url) as s:
        await s.call()
        claim = s.claims("w1", terms("at_most_once"))
        wire.lose_the_next_answer()
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await s.commit(claim)
        assert wire.lost.is_set()
        (one,) = (await s.one(claim, port.Claims)).claimed
        assert (one.attempt, one.job) == (1, "run")
        settle = settles(one, "w1")
        wire.lose_the_next_answer()
        with pytest.raises(StoreUnavailable):
            await s.commit(settle)
        assert (await s.one(settle, port.Settled)).verdict == "dup"
        types = await s.types(one.run_id)
        assert types.count(ev.TOOL_STARTED) == types.count(ev.TOOL_COMPLETED) == 1


async def test_everything_acknowledged_survives_a_kill(empty_server: RedisServer) -> None:
    async with opened(empty_server.url) as s:
        await s.call()
        one = await s.take_one("w1")
        before = await s.store.read(one.run_id)
        await asyncio.to_thread(empty_server.kill)
        with pytest.raises(StoreUnavailable):
            await s.commit(settles(one, "w1"))
        empty_server.start()  # here: it dies with the thread that starts it
        assert await s.store.read(one.run_id) == before
        assert (await s.settle(one, "w1")).verdict == "applied"


async def test_a_frozen_server_is_unavailable_in_bounded_time(empty_server: RedisServer) -> None:
    async with opened(f"{empty_server.url}?timeout_s=0.2") as s:
        run = s.run_id()
        await asyncio.to_thread(empty_server.pause)
        try:
            async with asyncio.timeout(5):
                with pytest.raises(StoreUnavailable, match=r"0\.2 seconds"):
                    await s.create(run)
        finally:
            await asyncio.to_thread(empty_server.resume)
        await s.create(run)
        assert await s.types(run) == [ev.RUN_REQUESTED]


async def test_commits_of_one_turn_of_the_loop_leave_in_one_write(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = 0
    send = AbstractConnection.send_packed_command

    async def counted(connection: AbstractConnection, *args: Any, **how: Any) -> None:
        nonlocal writes
        writes += 1
        await send(connection, *args, **how)

    async with opened(redis_url) as s:
        names = [s.run_id(f"r{number}") for number in range(50)]
        monkeypatch.setattr(AbstractConnection, "send_packed_command", counted)
        committed = await asyncio.gather(
            *(s.store.commit(s.home, [creates(name)]) for name in names)
        )
        assert writes == 1
        assert sorted(one.mark for one in committed) == list(range(1, 51))
        for name, one in zip(names, committed, strict=True):
            assert verdict(one, port.Appended).events[0].run_id == name


async def test_a_cancelled_commit_does_not_shift_the_answers_of_others(
    empty_server: RedisServer,
) -> None:
    async with opened(empty_server.url) as s:
        doomed = asyncio.create_task(s.store.commit(s.home, [creates(s.run_id("doomed"))]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        doomed.cancel()
        create = creates(s.run_id("other"))
        appended = verdict(await s.store.commit(s.home, [create]), port.Appended)
        assert appended.events == tuple(entry.event.stored(1, 0) for entry in create.entries)
        with pytest.raises(asyncio.CancelledError):
            await doomed


async def test_a_full_server_writes_nothing_by_halves() -> None:
    with RedisServer(settings={"maxmemory": "1", "maxmemory-policy": "noeviction"}) as server:
        with server.client() as client:
            client.config_set("maxmemory", "0")
        async with opened(server.url) as s:
            await s.call()
            with server.client() as client:
                client.config_set("maxmemory", "1")
            with pytest.raises(StoreUnavailable, match="out of memory"):
                await s.claim("w1")
            with server.client() as client:
                client.config_set("maxmemory", "0")
            assert (await s.take_one("w1")).attempt == 1


async def test_a_member_that_fails_inside_leaves_the_others_standing(
    empty_server: RedisServer,
) -> None:
    async with opened(empty_server.url) as s:
        request = await s.call()
        with empty_server.client() as client:  # damage: a call whose request is gone
            (key,) = client.keys(f"*e:{request.run_id}")
            client.delete(key)
        other = s.run_id("other")
        with pytest.raises(RuntimeError, match="call without its request"):
            await s.commit(s.claims("w1"), creates(other))
        assert await s.types(other) == [ev.RUN_REQUESTED]
        info = await s.info(request.run_id)
        assert info.head.seq == 2  # no attempt was begun


async def test_a_claim_that_no_replica_has_is_not_handed_out(replica_pair: ReplicaPair) -> None:
    async with opened(f"{replica_pair.url}?wait_replicas=1&wait_timeout_ms=100") as s:
        await s.call()
        claim = s.claims("w1", terms("at_most_once"))
        await asyncio.to_thread(replica_pair.replica.pause)
        try:
            with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
                await s.commit(claim)
        finally:
            await asyncio.to_thread(replica_pair.replica.resume)
        async with asyncio.timeout(20):
            one = await _patiently(s, claim)
        assert one.attempt == 1


async def test_a_confirmation_on_another_connection_counts_for_nothing(
    replica_pair: ReplicaPair,
) -> None:
    async with opened(f"{replica_pair.url}?wait_replicas=1") as s:
        store = s.store
        assert isinstance(store, RedisEventStore)
        key = store._address.base(s.home)
        number, _ = await store._call(key, packed((b"PING",)))
        await store._wait_for_replicas(key, number)
        link = await store._nodes.link_for(key)
        await link.drop()
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
            await store._wait_for_replicas(key, number)


async def test_a_server_that_became_a_replica_is_unavailable(replica_pair: ReplicaPair) -> None:
    async with opened(replica_pair.url) as s:
        await s.create(s.run_id())
        old = replica_pair.primary
        replica_pair.failover()
        with old.client() as client:
            client.replicaof("127.0.0.1", replica_pair.primary.port)
        with pytest.raises(StoreUnavailable, match=r"READONLY|read only"):
            await s.create(s.run_id("late"))


async def test_a_store_that_nobody_serves_says_so_soon() -> None:
    store = RedisEventStore("redis://user:s3cret@127.0.0.1:1/0")
    async with asyncio.timeout(5):
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1 cannot be reached") as caught:
            await store.open()
    assert "s3cret" not in str(caught.value)


async def test_other_settings_than_the_stores_are_refused(redis_url: str) -> None:
    async with opened(f"{redis_url}?partitions=8") as s:
        assert s.store.partitions == 8
    async with opened(redis_url) as s:
        assert s.store.partitions == 8
    with pytest.raises(StoreMismatch, match="has 8 partitions, not the 16"):
        await RedisEventStore(redis_url, partitions=16).open()


async def test_a_store_of_a_newer_version_is_refused(empty_server: RedisServer) -> None:
    async with opened(empty_server.url):
        pass
    with empty_server.client() as client:
        client.hset("aaa:{meta}", "min_reader", "99")
    with pytest.raises(StoreTooNew, match="layout 99"):
        await RedisEventStore(empty_server.url).open()


async def test_a_run_id_cannot_reach_other_keys(redis_url: str) -> None:
    async with opened(redis_url) as s:
        for hostile in ("x}{p1", "a:b", "a b", "../a", "a\n", ""):
            with pytest.raises(ConfigError, match="run id"):
                await s.store.commit(0, [creates(hostile)])
            with pytest.raises(ConfigError, match="run id"):
                await s.store.read(hostile)


async def test_apps_and_queues_with_colons_do_not_meet(redis_url: str) -> None:
    async with opened(redis_url) as s:
        run = s.run_id()
        await s.create(run, app="a:b")
        await s.request(run, queue="c")
        assert not (await s.claim("w1", app="a", queues=("b:c", "c"))).claimed
        assert len((await s.claim("w1", app="a:b", queues=("c",))).claimed) == 1


async def _patiently(s: Scene, claim: port.Claim) -> port.Claimed:
    """The claim, once the replica has caught up."""
    while True:
        try:
            (one,) = (await s.one(claim, port.Claims)).claimed
        except StoreUnavailable:
            continue
        return one


async def test_a_heartbeat_of_thousands_names_exactly_what_was_lost(redis_url: str) -> None:
    async with opened(redis_url) as s:
        run, count = s.run_id(), 1_200
        await s.create(run)
        await s.append(run, *(opens(tool_requested(run, f"c{number}")) for number in range(count)))
        claimed = (await s.claim("w1", limit=count)).claimed
        assert len(claimed) == count
        gone = {claimed[number].request.id for number in (0, 511, 512, 1_199)}
        for one in claimed:
            if one.request.id in gone:
                await s.settle(one, "w1")
        beat = await s.pulse("w1", *(held(one) for one in claimed))
        assert {lost.request_id for lost in beat.lost_calls} == gone
        await s.close()


async def test_closing_answers_everybody_who_still_waits(empty_server: RedisServer) -> None:
    async with opened(empty_server.url) as s:
        await asyncio.to_thread(empty_server.pause)
        waiting = [
            asyncio.create_task(s.store.commit(s.home, [creates(s.run_id(f"r{number}"))]))
            for number in range(3)
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await s.store.close()
            ended = await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.to_thread(empty_server.resume)
        assert [type(error) for error in ended] == [StoreUnavailable] * 3
