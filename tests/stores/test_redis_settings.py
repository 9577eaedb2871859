"""The Redis store under restricted users, settings that lose data, sentinels and clusters."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from aaa.client import acl_rule
from aaa.errors import ConfigError, StoreUnavailable
from aaa.store import port
from aaa.store.redis import RedisEventStore
from aaa.testing.scene import Scene, held
from servers import RedisCluster, RedisServer, ReplicaPair
from servers.process import HOST, Server, wait_until
from servers.redis_server import Fsync
from stores.redis_words import Wire, opened

TLS = Path(__file__).parent / "tls"
DOC = Path(__file__).parents[2] / "docs" / "stores" / "redis.md"


def documented(user: str) -> list[str]:
    """The rule in the documentation for a user."""
    start = f"ACL SETUSER {user} "
    (line,) = (line for line in DOC.read_text().splitlines() if line.startswith(start))
    return line.split()[3:]


def test_the_documented_rules_are_the_published_ones() -> None:
    assert documented("aaa") == ["on", ">secret", *acl_rule("aaa:", owner=True)]
    assert documented("tenant") == ["on", ">secret", *acl_rule("aaa:b2e1:")]


@pytest.fixture
def restricted_url(redis_server: RedisServer) -> Iterator[str]:
    """A Redis on which the user of the documentation's ACL line is all that the store has."""
    redis_server.start().reset()
    with redis_server.client() as client:
        client.execute_command("ACL", "SETUSER", "aaa", "reset", *documented("aaa"))
    yield f"redis://aaa:secret@{HOST}:{redis_server.port}/0"
    with redis_server.client() as client:
        client.execute_command("ACL", "DELUSER", "aaa")


