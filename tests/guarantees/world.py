"""Several workers on one store, an outside ledger of effects, and links that lose what they carry.

Everything goes through the public surface: Engine, Client, ToolHandler. A worker is killed with
``engine.kill()``; it is cut off from the store by its :class:`Link`; :class:`Process` gives it a
thread and an event loop of its own, so that it can be frozen or blocked as a process is.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from aaa import events as ev
from aaa.algos import Algorithm, ToolLoop
from aaa.client import Client
from aaa.clock import SystemClock
from aaa.cluster import preferred
from aaa.errors import StoreUnavailable
from aaa.events import Event
from aaa.ids import partition_of
from aaa.llm import FakeLLMClient, LLMHandler, ModelReply, ModelRequest
from aaa.llm.fake import text
from aaa.policy import GuardConfig, ToolPolicyRules
from aaa.runtime import Engine
from aaa.store import MemoryEventStore, port
from aaa.store.port import Committed, EventStore, Operation, RunInfo, StoreInfo, Wake
from aaa.tools import ToolHandler, ToolRegistry

#: A lease that a dead worker leaves behind ends after this time.
SHORT_S = 0.2
#: A bound for everything that a test waits for.
PATIENCE_S = float(os.environ.get("AAA_TEST_PATIENCE_S", "10"))

Wanted = Callable[[Operation], bool]


@dataclass(slots=True)
class Ledger:
    """What the world outside has seen: each start of a tool, each effect."""

    starts: list[Any] = field(default_factory=list)
    effects: list[Any] = field(default_factory=list)


class Shifted(SystemClock):
    """A worker's own clock, which can be put forward: its machine slept."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def boot_s(self) -> float:
        return super().boot_s() + self.ahead_s


class Link:
    """One worker's way to the shared store."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        #: Nothing gets through, heartbeats included.
        self.cut = False
        #: So many heartbeats fail from now on.
        self.lost_pulses = 0
        self.pulses = 0
        #: So many reads fail from now on.
        self.lost_reads = 0
        self.reads_lost = 0
        self.committed: list[Operation] = []
        self._lose_request: list[Wanted] = []
        self._lose_reply: list[Wanted] = []
        self._gates: list[tuple[Wanted, asyncio.Event, asyncio.Event]] = []

    def lose_request(self, wanted: Wanted) -> None:
        """The next batch with such an operation never arrives."""
        self._lose_request.append(wanted)

    def lose_reply(self, wanted: Wanted) -> None:
        """The next batch with such an operation is applied, and its reply is lost."""
        self._lose_reply.append(wanted)

    def hold(self, wanted: Wanted) -> tuple[asyncio.Event, asyncio.Event]:
        """Stop the next such batch before the store: (it is there, let it go on)."""
        gate = (wanted, asyncio.Event(), asyncio.Event())
        self._gates.append(gate)
        return gate[1], gate[2]

    @property
    def partitions(self) -> int:
        return self._store.partitions

    async def open(self) -> StoreInfo:
        return await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    async def commit(
        self, partition: int, operations: Sequence[Operation], *, seen: int = 0
    ) -> Committed:
        await asyncio.sleep(0)
        for gate in list(self._gates):
            if any(map(gate[0], operations)):
                self._gates.remove(gate)
                gate[1].set()
                await gate[2].wait()
        if self.cut or _taken(self._lose_request, operations):
            raise StoreUnavailable("the request was lost")
        self.committed += operations
        done = await self._store.commit(partition, operations, seen=seen)
        if _taken(self._lose_reply, operations):
            raise StoreUnavailable("the reply was lost")
        return done

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Event]:
        self._reading()
        return await self._store.read(run_id, after=after, limit=limit)

    async def run(self, run_id: str) -> RunInfo | None:
        self._reading()
        return await self._store.run(run_id)

    async def runs(
        self, *, status: str | None = None, app: str | None = None, limit: int = 1_000
    ) -> list[RunInfo]:
        self._reading()
        return await self._store.runs(status=status, app=app, limit=limit)

    async def members(self) -> port.Members:
        self._reading()
        return await self._store.members()

    def on_wake(self, wake: Wake) -> None:
        self._store.on_wake(wake)

    def renewer(self) -> port.Renewer:
        return _Renewer(self, self._store.renewer())

    def _reading(self) -> None:
        self.lost_reads -= 1
        if self.cut or self.lost_reads >= 0:
            self.reads_lost += 1
            raise StoreUnavailable("the read was lost")


def _taken(losses: list[Wanted], operations: Sequence[Operation]) -> bool:
    for wanted in losses:
        if any(map(wanted, operations)):
            losses.remove(wanted)
            return True
    return False


class _Renewer:
    def __init__(self, link: Link, renewer: port.Renewer) -> None:
        self._link, self._renewer = link, renewer

    def pulse(self, pulse: port.Pulse) -> port.Beat:
        self._link.pulses += 1
        self._link.lost_pulses -= 1
        if self._link.cut or self._link.lost_pulses >= 0:
            raise StoreUnavailable("the heartbeat was lost")
        return self._renewer.pulse(pulse)

    def leave(self, worker: str) -> None:
        self._renewer.leave(worker)

    def close(self) -> None:
        self._renewer.close()


async def acquainted(*workers: Worker) -> None:
    """Wait until each of these workers knows that the others live."""
    names = {worker.engine.worker for worker in workers}

    def knows(worker: Worker) -> bool:
        return any(names <= set(each) for each in worker.engine._cluster._members.values())

    for worker in workers:
        worker.engine._heartbeat._wake.set()
    await asyncio.sleep(0)
    for worker in workers:
        worker.engine._heartbeat._wake.set()
    await until(lambda: all(map(knows, workers)), "a common membership")


def settles(operation: Operation) -> bool:
    return isinstance(operation, port.Settle)


def settles_tool(operation: Operation) -> bool:
    return isinstance(operation, port.Settle) and operation.outcome.type.startswith("aaa.tool.")


def claims_tool(operation: Operation) -> bool:
    """A decision that opens a tool call and offers to run it, or a claim."""
    if isinstance(operation, port.Append):
        return operation.offer is not None and any(
            isinstance(entry.effect, port.OpenCall)
            and entry.effect.queue.startswith(port.TOOL_QUEUE)
            for entry in operation.entries
        )
    return False


def script(*replies: ModelReply) -> Callable[[ModelRequest], ModelReply]:
    """A model that says these things one after the other, then repeats what it was told last.

    It goes by the conversation alone, so that it says the same to every worker.
    """

    def answer(request: ModelRequest) -> ModelReply:
        said = sum(message.role == "assistant" for message in request.messages)
        return replies[said] if said < len(replies) else text(request.messages[-1].content)

    return answer


@dataclass(frozen=True, slots=True)
class Worker:
    """An engine with what it serves."""

    engine: Engine
    handler: ToolHandler
    model: FakeLLMClient
    algorithm: Algorithm

    async def run(self, run_id: str = "run", task: Any = "go") -> Any:
        """Run to the end; the outcome's text, or the whole outcome if there is none."""
        outcome = await within(self.engine.run(self.algorithm, {"task": task}, run_id))
        return outcome.value["text"] if outcome.status == "completed" else outcome

    async def submit(self, run_id: str = "run", task: Any = "go", **more: Any) -> str:
        run = await within(self.engine.submit(self.algorithm, {"task": task}, run_id, **more))
        return str(run.run_id)

    async def text(self, run_id: str = "run") -> Any:
        """Wait for the end of a run; what it says."""
        outcome = await within(self.engine.wait(run_id))
        return outcome.value["text"] if outcome.status == "completed" else outcome


