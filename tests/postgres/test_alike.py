"""The functions in the database answer as the reference does, whatever comes in whatever order.

A seed draws operations, sensible and senseless; memory and Postgres get the same ones. Their
verdicts are compared but for times, and in the end every byte of every log.
"""

from __future__ import annotations

import random
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from aaa import events as ev
from aaa.ids import result_id
from aaa.store import port
from aaa.store.port import Entry
from aaa.testing.harness import MemoryHarness
from aaa.testing.scene import LONG_MS, MODEL, REFUND, Scene, creates, note, opens, terms

WORKERS = ("w1", "w2", "w3")
QUEUES = (REFUND, MODEL, "tool/other")


class Draw:
    """Operations, drawn from a seed."""

    def __init__(self, seed: int, runs: list[str]) -> None:
        self._random, self._runs, self._count = random.Random(seed), runs, 0
        self._last: list[port.Operation] = []
        self._open: list[tuple[str, str]] = []
        self._attempts: list[tuple[str, str, int, str]] = []

    def learn(self, batch: list[port.Operation], verdicts: tuple[port.Verdict, ...]) -> None:
        """What was opened and claimed, so that later operations are not all senseless."""
        for op, verdict in zip(batch, verdicts, strict=True):
            if isinstance(verdict, port.Claims | port.Appended):
                offer = op.offer if isinstance(op, port.Claim | port.Append) else None
                for one in verdict.claimed:
                    assert offer is not None
                    attempt = (one.run_id, one.request.id, one.attempt, offer.worker)
                    self._attempts.append(attempt)
            if isinstance(verdict, port.Appended):
                requests = [e for e in verdict.events if e.type == ev.TOOL_REQUESTED]
                self._open += [(event.run_id, event.id) for event in requests]

    def batch(self) -> list[port.Operation]:
        """One to three operations; now and then the last ones once more."""
        if self._last and self._random.random() < 0.1:
            return self._last
        self._last = [self._one() for _ in range(self._random.randint(1, 3))]
        return self._last

    def _one(self) -> port.Operation:
        kinds = (
            *(self._append,) * 8,
            *(self._claim,) * 4,
            *(self._settle,) * 4,
            *(self._release,) * 3,
            *(self._take,) * 2,
            self._own,
            self._disown,
            self._create,
            self._delete,
            lambda: port.AcceptLoss(by="p"),
        )
        return self._random.choice(kinds)()

    def _run(self) -> str:
        return self._random.choice(self._runs)

    def _worker(self) -> str:
        return self._random.choice(WORKERS)

    def _target(self) -> tuple[str, str]:
        """A run and a request, mostly of the newest."""
        if self._open and self._yes(0.9):
            return self._random.choice(self._open[-8:])
        return self._run(), f"q{self._random.randint(1, 9)}"

    def _attempt(self) -> tuple[str, str, int, str]:
        """An attempt and its worker, mostly as they were claimed."""
        if self._attempts and self._yes(0.9):
            run, request, attempt, worker = self._random.choice(self._attempts[-6:])
            return run, request, attempt, worker if self._yes(0.9) else self._worker()
        return *self._target(), self._random.randint(0, 3), self._worker()

    def _yes(self, chance: float) -> bool:
        return self._random.random() < chance

    def _create(self) -> port.Operation:
        return creates(self._run(), input=self._random.choice((1, 1, 1, 2)))

    def _append(self) -> port.Operation:
        run, target = self._target() if self._yes(0.5) else (self._run(), "q1")
        entries = tuple(self._entry(run, target) for _ in range(self._random.randint(1, 3)))
        offer = self._offer() if self._yes(0.3) else None
        term = self._random.choice((None, None, 1, 2))
        return port.Append(
            run_id=run, entries=entries, term=term, worker=self._worker(), offer=offer
        )

    def _entry(self, run: str, target: str) -> Entry:
        if self._yes(0.5):
            self._count += 1
            request = note(
                run, ev.TOOL_REQUESTED, f"q{self._count}", {"call_id": "c", "name": "ü\n"}
            )
            return opens(
                request,
                queue=self._random.choice(QUEUES),
                needs_approval=self._yes(0.2),
                verify=self._yes(0.3),
            )
        effect = self._random.choice(
            (
                None,
                port.SettleUnstarted(target),
                port.Grant(target, self._random.choice(("d1", "d1", "d2")), LONG_MS),
                port.Hold(target),
                port.Resolve(target),
                port.Flag(self._random.choice(("suspend", "resume", "park", "resume"))),
                port.Flag("cancel") if self._yes(0.04) else None,
                port.CloseRun("completed") if self._yes(0.04) else None,
                port.StartTimer('"t"', LONG_MS),
            )
        )
        return Entry(note(run, ev.RUN_RESUMED, f"n{self._random.randint(1, 300)}"), effect)

    def _offer(self) -> port.Offer:
        queues = self._random.sample(QUEUES, self._random.randint(0, 3))
        how = terms(
            self._random.choice(("at_least_once", "at_least_once", "at_most_once")),
            cap=self._random.randint(1, 3),
            guarded=self._yes(0.9),
            needs_approval=self._yes(0.1),
            policy='p"',
        )
        return port.Offer(
            worker=self._worker(),
            nonce=f"x{self._random.randint(1, 400)}",
            limit=self._random.randint(0, 3),
            queues=dict.fromkeys(queues, how),
        )

    def _claim(self) -> port.Operation:
        return port.Claim(app="app", offer=self._offer())

    def _settle(self) -> port.Operation:
        run, request, attempt, worker = self._attempt()
        data = {"result": self._random.randint(1, 2)}
        return port.Settle(
            run_id=run,
            request_id=request,
            attempt=attempt,
            worker=worker,
            outcome=note(run, ev.TOOL_COMPLETED, result_id(request), data),
            fence=self._yes(0.7),
            unknown=self._yes(0.2),
        )

    def _release(self) -> port.Operation:
        run, request, attempt, worker = self._attempt()
        return port.Release(run_id=run, request_id=request, attempt=attempt, worker=worker)

    def _own(self) -> port.Operation:
        return port.Own(app="app", worker=self._worker(), ttl_ms=LONG_MS)

    def _disown(self) -> port.Operation:
        return port.Disown(app="app", worker=self._worker())

    def _take(self) -> port.Operation:
        return port.Take(
            app="app",
            worker=self._worker(),
            term=self._random.randint(0, 2),
            limit=self._random.randint(1, 3),
        )

    def _delete(self) -> port.Operation:
        return port.Delete(run_id=self._run(), force=self._yes(0.02))


