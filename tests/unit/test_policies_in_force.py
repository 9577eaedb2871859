"""A worker runs a run's calls under the policy that the run requires, or not at all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from aaa import events as ev
from aaa.algos import ToolLoop
from aaa.client import Client, catalogue_of
from aaa.errors import ConfigError, DecisionRefused
from aaa.events import Event
from aaa.llm import LLMHandler
from aaa.llm.fake import FakeLLMClient, text, tool_call
from aaa.llm.messages import ModelReply, ModelRequest
from aaa.policy import PolicyLayers, ToolEntry, ToolPolicyRules
from aaa.runtime import Engine
from aaa.store import MemoryEventStore
from aaa.store.port import Beat, Committed, Operation, Pulse
from aaa.tools import ToolHandler, ToolRegistry, tool

ENOUGH_S = 20.0


def layers(name: str = "refund", **settings: object) -> PolicyLayers:
    entry = ToolEntry(name=name, settings=settings)
    return PolicyLayers(policies=[ToolPolicyRules(name="p", tools=[entry])])


ONCE = layers(delivery="at_most_once")
TWICE = layers(max_attempts=2)
DENY = PolicyLayers(policies=[ToolPolicyRules(name="p", unlisted_tools="deny")])


class Counting(MemoryEventStore):
    """Counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__(partitions=1)
        self.asked: Counter[str] = Counter()

    async def commit(
        self, partition: int, operations: Sequence[Operation], *, seen: int = 0
    ) -> Committed:
        self.asked["commit"] += 1
        return await super().commit(partition, operations, seen=seen)

    def _pulse(self, pulse: Pulse) -> Beat:
        self.asked["pulse"] += 1
        return super()._pulse(pulse)

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Event]:
        self.asked["read"] += 1
        return await super().read(run_id, after=after, limit=limit)


class Shop:
    """A worker whose ``refund`` waits for a word, and the client that looks on."""

    def __init__(self) -> None:
        self.store = Counting()
        self.client = Client(self.store)
        self.begun, self.go = asyncio.Queue[str](), asyncio.Semaphore(0)

        @tool
        async def refund(order_id: str) -> str:
            """Refund an order."""
            self.begun.put_nowait(order_id)
            await self.go.acquire()
            return "refunded"

        self.registry = ToolRegistry([refund])
        self.engine = Engine(self.store, worker="w", worker_ttl_s=1.5, drain_timeout_s=0.1)
        LLMHandler(FakeLLMClient(self._model)).attach(self.engine)
        ToolHandler(self.registry).attach(self.engine)
        self.app = self.engine.serve(ToolLoop(self.registry))

    def follow(self, *read: PolicyLayers) -> None:
        self.engine.follow_policies({one.hash: one for one in read})

    @staticmethod
    def _model(request: ModelRequest) -> ModelReply:
        done = sum(message.role == "tool" for message in request.messages)
        return text("done") if done == 2 else tool_call("refund", order_id=f"A-{done}")

    async def events(self, run_id: str, *types: str) -> list[Event]:
        return [event for event in await self.store.read(run_id) if event.type in types]

    async def until(self, run_id: str, type_: str) -> Event:
        """The newest event of the type, once there is one."""
        async with asyncio.timeout(ENOUGH_S):
            while not (found := await self.events(run_id, type_)):
                await asyncio.sleep(0.01)
        return found[-1]


@pytest.fixture
async def shop() -> Shop:
    return Shop()


@pytest.mark.guarantee("G22")
async def test_the_next_call_is_run_under_the_changed_policy_and_the_open_one_keeps_its_own(
    shop: Shop,
) -> None:
    shop.follow(ONCE, TWICE)
    async with shop.engine, asyncio.timeout(ENOUGH_S):
        await shop.client.submit(shop.app, {"task": "t"}, run_id="r", policy=ONCE.hash)
        await shop.begun.get()
        await shop.client.require_policy("r", TWICE.hash)
        shop.go.release()
        await shop.begun.get()
        shop.go.release()
        await shop.engine.wait("r")
    started = await shop.events("r", ev.TOOL_STARTED)
    assert [event.data["policy"] for event in started] == [ONCE.hash, TWICE.hash]
    overview = await shop.client.overview("r")
    assert overview is not None
    assert overview.policy == TWICE.hash
    with pytest.raises(DecisionRefused, match="the run has ended"):
        await shop.client.require_policy("r", ONCE.hash)


