"""Sound histories, made by running the real engine on the memory store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from aaa import events as ev
from aaa.algos import Algorithm, RunState, ToolLoop, call_tool, complete, set_timer
from aaa.check import Terms
from aaa.client import Client
from aaa.errors import ModelRefused, OutcomeUnknown
from aaa.events import Event
from aaa.llm import LLMHandler, ModelReply, ModelRequest
from aaa.llm.fake import FakeLLMClient, text, tool_call, tool_calls
from aaa.runtime import Engine
from aaa.store import MemoryEventStore
from aaa.store.port import RunInfo
from aaa.tools import Done, GuardConfig, Tool, ToolContext, ToolHandler, ToolRegistry, Verdict, tool

#: A lease and an ownership that a test can see end.
TTL_S = 0.25
BOUND_S = 20.0
RUN = "run-1"


@dataclass(frozen=True, slots=True)
class Made:
    """A history, its index entry, and the settings behind its policy hashes."""

    events: list[Event]
    info: RunInfo
    terms: dict[str, Terms]


@dataclass
class Stage:
    """A store with one run on it, and the engines that drive it."""

    tools: list[Tool[..., Any]]
    replies: Callable[[int], ModelReply]
    algorithm: Algorithm | None = None
    loop: dict[str, Any] = field(default_factory=dict)
    store: MemoryEventStore = field(default_factory=lambda: MemoryEventStore(partitions=2))
    terms: dict[str, Terms] = field(default_factory=dict)

    def engine(self, name: str) -> Engine:
        registry = ToolRegistry(self.tools)
        engine = Engine(self.store, worker=name, worker_ttl_s=TTL_S, drain_timeout_s=1.0)
        handler = ToolHandler(registry, guard=GuardConfig(lease_ttl_s=TTL_S), cancel_grace_s=0.2)
        LLMHandler(FakeLLMClient(self._model), max_attempts=1).attach(engine)
        handler.attach(engine)
        for settings in handler.compile().values():
            self.terms[settings.hash] = Terms(
                delivery=settings.guard.delivery.value,
                max_attempts=settings.guard.max_attempts,
                fence_results=settings.guard.fence_results,
                requires_approval=settings.requires_approval,
                enabled=settings.guard.enabled,
            )
        self.algorithm = self.algorithm or ToolLoop(registry, **self.loop)
        engine.serve(self.algorithm)
        return engine

    def _model(self, request: ModelRequest) -> ModelReply:
        return self.replies(sum(message.role == "assistant" for message in request.messages))

    @property
    def client(self) -> Client:
        return Client(self.store)

    async def submit(self, engine: Engine, **how: Any) -> None:
        assert self.algorithm is not None
        await engine.submit(self.algorithm, {"task": "do it"}, RUN, **how)

    async def until(self, type_: str, count: int = 1) -> None:
        """Wait until the log has so many events of a type."""
        while sum(event.type == type_ for event in await self.store.read(RUN)) < count:
            await asyncio.sleep(0.005)

    async def made(self) -> Made:
        info = await self.store.run(RUN)
        assert info is not None
        return Made(await self.store.read(RUN), info, self.terms)

    async def run(self) -> Made:
        """From beginning to end, with one engine."""
        async with self.engine("a") as engine:
            await self.submit(engine)
            await engine.wait(RUN)
        return await self.made()


def says(*replies: ModelReply) -> Callable[[int], ModelReply]:
    return lambda turn: replies[turn] if turn < len(replies) else text("done")


@tool
async def look(what: str, ctx: ToolContext) -> str:
    """Look something up."""
    return f"{what} {ctx.attempt}"


async def plain() -> Made:
    return await Stage([look], says()).run()


async def one_call() -> Made:
    return await Stage([look], says(tool_call("look", what="a"))).run()


async def parallel_calls() -> Made:
    both = tool_calls([tool_call("look", what="a"), tool_call("look", what="b")])
    return await Stage([look], says(both, tool_call("look", what="c"))).run()


async def calls_in_turn() -> Made:
    both = tool_calls([tool_call("look", what="a"), tool_call("look", what="b")])
    return await Stage([look], says(both), loop={"parallel": False}).run()


async def turn_limit() -> Made:
    return await Stage([look], lambda _: tool_call("look", what="a"), loop={"max_turns": 2}).run()


async def model_fails() -> Made:
    def refuse(_: int) -> ModelReply:
        raise ModelRefused("no such model")

    return await Stage([look], refuse).run()


async def bad_calls() -> Made:
    calls = tool_calls([tool_call("nothing"), tool_call("look", how="x")])
    return await Stage([look], says(calls)).run()


def _raising(error: BaseException, **settings: Any) -> Tool[..., Any]:
    @tool(name="work", **settings)
    async def work(what: str) -> Any:
        raise error

    return work


async def tool_error() -> Made:
    return await Stage([_raising(ValueError("no"))], says(tool_call("work", what="a"))).run()


async def raised_unknown() -> Made:
    unknown = _raising(OutcomeUnknown("gone"), delivery="at_most_once")
    return await Stage([unknown], says(tool_call("work", what="a"))).run()


async def rejected_result() -> Made:
    @tool
    async def work() -> Any:
        return object()

    return await Stage([work], says(tool_call("work"))).run()


async def unguarded() -> Made:
    @tool(guard={"enabled": False})
    async def work() -> str:
        return "ran"

    return await Stage([work], says(tool_call("work"))).run()


def _hanging(**settings: Any) -> tuple[Tool[..., Any], asyncio.Event]:
    """A tool whose first attempt never ends."""
    begun = asyncio.Event()

    @tool(name="work", **settings)
    async def work(what: str, ctx: ToolContext) -> str:
        if ctx.attempt == 1:
            begun.set()
            await asyncio.Event().wait()
        return f"{what} {ctx.attempt}"

    return work, begun


async def timeout() -> Made:
    work, _ = _hanging(timeout_s=0.02)
    return await Stage([work], says(tool_call("work", what="a"))).run()


async def timeout_once() -> Made:
    work, _ = _hanging(timeout_s=0.02, delivery="at_most_once")
    return await Stage([work], says(tool_call("work", what="a"))).run()


async def _killed(stage: Stage, begun: asyncio.Event) -> Made:
    first = stage.engine("a")
    await first.start()
    await stage.submit(first)
    await begun.wait()
    await first.kill()
    async with stage.engine("b") as second:
        await second.wait(RUN)
    return await stage.made()


async def takeover() -> Made:
    work, begun = _hanging()
    return await _killed(Stage([work], says(tool_call("work", what="a"))), begun)


async def lost_once() -> Made:
    work, begun = _hanging(delivery="at_most_once")
    return await _killed(Stage([work], says(tool_call("work", what="a"))), begun)


async def abandoned() -> Made:
    work, begun = _hanging(guard={"max_attempts": 1})
    return await _killed(Stage([work], says(tool_call("work", what="a"))), begun)


async def verified() -> Made:
    async def seen(what: str) -> Verdict:
        return Done(what)

    work, begun = _hanging(delivery="at_most_once", verify=seen)
    return await _killed(Stage([work], says(tool_call("work", what="a"))), begun)


def _forgetful(
    on_lost_lease: str, forget: list[Callable[[], None]]
) -> tuple[Tool[..., Any], asyncio.Event]:
    """A tool whose first attempt makes its worker forget the lease."""
    release, done = asyncio.Event(), asyncio.Event()

    @tool(guard={"on_lost_lease": on_lost_lease})
    async def work(ctx: ToolContext) -> str:
        if ctx.attempt == 1:
            forget[0]()
            await release.wait()
        else:
            release.set()
            await done.wait()
        return str(ctx.attempt)

    return work, done


async def _lost_lease(on_lost_lease: str, mark: str) -> Made:
    forget: list[Callable[[], None]] = []
    work, done = _forgetful(on_lost_lease, forget)
    stage = Stage([work], says(tool_call("work")))
    async with stage.engine("a") as first, stage.engine("b") as second:
        forget.append(first._heartbeat._leases.clear)
        second._executor._reserved = 64  # the first attempt is the first engine's
        await stage.submit(first)
        await stage.until(ev.TOOL_STARTED)
        second._executor._reserved, first._executor._reserved = 0, 64
        await stage.until(mark)
        first._executor._reserved = 0
        done.set()
        await first.wait(RUN)
    return await stage.made()


async def fenced() -> Made:
    return await _lost_lease("cancel", ev.TOOL_FENCED)


async def stale() -> Made:
    return await _lost_lease("finish", ev.TOOL_STALE_RESULT)


def _once(**settings: Any) -> Tool[..., Any]:
    @tool(delivery="at_most_once", name="pay", **settings)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    return pay


async def approved() -> Made:
    stage = Stage([_once(requires_approval=True)], says(tool_call("pay", amount=1)))
    async with stage.engine("a") as engine:
        await stage.submit(engine)
        await stage.until(ev.APPROVAL_REQUESTED)
        call = (await stage.client.pending())[0]
        await stage.client.approve(RUN, call.call_id, by="ann")
        await engine.wait(RUN)
    return await stage.made()


async def approval_expired() -> Made:
    stage = Stage([_once(requires_approval=True)], says(tool_call("pay", amount=1)))
    async with stage.engine("a") as engine:
        await stage.submit(engine)
        await stage.until(ev.APPROVAL_REQUESTED)
        call = (await stage.client.pending())[0]
        await stage.client.approve(RUN, call.call_id, by="ann", for_s=0.0)
        await stage.until(ev.APPROVAL_REQUESTED, 2)
        await stage.client.approve(RUN, call.call_id, by="ann")
        await engine.wait(RUN)
    return await stage.made()


async def rejected() -> Made:
    stage = Stage([_once(requires_approval=True)], says(tool_call("pay", amount=1)))
    async with stage.engine("a") as engine:
        await stage.submit(engine)
        await stage.until(ev.APPROVAL_REQUESTED)
        call = (await stage.client.pending())[0]
        await stage.client.reject(RUN, call.call_id, by="ann", reason="too much")
        await engine.wait(RUN)
    return await stage.made()


async def _cancelled(stage: Stage, mark: str) -> Made:
    async with stage.engine("a") as engine:
        await stage.submit(engine)
        await stage.until(mark)
        await stage.client.cancel(RUN, by="ann", reason="enough")
        await engine.wait(RUN)
    return await stage.made()


async def cancelled_in_flight() -> Made:
    work, _ = _hanging()
    return await _cancelled(Stage([work], says(tool_call("work", what="a"))), ev.TOOL_STARTED)


async def cancelled_while_waiting() -> Made:
    stage = Stage([_once(requires_approval=True)], says(tool_call("pay", amount=1)))
    return await _cancelled(stage, ev.APPROVAL_REQUESTED)


async def deadline() -> Made:
    work, _ = _hanging()
    stage = Stage([work], says(tool_call("work", what="a")))
    async with stage.engine("a") as engine:
        await stage.submit(engine, deadline_s=0.05)
        await engine.wait(RUN)
    return await stage.made()


async def repeated() -> Made:
    both = tool_calls([tool_call("pay", amount=1), tool_call("pay", amount=1)])
    return await Stage([_once()], says(both)).run()


async def repeated_by_key() -> Made:
    pay = _once(idempotency_key=lambda args: "one")
    both = tool_calls([tool_call("pay", amount=1), tool_call("pay", amount=2)])
    return await Stage([pay], says(both, tool_call("pay", amount=3))).run()


async def repeat_approved() -> Made:
    both = tool_calls([tool_call("pay", amount=1), tool_call("pay", amount=1)])
    stage = Stage([_once(on_repeat="ask")], says(both))
    async with stage.engine("a") as engine:
        await stage.submit(engine)
        await stage.until(ev.APPROVAL_REQUESTED)
        call = (await stage.client.pending())[0]
        await stage.client.approve(RUN, call.call_id, by="ann")
        await engine.wait(RUN)
    return await stage.made()


async def _resolved(outcome: Any) -> Made:
    fails: list[BaseException] = [OutcomeUnknown("gone")]

    @tool(delivery="at_most_once")
    async def pay(amount: int) -> str:
        if fails:
            raise fails.pop()
        return "paid"

    stage = Stage([pay], says(tool_call("pay", amount=1)), loop={"on_unknown": "wait"})
    async with stage.engine("a") as engine:
        await stage.submit(engine)
        await stage.until(ev.TOOL_FAILED)
        await stage.client.resolve(RUN, "c3-0", outcome, by="ann")
        await engine.wait(RUN)
    return await stage.made()


async def resolved_done() -> Made:
    return await _resolved("done")


async def resolved_retry() -> Made:
    return await _resolved("retry")


async def suspended() -> Made:
    release = asyncio.Event()

    @tool
    async def work() -> str:
        await release.wait()
        return "ran"

    stage = Stage([work], says(tool_call("work")))
    async with stage.engine("a") as engine:
        await stage.submit(engine)
        await stage.until(ev.TOOL_STARTED)
        await stage.client.suspend(RUN, by="ann")
        release.set()
        await stage.until(ev.TOOL_COMPLETED)
        await stage.client.resume(RUN, by="ann")
        await engine.wait(RUN)
    return await stage.made()


class _Raises:
    name, version = "raises", "1"

    def decide(self, event: Event, state: RunState) -> Iterable[Event]:
        raise ValueError("never")


async def parked() -> Made:
    stage = Stage([look], says(), algorithm=_Raises())
    async with stage.engine("a") as engine:
        await stage.submit(engine)
        await stage.until(ev.RUN_PARKED)
    return await stage.made()


class _Timed:
    """Notes something, calls a tool, waits for a timer, ends."""

    name, version = "timed", "1"

    def decide(self, event: Event, state: RunState) -> Iterable[Event]:
        if state.root is None:
            return []
        if not state.calls:
            return [
                state.root.caused("example.noted", {"what": "begun"}),
                call_tool(state.root, name="look", arguments={"what": "x"}, call_id="x", turn=0),
                set_timer(state.root, name="later", after_s=0.02),
            ]
        if state.timers_fired and not state.open_calls:
            return [complete(state.timers_fired[0], "waited")]
        return []


async def timed() -> Made:
    return await Stage([look], says(), algorithm=_Timed()).run()


SCENARIOS: dict[str, Callable[[], Awaitable[Made]]] = {
    make.__name__: make
    for make in (
        plain,
        one_call,
        parallel_calls,
        calls_in_turn,
        turn_limit,
        model_fails,
        bad_calls,
        tool_error,
        raised_unknown,
        rejected_result,
        unguarded,
        timeout,
        timeout_once,
        takeover,
        lost_once,
        abandoned,
        verified,
        fenced,
        stale,
        approved,
        approval_expired,
        rejected,
        cancelled_in_flight,
        cancelled_while_waiting,
        deadline,
        repeated,
        repeated_by_key,
        repeat_approved,
        resolved_done,
        resolved_retry,
        suspended,
        parked,
        timed,
    )
}


async def make_all() -> dict[str, Made]:
    """Every history, one after the other, each within a bound."""
    made: dict[str, Made] = {}
    for name, make in SCENARIOS.items():
        async with asyncio.timeout(BOUND_S):
            made[name] = await make()
    return made