class World:
    """One store and its workers."""

    def __init__(self, *, partitions: int = 4) -> None:
        self.store = MemoryEventStore(partitions=partitions)
        self.client = Client(self.store)
        self.ledger = Ledger()
        self._engines: list[Engine] = []

    async def close(self) -> None:
        for engine in self._engines:
            await engine.kill()

    async def worker(
        self,
        name: str,
        *tools: Any,
        says: Sequence[ModelReply] = (),
        model: Callable[[ModelRequest], Any] | None = None,
        link: Link | None = None,
        guard: GuardConfig | None = None,
        policies: Sequence[ToolPolicyRules] = (),
        algorithm: Algorithm | None = None,
        loop: dict[str, Any] | None = None,
        handler: dict[str, Any] | None = None,
        llm: dict[str, Any] | None = None,
        **options: Any,
    ) -> Worker:
        """A started worker that serves a ToolLoop over these tools."""
        options.setdefault("worker_ttl_s", 15.0)
        engine = Engine(link or self.store, worker=name, **options)
        registry = ToolRegistry(tools)
        client = FakeLLMClient(model or script(*says))
        LLMHandler(client, backoff_s=0.001, **(llm or {})).attach(engine)
        given = ToolHandler(registry, guard=guard, policies=policies, **(handler or {}))
        given.attach(engine)
        algorithm = algorithm or ToolLoop(registry, **(loop or {}))
        engine.serve(algorithm)
        await engine.start()
        self._engines.append(engine)
        return Worker(engine, given, client, algorithm)

    async def log(self, run_id: str = "run") -> list[Event]:
        return await self.store.read(run_id)

    async def types(self, run_id: str = "run") -> list[str]:
        """The run's events, without the prefix."""
        return [event.type.removeprefix("aaa.") for event in await self.log(run_id)]

    async def of(self, type_: str, run_id: str = "run") -> list[Event]:
        return [event for event in await self.log(run_id) if event.type == type_]

    async def seen(self, type_: str, run_id: str = "run", *, count: int = 1) -> list[Event]:
        """Wait until the run has so many events of this type."""
        await until(lambda: self._count(run_id, type_) >= count, f"{count} × {type_}")
        return await self.of(type_, run_id)

    def _count(self, run_id: str, type_: str) -> int:
        rows = self.store._of(run_id)
        return sum(event.type == type_ for event in rows.events.get(run_id, ()))

    async def failures(self, run_id: str = "run") -> list[str]:
        """The errors of the run's failed tool calls."""
        return [event.data["error"] for event in await self.of(ev.TOOL_FAILED, run_id)]


def run_of(worker: str, *others: str, partitions: int = 4) -> str:
    """A run id whose partition this worker should own among these."""
    ids = (f"run-{number}" for number in count())
    live = (worker, *others)
    return next(i for i in ids if preferred(partition_of(i, partitions), live) == worker)


async def until(happened: Callable[[], bool], what: str = "what was expected") -> None:
    """Look again and again, for a bounded time."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not happened():
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"waited {PATIENCE_S:g} s in vain for {what}") from None


async def within(work: Awaitable[Any], limit_s: float = PATIENCE_S) -> Any:
    """The result, in a bounded time."""
    try:
        return await asyncio.wait_for(work, limit_s)
    except TimeoutError:
        raise AssertionError(f"still not done after {limit_s:g} s") from None


class Process:
    """A thread with an event loop of its own: it can be blocked without blocking the test."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    async def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run this there."""
        return await within(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop)))

    async def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, PATIENCE_S)
        self._loop.close()