async def test_a_worker_without_the_policy_leaves_the_run_alone_without_asking_again_and_again(
    shop: Shop,
) -> None:
    shop.follow(TWICE)
    async with shop.engine, asyncio.timeout(ENOUGH_S):
        await shop.client.submit(shop.app, {"task": "t"}, run_id="r", policy=TWICE.hash)
        await shop.begun.get()
        await shop.client.require_policy("r", ONCE.hash)
        await shop.client.submit(shop.app, {"task": "t"}, run_id="other", policy=ONCE.hash)
        shop.go.release()
        await shop.until("r", ev.TOOL_COMPLETED)
        before = shop.store.asked.copy()
        while shop.store.asked["pulse"] < before["pulse"] + 3:
            await asyncio.sleep(0.01)
        assert shop.store.asked["commit"] - before["commit"] < 10
        assert shop.store.asked["read"] - before["read"] < 5
        assert shop.begun.empty()
        assert await shop.events("other", ev.LLM_REQUESTED) == []
        shop.follow(TWICE, ONCE)
        for _ in range(3):
            await shop.begun.get()
            shop.go.release()
        await shop.engine.wait("r")
        await shop.engine.wait("other")
    started = [*await shop.events("r", ev.TOOL_STARTED)]
    assert [event.data["policy"] for event in started] == [TWICE.hash, ONCE.hash]


async def test_a_run_that_requires_nothing_is_left_alone_by_a_worker_that_follows_policies(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.follow(ONCE)
    async with shop.engine, asyncio.timeout(ENOUGH_S):
        await shop.client.submit(shop.app, {"task": "t"}, run_id="bare")
        await shop.client.submit(shop.app, {"task": "t"}, run_id="r", policy=ONCE.hash)
        await shop.begun.get()
        assert await shop.events("bare", ev.LLM_REQUESTED) == []
        assert "run bare requires no policy" in caplog.text
        await shop.client.cancel("bare", by="me")  # needs none
        await shop.engine.wait("bare")


async def test_a_policy_that_does_not_fit_the_code_is_refused_and_reported(shop: Shop) -> None:
    bad = layers(heartbeat_s=20.0)
    shop.follow(ONCE, bad)
    async with shop.engine, asyncio.timeout(ENOUGH_S):
        while not (members := (await shop.client.members()).members):
            await asyncio.sleep(0.01)
        said = catalogue_of(members[0])
        assert said.policies == {ONCE.hash}
        assert "heartbeat_s (20) must be smaller than lease_ttl_s (15)" in said.refused[bad.hash]
        assert [each.name for each in said.tools] == ["refund"]
        await shop.client.submit(shop.app, {"task": "t"}, run_id="r", policy=bad.hash)
        await shop.client.submit(shop.app, {"task": "t"}, run_id="ok", policy=ONCE.hash)
        await shop.begun.get()
        assert await shop.events("r", ev.LLM_REQUESTED) == []


async def test_a_call_whose_tool_is_no_longer_allowed_is_not_run(shop: Shop) -> None:
    shop.follow(layers(requires_approval=True), DENY)
    asking = layers(requires_approval=True).hash
    async with shop.engine, asyncio.timeout(ENOUGH_S):
        await shop.client.submit(shop.app, {"task": "t"}, run_id="r", policy=asking)
        asked = await shop.until("r", ev.APPROVAL_REQUESTED)
        await shop.client.require_policy("r", DENY.hash)
        await shop.client.approve("r", asked.data["call_id"], by="me")
        failed = await shop.until("r", ev.TOOL_FAILED)
        assert (failed.data["error"], shop.begun.empty()) == ("NotExecuted", True)
        assert "a policy does not allow refund" in failed.data["message"]


async def test_only_a_hash_can_be_required(shop: Shop) -> None:
    await shop.store.open()
    with pytest.raises(ConfigError, match="is not a policy's hash"):
        await shop.client.submit(shop.app, {"task": "t"}, run_id="r", policy="default")