async def test_the_documented_user_can_do_everything_and_reach_nothing_else(
    restricted_url: str,
) -> None:
    async with opened(restricted_url) as s:
        await s.call()
        one = await s.take_one("w1")
        assert (await s.pulse("w1", held(one))).lost_calls == ()
        assert (await s.settle(one, "w1")).verdict == "applied"
        assert [run.run_id for run in await s.store.runs()] == [one.run_id]
        await s.close()
    with (
        redis.Redis.from_url(restricted_url) as client,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        client.get("others")
    with pytest.raises(ConfigError, match="lacks a permission") as caught:
        await RedisEventStore(f"{restricted_url}?prefix=others:").open()
    assert "secret" not in str(caught.value)


async def test_a_missing_permission_is_named_before_anything_is_written(
    restricted_url: str, redis_server: RedisServer
) -> None:
    with redis_server.client() as client:
        client.execute_command("ACL", "SETUSER", "aaa", "-zrem")
    with pytest.raises(ConfigError, match="zrem"):
        await RedisEventStore(restricted_url).open()


async def test_unreadable_settings_are_a_warning(
    restricted_url: str, redis_server: RedisServer
) -> None:
    with redis_server.client() as client:
        client.execute_command("ACL", "SETUSER", "aaa", "-config", "-info")
    store = RedisEventStore(restricted_url)
    (warning,) = (await store.open()).warnings
    await store.close()
    assert "could not be read" in warning


async def test_a_wrong_password_is_a_setting_to_mend(restricted_url: str) -> None:
    for url in (restricted_url.replace("secret", "s3cret"), restricted_url.replace("aaa:", "bbb:")):
        with pytest.raises(ConfigError, match="user name or password") as caught:
            await RedisEventStore(url).open()
        assert "s3cret" not in str(caught.value)


async def test_a_server_that_wants_a_password_says_so() -> None:
    with RedisServer() as server:
        with server.client() as client:
            client.config_set("requirepass", "s3cret")
        with pytest.raises(ConfigError, match=r"NOAUTH|user name or password"):
            await RedisEventStore(server.url).open()
        with server.client(password="s3cret") as client:
            client.config_set("requirepass", "")


@pytest.mark.parametrize(
    ("fsync", "settings", "says"),
    [
        ("always", {}, []),
        ("everysec", {}, ["appendfsync is everysec"]),
        ("no", {}, ["appendfsync is no"]),
        ("off", {}, ["loses everything"]),
        ("off", {"save": "60 1"}, ["all but the last snapshot"]),
        ("always", {"maxmemory-policy": "allkeys-lru"}, ["allkeys-lru"]),
        ("always", {"maxmemory-policy": "volatile-lru"}, []),
    ],
)
async def test_settings_that_lose_data_are_said(
    fsync: Fsync, settings: dict[str, str], says: list[str]
) -> None:
    with RedisServer(fsync=fsync, settings=settings) as server:
        store = RedisEventStore(server.url)
        info = await store.open()
        await store.close()
    assert info.server.startswith("Redis ")
    assert len(info.warnings) == len(says)
    assert all(words in warning for words, warning in zip(says, info.warnings, strict=True))


async def test_replicas_without_waiting_are_said(replica_pair: ReplicaPair) -> None:
    for option, count in (("", 1), ("?wait_replicas=1", 0)):
        store = RedisEventStore(replica_pair.url + option)
        warnings = (await store.open()).warnings
        await store.close()
        assert sum("failover" in warning for warning in warnings) == count


async def test_tls_is_spoken_and_certificates_are_checked(
    redis_server: RedisServer, redis_url: str
) -> None:
    redis_server.start().reset()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(TLS / "test-only.pem", TLS / "test-only.key")
    async with Wire(redis_server.port, tls=tls) as wire:
        async with opened(f"{wire.url}?ssl_ca_certs={TLS / 'test-only.pem'}") as s:
            await s.call()
            one = await s.take_one("w1")
            assert (await s.pulse("w1", held(one))).lost_calls == ()
            await s.close()
        with pytest.raises(ConfigError, match="is not trusted"):
            await RedisEventStore(wire.url).open()


async def test_a_unix_socket_is_an_address(tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    with RedisServer(settings={"unixsocket": str(path)}):
        async with opened(f"redis:///0?socket={path}") as s:
            await s.call()
            one = await s.take_one("w1")
            assert (await s.pulse("w1", held(one))).lost_calls == ()
            await s.close()


async def test_the_server_names_itself(valkey_url: str) -> None:
    store = RedisEventStore(valkey_url)
    assert (await store.open()).server.startswith("Valkey ")
    await store.close()


async def test_an_address_in_a_cluster_finds_the_whole_cluster(
    redis_cluster_url: str, redis_cluster: RedisCluster
) -> None:
    host = redis_cluster_url.removeprefix("redis://").removesuffix("/0")
    async with opened(redis_cluster_url) as s, opened(f"redis+cluster://{host}/") as t:
        assert s.store.partitions == 64
        await s.call()
        assert [run.run_id for run in await t.store.runs()] == [s.run_id()]
    for node in redis_cluster.nodes:
        with node.client() as client:
            assert client.execute_command("FUNCTION", "LIST")


async def test_a_cluster_that_moves_a_slot_is_followed(
    redis_cluster_url: str, redis_cluster: RedisCluster
) -> None:
    async with opened(redis_cluster_url) as s:
        request = await s.call()
        key = f"aaa:{{p{s.home}}}:"
        with redis_cluster.client() as cluster:
            slot = cluster.keyslot(key)
        moved = await asyncio.to_thread(_move_slot, redis_cluster, slot)
        assert moved > 0
        one = await s.take_one("w1")
        assert one.request == request
        assert (await s.pulse("w1", held(one))).lost_calls == ()
        await s.close()
    await asyncio.to_thread(_move_slot, redis_cluster, slot)


async def test_a_partition_on_its_way_to_another_node_waits(
    redis_cluster_url: str, redis_cluster: RedisCluster
) -> None:
    async with opened(redis_cluster_url) as s:
        await s.call()
        with redis_cluster.client() as cluster:
            slot = cluster.keyslot(f"aaa:{{p{s.home}}}:")
        source, target = _owner_and_other(redis_cluster, slot)
        names = {node: _node_id(node) for node in (source, target)}
        with source.client() as at_source, target.client() as at_target:
            at_target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
            at_source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
            with pytest.raises(StoreUnavailable, match="not ready"):
                await s.claim("w1")
            at_source.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
            at_target.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
        assert (await s.take_one("w1")).attempt == 1


class Sentinel(Server):
    """One sentinel that watches a primary as ``mymaster``."""

    def __init__(self, primary: RedisServer) -> None:
        super().__init__(name="sentinel")
        self._primary = primary

    @property
    def url(self) -> str:
        return f"redis+sentinel://{HOST}:{self.port}/mymaster/0"

    def command(self) -> list[str]:
        lines = [
            f"port {self.port}",
            f"bind {HOST}",
            f"dir {self.home}",
            f"sentinel monitor mymaster {HOST} {self._primary.port} 1",
            "sentinel down-after-milliseconds mymaster 500",
            "sentinel failover-timeout mymaster 2000",
        ]
        configuration = self.home / "sentinel.conf"
        configuration.write_text("\n".join(lines))
        return [self._primary.command()[0], str(configuration), "--sentinel"]

    def answers(self) -> bool:
        try:
            with redis.Redis(host=HOST, port=self.port, socket_timeout=1) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


async def test_sentinels_lead_to_the_master_that_takes_over(replica_pair: ReplicaPair) -> None:
    with Sentinel(replica_pair.primary) as sentinel:
        async with opened(sentinel.url) as s:
            request = await s.call()
            with replica_pair.replica.client() as client:
                assert wait_until(lambda: bool(client.keys(f"*e:{request.run_id}")))
            with redis.Redis(host=HOST, port=sentinel.port) as watcher:
                assert wait_until(lambda: watcher.sentinel_slaves("mymaster") != [])
            await asyncio.to_thread(replica_pair.primary.kill)
            async with asyncio.timeout(30):
                one = await _after_failover(s)
            assert one.request == request
            assert (await s.pulse("w1", held(one))).lost_calls == ()
            await s.close()


async def _after_failover(s: Scene) -> port.Claimed:
    while True:
        try:
            return await s.take_one("w1")
        except StoreUnavailable:
            await asyncio.sleep(0.05)


def _owner_and_other(cluster: RedisCluster, slot: int) -> tuple[RedisServer, RedisServer]:
    with cluster.client() as client:
        number = client.nodes_manager.get_node_from_slot(slot).port
    (owner,) = (node for node in cluster.nodes if node.port == number)
    return owner, next(node for node in cluster.nodes if node is not owner)


def _node_id(node: RedisServer) -> str:
    with node.client(decode_responses=True) as client:
        return str(client.execute_command("CLUSTER", "MYID"))


def _move_slot(cluster: RedisCluster, slot: int) -> int:
    """Move a slot with its keys to another node; the number of keys."""
    source, target = _owner_and_other(cluster, slot)
    with source.client() as at_source, target.client() as at_target:
        at_target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", _node_id(source))
        at_source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", _node_id(target))
        keys = at_source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 10_000)
        if keys:
            at_source.execute_command("MIGRATE", HOST, target.port, "", 0, 5_000, "KEYS", *keys)
        for client in (at_target, at_source):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", _node_id(target))
    return len(keys)
