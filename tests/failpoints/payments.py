"""The run that fails at every step: two payments in one turn, one of each delivery mode.

:func:`work` is a worker process that serves this one run and ends with it. What the tools did is
in a file beside the store; so is where a failpoint struck, written before it does.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path

from aaa.algos import ToolLoop
from aaa.check import Effect, Terms
from aaa.errors import StoreUnavailable
from aaa.llm import FakeLLMClient, LLMHandler, ModelReply, ModelRequest
from aaa.llm.fake import text, tool_call, tool_calls
from aaa.runtime import Engine
from aaa.store import open_store
from aaa.testing import failpoints
from aaa.testing.failpoints import Failpoints
from aaa.tools import GuardConfig, ToolContext, ToolHandler, ToolRegistry, tool

TTL_S = 1.0
#: Longer than any lease: what stands still so long has lost everything.
STILL_S = 2 * TTL_S
MAX_ATTEMPTS = 10
BOUND_S = 60.0

ACTIONS = {
    "raise": failpoints.fail,
    "delay": failpoints.delay(STILL_S),
    "freeze": failpoints.freeze,
    "kill": failpoints.kill,
}


@dataclass(frozen=True)
class Trial:
    """One run on a store under a name of its own, and the point at which its worker fails."""

    url: str
    folder: Path
    name: str
    action: str
    nth: int
    at: str | None = None

    @property
    def ledger(self) -> Path:
        return self.folder / f"{self.name}.ledger"

    @property
    def strike(self) -> Path:
        return self.folder / f"{self.name}.struck"

    @property
    def trace(self) -> Path:
        return self.folder / f"{self.name}.reached"

    def effects(self, tool_name: str) -> list[Effect]:
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        records = [json.loads(line) for line in lines]
        return [Effect(**each["effect"]) for each in records if each["tool"] == tool_name]

    def struck(self) -> str:
        """The point at which the action was taken, or nothing."""
        return self.strike.read_text() if self.strike.exists() else ""


def work(trial: Trial, *, failing: bool) -> None:
    """Be a worker until the run has ended. A process that is asked to fail does so once."""
    points = Failpoints(
        ACTIONS[trial.action] if failing else None,
        at=trial.at,
        nth=trial.nth,
        on_strike=lambda point: _write(trial.strike, point),
    )
    asyncio.run(_serve(trial, points, "failing" if failing else "other"))
    if failing:
        trial.trace.write_text("\n".join(points.reached))


async def _serve(trial: Trial, points: Failpoints, worker: str) -> None:
    engine = Engine(
        points.store(open_store(trial.url)),
        worker=f"{trial.name}-{worker}",
        app=trial.name,
        worker_ttl_s=TTL_S,
        drain_timeout_s=2.0,
    )
    tools = handler(trial, points)
    LLMHandler(FakeLLMClient(_model), lease_ttl_s=TTL_S, max_attempts=MAX_ATTEMPTS).attach(engine)
    tools.attach(engine)
    loop = points.algorithm(ToolLoop(tools.registry))
    async with asyncio.timeout(BOUND_S), engine:
        engine.serve(loop)
        await _submitted(engine, loop, trial.name)
        await engine.wait(trial.name)


async def _submitted(engine: Engine, loop: ToolLoop, run_id: str) -> None:
    """As a program does whose submission was not answered: the same again."""
    try:
        await engine.submit(loop, {"task": "pay"}, run_id)
    except StoreUnavailable:
        await engine.submit(loop, {"task": "pay"}, run_id)


def handler(trial: Trial, points: Failpoints) -> ToolHandler:
    """The two tools, whose effects are lines of the trial's ledger."""

    def pay(name: str, ctx: ToolContext) -> str:
        effect = {
            "key": ctx.idempotency_key,
            "run_id": ctx.run_id,
            "call_id": ctx.call_id,
            "attempt": ctx.attempt,
        }
        with points.around("effect"):
            _write(trial.ledger, json.dumps({"tool": name, "effect": effect}) + "\n")
        return "paid"

    @tool(delivery="at_most_once")
    async def pay_once(ctx: ToolContext) -> str:
        """Pay; never twice."""
        return pay("pay_once", ctx)

    @tool
    async def pay_often(ctx: ToolContext) -> str:
        """Pay, again if need be."""
        return pay("pay_often", ctx)

    guard = GuardConfig(lease_ttl_s=TTL_S, wait_poll_s=0.1, max_attempts=MAX_ATTEMPTS)
    return ToolHandler(ToolRegistry([pay_once, pay_often]), guard=guard)


def terms(trial: Trial) -> dict[str, Terms]:
    """What the attempts' policy hashes stand for."""
    return {
        settings.hash: Terms(
            delivery=settings.guard.delivery.value,
            max_attempts=settings.guard.max_attempts,
            fence_results=settings.guard.fence_results,
        )
        for settings in handler(trial, Failpoints()).compile().values()
    }


def _model(request: ModelRequest) -> ModelReply:
    if request.messages[-1].role == "user":
        return tool_calls([tool_call("pay_once"), tool_call("pay_often")])
    return text("settled")


def _write(path: Path, words: str) -> None:
    """One append that no crash can tear."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, words.encode())
    finally:
        os.close(file)
