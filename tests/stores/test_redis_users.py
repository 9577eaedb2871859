"""Two tenants on one server, whose users an administrator makes, finds again, changes and removes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from aaa.client import Client, open_client, password_digest, tenant_url
from aaa.errors import AccessRefused, ConfigError, StoreUnavailable
from aaa.store import open_store
from aaa.store.redis import RedisEventStore
from aaa.store.redis.library import library
from servers import RedisCluster, RedisServer
from servers.process import HOST
from stores.redis_words import opened

ENOUGH_S = 30.0
SHOP, BANK = "b2e1-77", "c3f2-88"
ONE, TWO, THREE = (password_digest(word) for word in ("one", "two", "three"))


@dataclass
class Site:
    """A server with the stores of two tenants, each opened as its administrator."""

    server: RedisServer
    shop: Client
    bank: Client

    def url(self, tenant: str, password: str = "one") -> str:
        return tenant_url(self.server.url, tenant, user=tenant, password=password)

    def connection(self, tenant: str, password: str) -> Any:
        """Logged in, or AuthenticationError; nothing is tried twice."""
        connection: Any = redis.Connection  # the driver's has no types
        made = connection(
            host=HOST,
            port=self.server.port,
            username=tenant,
            password=password,
            socket_timeout=5,
            retry=Retry(NoBackoff(), 0),
        )
        made.connect()
        return made

    def lets_in(self, tenant: str, password: str) -> bool:
        try:
            self.connection(tenant, password).disconnect()
        except redis.AuthenticationError:
            return False
        return True


@pytest_asyncio.fixture(params=["redis", "valkey"])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    server: RedisServer = request.getfixturevalue(f"{request.param}_server")
    server.start().reset()
    async with asyncio.timeout(ENOUGH_S):
        shop, _ = await open_client(tenant_url(server.url, SHOP))
        bank, _ = await open_client(tenant_url(server.url, BANK))
        yield Site(server, shop, bank)
        await shop.close()
        await bank.close()
    with server.client() as admin:
        admin.execute_command("ACL", "DELUSER", SHOP, BANK)


async def test_each_tenant_works_in_its_own_store_and_cannot_open_the_others(site: Site) -> None:
    await site.shop.users.admit(SHOP, [ONE])
    await site.bank.users.admit(BANK, [ONE])
    for tenant in (SHOP, BANK):
        async with opened(site.url(tenant)) as s:
            await s.call()
            assert (await s.settle(await s.take_one("w1"), "w1")).verdict == "applied"
            await s.close()
    assert len(await site.shop.store.runs()) == len(await site.bank.store.runs()) == 1
    others = site.url(SHOP).replace(f"aaa:{SHOP}:", f"aaa:{BANK}:")
    with pytest.raises(AccessRefused, match="lacks a permission"):
        await RedisEventStore(others).open()


async def test_a_tenant_can_neither_read_nor_write_nor_listen_beyond_its_prefix(site: Site) -> None:
    """Every key of the other tenant, by every command that the user has for itself or in a function."""
    await site.shop.users.admit(SHOP, [ONE])
    async with opened(tenant_url(site.server.url, BANK)) as s:
        await s.call()
        await s.take_one("w1")
        await s.close()
    with site.server.client() as admin:
        keys = [key.decode() for key in admin.scan_iter(f"aaa:{BANK}:*")]
        functions = re.findall(rf"\b{library().name}_\w+", str(admin.function_list()))
        before = {key: admin.dump(key) for key in keys}
        commands = [word.decode() for word in admin.command_list()]
    assert len(keys) > 3
    assert len(functions) > 3
    with redis.Redis(
        host=HOST, port=site.server.port, username=SHOP, password="one", socket_timeout=5
    ) as client:
        for key in keys:
            for command in _takes_a_key(commands):
                assert _refused(client, *command, key), command
            for function in functions:
                for verb in ("FCALL", "FCALL_RO"):
                    with pytest.raises(redis.exceptions.NoPermissionError):
                        client.execute_command(verb, function, "1", key, "x", "x", "x")
        for channel in (f"aaa:{BANK}:{{p0}}:wake", "anything"):
            for verb in ("SSUBSCRIBE", "SUBSCRIBE", "PSUBSCRIBE"):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(verb, channel)
            for verb in ("SPUBLISH", "PUBLISH"):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(verb, channel, "x")
    with site.server.client() as admin:
        assert {key: admin.dump(key) for key in keys} == before


def _refused(client: Any, *words: str) -> bool:
    """Whether the user lacks the permission, with as many further arguments as the command wants."""
    for number in range(4):
        try:
            client.execute_command(*words, *"012"[:number])
        except redis.exceptions.NoPermissionError:
            return True
        except redis.ResponseError:  # the wrong number: the server looks at that first
            continue
        else:
            return False
    return False


def _takes_a_key(commands: list[str]) -> list[tuple[str, ...]]:
    """Commands whose first argument is a key, whatever the rest."""
    strings = ("get", "set", "append", "getdel", "dump", "type", "del", "unlink", "exists", "touch")
    hashes = ("hget", "hgetall", "hkeys", "hlen", "hset", "hdel", "hmget", "hscan")
    lists = ("lrange", "lindex", "rpush", "lpush", "lset", "llen", "lpop", "ltrim")
    sets = ("sadd", "srem", "smembers", "zadd", "zrem", "zrange", "zrangebyscore", "zrevrange")
    others = ("expire", "persist", "rename", "copy", "sort", "object|encoding", "watch", "xadd")
    words = (*strings, *hashes, *lists, *sets, *others)
    assert {word.partition("|")[0] for word in words} <= {*commands}
    return [tuple(word.split("|")) for word in words]


ADMINISTRATION = (
    "KEYS *", "SCAN 0", "RANDOMKEY", "DBSIZE", "FLUSHALL", "FLUSHDB", "SWAPDB 0 1", "MONITOR",
    "CONFIG GET *", "CONFIG SET maxmemory 1", "ACL LIST", "ACL WHOAMI", "ACL GETUSER default",
    "ACL SETUSER b2e1-77 +@all", "ACL DELUSER default", "CLIENT LIST", "CLIENT KILL TYPE normal",
    "EVAL x 0", "SCRIPT LOAD x", "FUNCTION LOAD x", "FUNCTION LIST", "FUNCTION DUMP",
    "FUNCTION FLUSH", "FUNCTION KILL", "DEBUG SLEEP 0", "SHUTDOWN NOSAVE", "REPLICAOF NO ONE",
    "SAVE", "BGREWRITEAOF", "MODULE LIST", "SLOWLOG GET", "MIGRATE h 1 k 0 1", "PUBSUB CHANNELS",
    "CLUSTER NODES", "CLUSTER RESET",
)  # fmt: skip


async def test_a_tenant_may_not_list_administrate_or_bring_code(site: Site) -> None:
    await site.shop.users.admit(SHOP, [ONE])
    with redis.Redis(
        host=HOST, port=site.server.port, username=SHOP, password="one", socket_timeout=5
    ) as client:
        for words in ADMINISTRATION:
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*words.split())


async def test_a_user_is_known_again_and_whatever_was_changed_of_it_is_set_anew(site: Site) -> None:
    users = site.shop.users
    assert not await users.admitted(SHOP, [ONE])
    await users.admit(SHOP, [ONE, TWO])
    assert await users.admitted(SHOP, [TWO, ONE])
    assert not await users.admitted(SHOP, [ONE])
    assert not await site.bank.users.admitted(SHOP, [ONE, TWO])  # another store's rule
    for change in (
        "off",
        ">three",
        f"~aaa:{BANK}:*",
        "&*",
        "+get",
        "-fcall",
        "nopass",
        "(~* +get)",
    ):
        with site.server.client() as admin:
            admin.execute_command("ACL", "SETUSER", SHOP, change)
        assert not await users.admitted(SHOP, [ONE, TWO]), change
        await users.admit(SHOP, [ONE, TWO])
        assert await users.admitted(SHOP, [ONE, TWO]), change


async def test_a_password_is_changed_under_a_worker_that_stays(site: Site) -> None:
    users = site.shop.users
    await users.admit(SHOP, [ONE])
    password = "one"
    store = open_store(site.url(SHOP), latest=lambda: site.url(SHOP, password))
    await store.open()
    await users.admit(SHOP, [TWO, ONE])
    assert site.lets_in(SHOP, "one")
    assert site.lets_in(SHOP, "two")
    password = "two"
    await users.admit(SHOP, [TWO])
    assert not site.lets_in(SHOP, "one")
    assert await store.runs() == []  # the old connection stands
    with site.server.client() as admin:
        admin.execute_command("CLIENT", "KILL", "USER", SHOP)
    for _ in range(3):  # the connection is noticed to be gone, and made anew
        try:
            assert await store.runs() == []
            break
        except StoreUnavailable:
            continue
    else:
        raise AssertionError("the worker did not come back with the new password")
    await store.close()


async def test_a_user_that_the_server_forgot_is_made_again_and_one_that_goes_is_cut_off(
    site: Site,
) -> None:
    users = site.shop.users
    await users.admit(SHOP, [ONE])
    await site.shop.store.runs()
    site.server.kill()
    site.server.start()
    assert not site.lets_in(SHOP, "one")
    for _ in range(3):
        try:
            assert not await users.admitted(SHOP, [ONE])
            break
        except StoreUnavailable:
            continue
    await users.admit(SHOP, [ONE])
    connection = site.connection(SHOP, "one")
    await users.expel(SHOP)
    await users.expel(SHOP)
    with pytest.raises(redis.ConnectionError):
        connection.read_response()
    assert not site.lets_in(SHOP, "one")


async def test_who_may_make_no_users_is_told_so(site: Site) -> None:
    await site.shop.users.admit(SHOP, [ONE])
    client, _ = await open_client(site.url(SHOP))
    for ask in (
        client.users.admitted(SHOP, [ONE]),
        client.users.admit(SHOP, []),
        client.users.expel(SHOP),
    ):
        with pytest.raises(AccessRefused, match=r"lacks a permission.*docs/stores/redis.md"):
            await ask
    await client.close()


async def test_in_a_cluster_every_master_knows_the_user(redis_cluster: RedisCluster) -> None:
    redis_cluster.start().reset()
    async with asyncio.timeout(ENOUGH_S):
        client, _ = await open_client(tenant_url(redis_cluster.url, SHOP))
        await client.users.admit(SHOP, [ONE])
        url = tenant_url(redis_cluster.url, SHOP, user=SHOP, password="one")
        async with opened(url) as s:
            await s.call()
            await s.close()
        with redis_cluster.nodes[1].client() as node:
            node.execute_command("ACL", "DELUSER", SHOP)
        assert not await client.users.admitted(SHOP, [ONE])
        await client.users.expel(SHOP)
        for server in redis_cluster.nodes:
            with server.client() as node:
                assert SHOP.encode() not in node.execute_command("ACL", "USERS")
        await client.close()


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("redis://h", "redis://u:p%2F@h?prefix=aaa:t:"),
        (
            "rediss://:pw@h:1/2?ssl_ca_certs=/ca",
            "rediss://u:p%2F@h:1/2?ssl_ca_certs=/ca&prefix=aaa:t:",
        ),
        ("redis+sentinel://a:b@h,i:2/m?prefix=x:", "redis+sentinel://u:p%2F@h,i:2/m?prefix=x:t:"),
    ],
)
def test_a_tenants_url_is_its_servers_under_a_prefix_of_its_own(url: str, found: str) -> None:
    assert tenant_url(url, "t", user="u", password="p/") == found


def test_a_store_without_users_serves_one_tenant_only() -> None:
    with pytest.raises(ConfigError, match="postgresql: cannot be shared"):
        tenant_url("postgresql://h/d", "t")
    with pytest.raises(ConfigError, match="has no users"):
        _ = Client("memory:").users