def timeless(value: Any) -> Any:
    """A verdict without what depends on the moment."""
    if is_dataclass(value):
        return type(value).__name__, {
            part.name: timeless(getattr(value, part.name))
            for part in fields(value)
            if part.name not in ("next_expiry_ms", "next_timer_ms", "for_ms")
        }
    if isinstance(value, tuple | list):
        return [timeless(one) for one in value]
    return value


@pytest.mark.guarantee("G2", "G6", "L2", "L4")
@pytest.mark.parametrize("seed", range(6))
async def test_any_operations_are_answered_as_in_memory(scene: Scene, seed: int) -> None:
    reference = Scene(MemoryHarness(partitions=scene.store.partitions))
    runs = [scene.run_id(name) for name in ("a", "b", "c")]
    draw, seen = Draw(seed, runs), set()
    for run in runs:
        for side in (scene, reference):
            await side.create(run, input=1)
    for step in range(250):
        batch, missed = draw.batch(), 0 if step % 90 else 10_000 + step
        asked = await scene.store.commit(scene.home, batch, seen=missed)
        told = await reference.store.commit(scene.home, batch, seen=missed)
        assert timeless(asked.verdicts) == timeless(told.verdicts), (step, batch)
        assert asked.mark == told.mark
        draw.learn(batch, told.verdicts)
        seen |= {getattr(verdict, "verdict", type(verdict).__name__) for verdict in told.verdicts}
        # What is ready at the same moment has no order; here no two calls are.
        reference.harness.clock.advance(1)  # type: ignore[attr-defined]
    assert seen >= {"Appended", "Claims", "applied", "Refused", "Taken", "Owned", "Done"}
    for run in runs:
        mine, theirs = await scene.store.read(run), await reference.store.read(run)
        assert [(e.raw, e) for e in mine] == [(e.raw, e) for e in theirs]
        info, other = await scene.store.run(run), await reference.store.run(run)
        times = dict.fromkeys(("created_ms", "closed_ms"))
        assert info is not None
        assert other is not None
        for part in fields(info):
            if part.name not in times:
                assert getattr(info, part.name) == getattr(other, part.name), part.name
