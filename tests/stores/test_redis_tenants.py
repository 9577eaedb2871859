"""Several namespaces on one server: each worker's user reaches its own prefix and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import redis

from aaa.algos import ToolLoop
from aaa.client import acl_rule, open_client
from aaa.errors import AccessRefused, StoreUnavailable
from aaa.llm import FakeLLMClient, LLMHandler
from aaa.llm.fake import text, tool_call
from aaa.llm.messages import ModelReply, ModelRequest
from aaa.runtime import Engine
from aaa.store.port import Append, Why
from aaa.store.redis import RedisEventStore
from aaa.store.redis.library import library
from aaa.testing.scene import Scene, held
from aaa.tools import ToolHandler, ToolRegistry, tool
from servers import RedisServer
from servers.process import HOST
from stores.redis_words import OpenedStore, opened

ENOUGH_S = 30.0
PREFIX, OTHERS = "aaa:b2e1-77:", "aaa:c3f2-88:"


@tool
async def look() -> str:
    """Look."""
    return "seen"


def _model(request: ModelRequest) -> ModelReply:
    return text("done") if request.messages[-1].role == "tool" else tool_call("look")


@dataclass(frozen=True)
class Tenancy:
    """A server with one tenant, and its administrator."""

    server: RedisServer

    @property
    def url(self) -> str:
        return f"redis://tenant:secret@{HOST}:{self.server.port}/0?prefix={PREFIX}"

    def admin(self, prefix: str = PREFIX) -> str:
        return f"{self.server.url}?prefix={prefix}"

    async def load(self) -> None:
        """What the operator does: open the store once as a user who may load functions."""
        client, _ = await open_client(self.admin())
        await client.close()


@pytest.fixture(params=["redis", "valkey"])
def tenancy(request: pytest.FixtureRequest) -> Iterator[Tenancy]:
    server: RedisServer = request.getfixturevalue(f"{request.param}_server")
    server.start().reset()
    with server.client() as client:
        rule = acl_rule(PREFIX)
        client.execute_command("ACL", "SETUSER", "tenant", "reset", "on", ">secret", *rule)
    yield Tenancy(server)
    with server.client() as client:
        client.execute_command("ACL", "DELUSER", "tenant")


async def test_a_tenants_worker_runs_a_run_and_wakes_and_is_woken(tenancy: Tenancy) -> None:
    await tenancy.load()
    registry = ToolRegistry([look])
    engine = Engine(tenancy.url)
    LLMHandler(FakeLLMClient(_model)).attach(engine)
    ToolHandler(registry).attach(engine)
    app = engine.serve(ToolLoop(registry))
    async with engine, asyncio.timeout(ENOUGH_S):
        client, _ = await open_client(tenancy.admin())
        await client.submit(app, {"task": "t"}, run_id="r")
        assert (await engine.wait("r")).status == "completed"
        assert [member.worker for member in (await client.members()).members] == [engine.worker]
        await client.close()
    with tenancy.server.client() as admin:
        assert all(key.decode().startswith(PREFIX) for key in admin.scan_iter())


async def test_a_tenants_user_can_do_whatever_the_port_does(tenancy: Tenancy) -> None:
    await tenancy.load()
    async with opened(tenancy.url) as s:
        request = await s.call()
        one = await s.take_one("w1")
        assert (await s.pulse("w1", held(one))).lost_calls == ()
        assert (await s.settle(one, "w1")).verdict == "applied"
        assert [run.run_id for run in await s.store.runs()] == [one.run_id]
        await s.refused(Append(run_id=s.run_id("none"), entries=()), Why.NO_RUN)
        assert [event.id for event in await s.store.read(request.run_id)][1] == request.id
        await s.close()


async def test_a_tenants_user_reaches_no_other_prefix(tenancy: Tenancy) -> None:
    await tenancy.load()
    store = RedisEventStore(tenancy.admin(OTHERS))
    await store.open()
    scene = Scene(OpenedStore(store))
    await scene.call()
    await store.close()
    with pytest.raises(AccessRefused, match="lacks a permission"):
        await RedisEventStore(tenancy.url.replace(PREFIX, OTHERS)).open()
    base = f"{OTHERS}{{p0}}:"
    with redis.Redis.from_url(tenancy.url.partition("?")[0]) as client:
        for words in (
            ("GET", "plain"),
            ("FCALL_RO", library().function("members").decode(), "1", f"{OTHERS}{{workers}}"),
            ("FCALL", library().function("leave").decode(), "1", f"{OTHERS}{{workers}}", "w"),
            # A function that is called with a key of its own and works on others'.
            ("FCALL", library().function("commit").decode(), "0", base),
            ("SSUBSCRIBE", f"{base}wake"),
            ("FUNCTION", "LOAD", "REPLACE", library().source.decode()),
            ("FUNCTION", "FLUSH"),
            ("CONFIG", "GET", "*"),
            ("ACL", "LIST"),
            ("KEYS", "*"),
            ("SCAN", "0"),
            ("EVAL", "return 1", "0"),
            ("FLUSHDB",),
        ):
            with pytest.raises(redis.ResponseError):
                client.execute_command(*words)


async def test_functions_that_are_missing_are_said_and_waited_for(tenancy: Tenancy) -> None:
    with pytest.raises(
        StoreUnavailable, match=f"functions of this version of AAA .{library().name}"
    ):
        await RedisEventStore(tenancy.url).open()
    await tenancy.load()
    async with opened(tenancy.url) as s:
        await s.call()
        with tenancy.server.client() as admin:
            admin.execute_command("FUNCTION", "FLUSH", "SYNC")
        with pytest.raises(StoreUnavailable, match="may not load them"):
            await s.claim("w1")
        with pytest.raises(StoreUnavailable, match="may not load them"):
            await s.pulse("w1")
        await tenancy.load()
        await s.pulse("w1")
        assert len((await s.claim("w1")).claimed) == 1
        await s.close()


async def test_a_right_that_is_taken_away_for_a_moment_is_an_outage(tenancy: Tenancy) -> None:
    await tenancy.load()
    async with opened(tenancy.url) as s:
        await s.call()
        with tenancy.server.client() as admin:
            admin.execute_command("ACL", "SETUSER", "tenant", "-fcall")
            for ask in (s.claim("w1"), s.pulse("w1")):
                with pytest.raises(StoreUnavailable, match="lacks a permission"):
                    await ask
            admin.execute_command("ACL", "SETUSER", "tenant", "+fcall")
        await s.pulse("w1")
        assert len((await s.claim("w1")).claimed) == 1
        await s.close()
