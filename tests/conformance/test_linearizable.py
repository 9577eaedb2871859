"""Workers that fight for one call on every store: one order explains all that they were told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaa.store import port
from aaa.testing.linear import Step, linearizable
from aaa.testing.scene import Scene, held, settles, terms
from conformance.backends import BACKENDS

WORKERS = ("w1", "w2", "w3", "w4")
CALLS = 6
#: Steps of each worker on each call.
STEPS = 5


class Fight:
    """What the workers did to one call, as each of them saw it."""

    def __init__(self, scene: Scene, call: str, seed: int) -> None:
        self.scene, self.call, self.seed = scene, call, seed
        self.run_id = scene.run_id(call)
        self.history: list[Step] = []

    async def fight(self, stores: dict[str, port.EventStore]) -> None:
        await self.scene.call(self.call, run=self.call, queue=f"tool/{self.call}")
        await asyncio.gather(*(self._worker(each, stores[each]) for each in WORKERS))

    async def _worker(self, worker: str, store: port.EventStore) -> None:
        draw = Random(f"{self.seed} {self.call} {worker}")
        one: port.Claimed | None = None
        for number in range(STEPS):
            if one is None:
                one = await self._claim(worker, store, f"{self.call}{worker}{number}")
                continue
            match draw.choice(("settle", "release", "release", "renew", "claim")):
                case "settle":
                    verdict = self._commit(store, settles(one, worker))
                    await self._note("settle", worker, one.attempt, verdict)
                case "release":
                    release = port.Release(
                        run_id=one.run_id,
                        request_id=one.request.id,
                        attempt=one.attempt,
                        worker=worker,
                    )
                    await self._note("release", worker, one.attempt, self._commit(store, release))
                    if draw.random() < 0.5:
                        one = None
                case "renew":
                    beat = self.scene.pulse(worker, held(one))
                    await self._note("renew", worker, one.attempt, beat)
                case "claim":
                    again = await self._claim(worker, store, f"{self.call}{worker}{number}")
                    one = again or one

    async def _claim(self, worker: str, store: port.EventStore, nonce: str) -> port.Claimed | None:
        # A queue of its own for each call: a claim can get this one or none.
        claim = self.scene.claims(
            worker, terms(cap=1_000), nonce=nonce, queues=[f"tool/{self.call}"]
        )
        claimed: port.Claims = await self._note("claim", worker, 0, self._commit(store, claim))
        return claimed.claimed[0] if claimed.claimed else None

    async def _commit(self, store: port.EventStore, operation: port.Operation) -> Any:
        return (await self.scene.commit(operation, store=store))[0]

    async def _note(self, kind: str, worker: str, attempt: int, doing: Awaitable[Any]) -> Any:
        asked = time.monotonic()
        said = await doing
        told = time.monotonic()
        if isinstance(said, port.Claims):
            attempt = said.claimed[0].attempt if said.claimed else 0
        match said:
            case port.Settled():
                answer = said.verdict
            case port.Done():
                answer = str(said.count)
            case port.Beat():
                answer = "lost" if said.lost_calls else "kept"
            case _:
                answer = ""
        self.history.append(
            Step(kind=kind, worker=worker, attempt=attempt, answer=answer, asked=asked, told=told)
        )
        return said


@pytest.mark.guarantee("G1", "G2", "G3", "G6", "G7")
@pytest.mark.parametrize("backend", list(BACKENDS))
async def test_one_order_explains_what_all_workers_were_told_of_a_call(
    backend: str, request: pytest.FixtureRequest
) -> None:
    async with BACKENDS[backend](request) as harness, asyncio.timeout(60):
        scene = Scene(harness)
        try:
            stores = {worker: await harness.another() for worker in WORKERS}
            for worker in WORKERS:
                await scene.pulse(worker)
            fights = [Fight(scene, f"call{number}", number) for number in range(CALLS)]
            for fight in fights:
                await fight.fight(stores)
        finally:
            await scene.close()
    for fight in fights:
        assert linearizable(fight.history), fight.history
    told = {(step.kind, step.answer) for fight in fights for step in fight.history}
    assert {("settle", "applied"), ("release", "1"), ("renew", "kept")} <= told


def _in_turn(*steps: tuple[str, str, int, str]) -> list[Step]:
    return [
        Step(kind=kind, worker=worker, attempt=attempt, answer=answer, asked=at, told=at + 0.5)
        for at, (kind, worker, attempt, answer) in enumerate(steps)
    ]


SOUND = _in_turn(
    ("claim", "w1", 1, ""),
    ("claim", "w2", 0, ""),
    ("renew", "w1", 1, "kept"),
    ("release", "w1", 1, "1"),
    ("renew", "w1", 1, "lost"),
    ("claim", "w2", 2, ""),
    ("settle", "w1", 1, "stale"),
    ("settle", "w2", 2, "applied"),
    ("settle", "w2", 2, "dup"),
    ("claim", "w1", 0, ""),
)


@given(st.randoms(use_true_random=False), st.lists(st.floats(0, 4), min_size=10, max_size=10))
def test_a_sound_history_stays_sound_in_any_notation_and_however_long_its_replies_take(
    random: Any, late: list[float]
) -> None:
    history = [replace(step, told=step.told + more) for step, more in zip(SOUND, late, strict=True)]
    random.shuffle(history)
    assert linearizable(history)


@pytest.mark.parametrize(
    ("at", "change"),
    [
        (1, {"attempt": 2}),  # two hold the lease
        (5, {"attempt": 0}),  # nobody gets what is free
        (5, {"attempt": 1}),  # a number is given twice
        (5, {"attempt": 3}),  # a number is left out
        (2, {"answer": "lost"}),
        (4, {"answer": "kept"}),  # what was given back is renewed
        (3, {"answer": "0"}),
        (6, {"answer": "applied"}),  # no fence
        (7, {"answer": "stale"}),
        (8, {"answer": "applied"}),  # two results
        (9, {"attempt": 3}),  # begun after its result
    ],
)
def test_a_history_that_no_order_explains_is_refused(at: int, change: dict[str, Any]) -> None:
    broken = [replace(step, **change) if i == at else step for i, step in enumerate(SOUND)]
    assert not linearizable(broken)


def test_what_overlaps_may_have_happened_in_either_order_and_nothing_else() -> None:
    first, second = _in_turn(("claim", "w1", 0, ""), ("claim", "w2", 1, ""))
    assert not linearizable([first, second])
    assert linearizable([replace(first, told=2.0), second])
