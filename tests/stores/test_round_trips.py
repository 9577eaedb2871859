"""How many trips to the store a run costs, counted at the server, one run at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest
import redis

from aaa.algos import ToolLoop
from aaa.llm import FakeLLMClient, LLMHandler, ModelReply, ModelRequest
from aaa.llm.fake import text, tool_call
from aaa.runtime import Engine
from aaa.tools import GuardConfig, ToolHandler, ToolRegistry, tool
from servers import PostgresServer

RUNS = 100
#: Submission, model, tool, model: what the budget allows a whole run and one guarded call.
BUDGET_RUN, BUDGET_CALL = 5, 2


@tool
async def noop(value: str) -> str:
    """Do nothing."""
    return value


def calls_tools(times: int) -> FakeLLMClient:
    """A model that calls the tool so often, once a turn, and then answers."""

    def say(request: ModelRequest) -> ModelReply:
        done = sum(message.role == "tool" for message in request.messages)
        return text("done") if done >= times else tool_call("noop", value="x")

    return FakeLLMClient(say)


async def trips_a_run(url: str, count: Callable[[], int], *, tools: int) -> float:
    """The mean number of trips of a run with so many tool calls."""
    registry = ToolRegistry([noop])
    # Leases so long that no renewal falls into the measurement: renewing is not on a call's way.
    engine = Engine(url, worker_ttl_s=3_600)
    LLMHandler(calls_tools(tools), lease_ttl_s=3_600).attach(engine)
    ToolHandler(registry, guard=GuardConfig(lease_ttl_s=3_600)).attach(engine)
    loop = ToolLoop(registry)
    async with engine:
        for _ in range(4 * engine.store.partitions):  # until every partition is owned
            await engine.run(loop, {"task": "warm up"})
        before = await asyncio.to_thread(count)
        for _ in range(RUNS):
            outcome = await engine.run(loop, {"task": "go"})
            assert outcome.status == "completed"
        after = await asyncio.to_thread(count)
    return float(after - before) / RUNS


async def judge(url: str, count: Callable[[], int]) -> None:
    none = await trips_a_run(url, count, tools=0)
    one = await trips_a_run(url, count, tools=1)
    four = await trips_a_run(url, count, tools=4)
    assert one <= BUDGET_RUN
    # Even with the model turn that every call brings along.
    # The warm-up may have missed a partition or two, which are then owned in the measurement.
    assert round((four - one) / 3, 1) <= BUDGET_CALL
    assert 1 <= none < one < four


async def test_a_run_on_redis_stays_within_its_budget_of_trips(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)

    def count() -> int:
        stats = client.info("commandstats")
        return sum(
            int(stats.get(name, {}).get("calls", 0))
            for name in ("cmdstat_fcall", "cmdstat_fcall_ro")
        )

    try:
        await judge(redis_url, count)
    finally:
        client.close()


@pytest.mark.timeout(240)
async def test_a_run_on_postgres_stays_within_its_budget_of_trips(
    postgres_server: PostgresServer,
) -> None:
    postgres_server.start()
    name = postgres_server.create_database()
    url = postgres_server.url_of(name)

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE \"{name}\" SET log_statement = 'all'")
    log = postgres_server.home / "server.log"

    def count() -> int:
        # Each statement of the store is one trip, and the server logs it before it answers.
        lines = log.read_text(errors="replace").splitlines()
        return sum("LOG:  execute" in line or "LOG:  statement:" in line for line in lines)

    try:
        await judge(url, count)
    finally:
        postgres_server.drop_database(name)
