"""A backend beside the reference model: the same random operations must get the same answers.

A :class:`Move` is plain data, so that a property-based test can draw and shrink lists of them;
:func:`moves` makes them from a seed. Times are left out of the comparison; everything else, down to
the bytes that the store writes itself, must be alike.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

from aaa import events as ev
from aaa.events import Event
from aaa.ids import result_id
from aaa.store import port
from aaa.store.port import Entry
from aaa.testing.harness import Harness, MemoryHarness
from aaa.testing.scene import LONG_MS, REFUND, Scene, creates, held, note, opens, terms

KINDS: Final = (
    *("create", "create", "open", "open", "open", "open", "decide", "decide", "decide"),
    *("claim", "claim", "claim", "claim", "settle", "settle", "settle", "settle", "release"),
    *("flag", "flag", "grant", "grant", "hold", "drop", "resolve", "close", "delete", "timer"),
    *("own", "own", "disown", "take", "take", "pulse", "lapse", "lapse", "note", "behind", "twice"),
)
#: Times and hints, which may differ.
_UNCOMPARED: Final = frozenset({"time", "next_expiry_ms", "for_ms", "created_ms", "mark"})
_QUEUES: Final = (REFUND, "tool/other", "llm/model", f"{REFUND}#p", "tool/other#p")
_FAR: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Move:
    """One step: what, on which run, call and worker, and a number that chooses the variant."""

    kind: str
    run: int = 0
    call: int = 0
    worker: int = 0
    pick: int = 0


def moves(seed: int, count: int) -> list[Move]:
    """``count`` moves from a seed."""
    draw = random.Random(seed)
    return [
        Move(
            draw.choice(KINDS),
            draw.randrange(3),
            draw.randrange(4),
            draw.randrange(3),
            draw.randrange(64),
        )
        for _ in range(count)
    ]


async def compare(harness: Harness, steps: Sequence[Move]) -> None:
    """Play the moves on the harness's store and on the model. Raises ``AssertionError``."""
    comparison = Comparison(harness)
    try:
        for step in steps:
            await comparison.play(step)
        await comparison.finish()
    finally:
        await comparison.close()


class Comparison:
    """The two stores, and what the model has answered so far: later moves refer to it."""

    def __init__(self, harness: Harness) -> None:
        self._subject = Scene(harness)
        self._model = Scene(MemoryHarness(partitions=harness.store.partitions))
        self._virtual = harness.virtual_time
        self._runs = [self._model.run_id(name) for name in ("a0", "b0", "c0")]
        self._all = list(self._runs)
        self._infos: dict[str, port.RunInfo | None] = {}
        self._opened: dict[str, list[str]] = {}
        self._claimed: list[tuple[str, port.Claimed]] = []
        self._claims: list[port.Claim] = []
        self._last: tuple[port.Operation, ...] = ()
        self._terms: dict[tuple[str, str], int] = {}
        self._nonce = 0

    async def play(self, move: Move) -> None:
        """One move on both, and the comparison of the answers."""
        for scene in (self._model, self._subject):
            await scene.harness.advance(2)  # so that nothing becomes ready at the same moment
        self._infos = {run: await self._model.store.run(run) for run in self._runs}
        await self._begin(move)
        if move.kind == "pulse":
            await self._pulse(move)
        elif move.kind == "lapse":
            await self._lapse(f"w{move.worker}")
        else:
            operations = self._last if move.kind == "twice" else (self._operation(move),)
            await self._commit(move, operations, seen=_FAR if move.kind == "behind" else 0)

    async def _begin(self, move: Move) -> None:
        """Mostly there is a run to play with: where one has ended another takes its place."""
        info = self._infos[self._runs[move.run]]
        if info is not None and (info.status != "open" or info.cancelling) and move.pick % 4 == 1:
            self._runs[move.run] = self._model.run_id(f"{'abc'[move.run]}{len(self._all)}")
            self._all.append(self._runs[move.run])
            info = None
        if info is None and move.pick % 8:
            create = creates(self._runs[move.run], app="other" if move.run == 2 else "app", order=0)
            await self._commit(move, (create,))

    async def finish(self) -> None:
        """Compare all that can be read."""
        for run in self._all:
            mine, theirs = await self._model.store.read(run), await self._subject.store.read(run)
            _same(run, mine, theirs)
            info = [await scene.store.run(run) for scene in (self._model, self._subject)]
            _same(run, info[0], info[1])
        for status in (None, "open", "completed", "waiting", "unknown"):
            listed = [
                sorted(info.run_id for info in await scene.store.runs(status=status))
                for scene in (self._model, self._subject)
            ]
            _same(status, listed[0], listed[1])

    async def close(self) -> None:
        """Close the heartbeats."""
        await self._model.close()
        await self._subject.close()

    async def _commit(
        self, move: Move, operations: tuple[port.Operation, ...], *, seen: int = 0
    ) -> None:
        self._last = operations
        mine = await self._model.commit(*operations, seen=seen)
        theirs = await self._subject.commit(*operations, seen=seen)
        _same((move, operations), mine, theirs)
        for operation, verdict in zip(operations, mine, strict=True):
            self._remember(operation, verdict)

    def _remember(self, operation: port.Operation, verdict: port.Verdict) -> None:
        if isinstance(verdict, port.Claims | port.Appended):
            offer = getattr(operation, "offer", None)
            if offer is not None:
                self._claimed += [(offer.worker, one) for one in verdict.claimed]
        if isinstance(operation, port.Claim):
            self._claims.append(operation)
        if isinstance(operation, port.Own) and isinstance(verdict, port.Owned):
            self._terms[operation.worker, operation.app] = verdict.term

    async def _pulse(self, move: Move) -> None:
        worker = f"w{move.worker}"
        calls = {held(one) for of, one in self._claimed[-6:] if of == worker or not move.pick % 8}
        order = sorted(calls, key=lambda call: (call.run_id, call.request_id, call.attempt))
        beats = [
            await scene.pulse(worker, *order, owned=("app", "other"), apps=("app",))
            for scene in (self._model, self._subject)
        ]
        answers = [
            (b.lost_calls, set(b.lost_owned), b.cancelled, b.workers, self._model.home in b.hot)
            for b in beats
        ]
        _same(move, answers[0], answers[1])

    async def _lapse(self, worker: str) -> None:
        """End what the worker holds: by time where time is ours, by its session, by giving back."""
        if self._virtual:
            for scene in (self._model, self._subject):
                await scene.harness.lose_lease(worker)
            return
        back: list[port.Operation] = [
            port.Release(
                run_id=one.run_id, request_id=one.request.id, attempt=one.attempt, worker=worker
            )
            for of, one in self._claimed
            if of == worker
        ]
        back += [port.Disown(app=app, worker=worker) for app in ("app", "other")]
        await self._model.commit(*back)
        if self._subject.harness.capabilities.leases == "session":
            self._model.renewer(worker).leave(worker)  # so does a worker whose session ends
            await self._subject.harness.lose_lease(worker)
            await self._subject.commit(port.Disown(app="none", worker=worker))  # keeps the marks
        else:
            await self._subject.commit(*back)

    def _operation(self, move: Move) -> port.Operation:
        run, worker, pick = self._runs[move.run], f"w{move.worker}", move.pick
        app = "other" if move.run == 2 else "app"
        term = self._terms.get((worker, app), 1) + (pick == 0)
        simple: dict[str, port.Operation] = {
            "create": creates(run, app=app, order=int(pick == 0)),
            "delete": port.Delete(run_id=run, force=pick % 8 == 0),
            "own": port.Own(app=app, worker=worker, ttl_ms=self._ttl(pick)),
            "disown": port.Disown(app=app, worker=worker),
            "take": port.Take(app=app, worker=worker, term=term, limit=10),
        }
        if move.kind in simple:
            return simple[move.kind]
        if move.kind in ("settle", "release"):
            return self._end(move)
        if move.kind == "behind":
            # Mostly accepted at once: a store that stays behind gives no claims to compare.
            return (
                port.AcceptLoss(by="me", force=pick % 8 == 1)
                if pick % 4
                else self._claim(worker, pick, app)
            )
        if move.kind == "claim":
            return self._claim(worker, pick, app)
        return self._append(move, run, app)

    def _append(self, move: Move, run: str, app: str) -> port.Append:
        worker, pick = f"w{move.worker}", move.pick
        entries = (self._entry(move, run),)
        if move.kind != "decide":
            offer = self._claim(worker, pick, app).offer if pick % 3 == 0 else None
            return port.Append(run_id=run, entries=entries, offer=offer)
        info = self._infos.get(run)
        head = port.Head(0, "") if info is None else info.head
        if pick % 8 == 1:
            head = port.Head(head.seq + 1, head.last_id)
        return port.Append(
            run_id=run,
            entries=entries if pick % 5 else (),
            at=head if pick % 3 else None,
            term=self._terms.get((worker, app), 1),
            worker=worker,
            offer=self._claim(worker, pick // 2, app).offer if pick % 2 else None,
        )

    def _entry(self, move: Move, run: str) -> Entry:
        pick, known = move.pick, self._opened.setdefault(run, [])
        if move.kind in ("open", "decide"):
            return self._open(run, pick)
        request_id = known[-1 - move.call % len(known)] if known else "q0"
        return self._on_call(move, run, request_id) or self._on_run(move, run)

    def _open(self, run: str, pick: int) -> Entry:
        known = self._opened[run]
        if not known or pick % 8:
            known.append(f"q{len(known)}")
        request = note(run, ev.TOOL_REQUESTED, known[-1], {"call_id": known[-1], "name": "ü"})
        return opens(
            request,
            queue=_QUEUES[(0, 0, 1, 2, 3)[pick % 5]],
            needs_approval=pick % 5 == 0,
            verify=pick % 3 == 0,
        )

    def _on_call(self, move: Move, run: str, request_id: str) -> Entry | None:
        pick, turn = move.pick, f"{request_id}.{move.pick % 3}"
        match move.kind:
            case "grant":
                effect = port.Grant(request_id, "d1" if pick % 6 else "d2", self._ttl(pick))
                return Entry(note(run, ev.APPROVED, f"ok{turn}"), effect)
            case "hold":
                return Entry(note(run, ev.APPROVAL_REQUESTED, f"?{turn}"), port.Hold(request_id))
            case "drop":
                result = note(run, ev.TOOL_FAILED, result_id(request_id), {"error": "Rejected"})
                return Entry(result, port.SettleUnstarted(request_id))
            case "resolve":
                found = note(run, ev.TOOL_RESOLVED, f"{turn}:resolved")
                return Entry(found, port.Resolve(request_id))
            case _:
                return None

    def _on_run(self, move: Move, run: str) -> Entry:
        pick = move.pick
        if move.kind == "flag" and pick % 9 == 4:
            return Entry(
                note(run, ev.RUN_POLICY, f"p{pick}"), port.Require("p" if pick % 2 else "")
            )
        if move.kind == "flag":
            name = ("suspend", "resume", "park", "resume", "resume")[pick % 5]
            name = "cancel" if pick % 16 == 0 else name
            return Entry(note(run, ev.RUN_SUSPENDED, f"{name}{pick}"), port.Flag(name))
        if move.kind == "close" and pick % 3 == 0:
            status = ("completed", "failed")[pick % 2]
            return Entry(note(run, f"aaa.run.{status}", f"end{pick % 4}"), port.CloseRun(status))
        if move.kind == "timer":
            timer = note(run, ev.TIMER_SET, f"t{pick}")
            return Entry(timer, port.StartTimer('"ü"', 0 if pick % 2 else LONG_MS * 100))
        return Entry(note(run, ev.RUN_SUSPENDED, f"x{pick % 6}"))

    def _claim(self, worker: str, pick: int, app: str) -> port.Claim:
        if self._claims and pick % 9 == 0:
            return self._claims[-1]
        self._nonce += 1
        how = terms(
            ("at_most_once", "at_least_once")[pick % 2],
            cap=1 + pick % 3,
            ttl_ms=self._ttl(pick // 2),
            guarded=pick % 7 != 0,
            needs_approval=pick % 11 == 0,
        )
        return self._model.claims(
            worker,
            how,
            limit=(10, 10, 10, 10, 10, 1, 2, 0)[pick % 8],
            nonce=f"n{self._nonce}",
            app=app,
            queues=_QUEUES[: (5, 3, 1, 2, 5, 0)[pick % 6]],
        )

    def _end(self, move: Move) -> port.Operation:
        pick = move.pick
        if not self._claimed:
            return port.Release(run_id=self._runs[0], request_id="q0", attempt=1, worker="w0")
        worker, one = self._claimed[-1 - pick % min(len(self._claimed), 5)]
        who = worker if pick % 7 else f"w{move.worker}"
        attempt = one.attempt + (pick % 17 == 0) - (pick % 19 == 0)
        if move.kind == "release":
            return port.Release(
                run_id=one.run_id, request_id=one.request.id, attempt=attempt, worker=who
            )
        data = {"attempt": attempt, "result": pick % 2}
        return port.Settle(
            run_id=one.run_id,
            request_id=one.request.id,
            attempt=attempt,
            worker=who,
            outcome=one.request.named(result_id(one.request.id), ev.TOOL_COMPLETED, data),
            fence=pick % 4 != 0,
            unknown=pick % 5 == 0,
        )

    def _ttl(self, pick: int) -> int:
        """A time that a lapse ends, where time is the test's; else one that outlasts the test."""
        return self._model.harness.ttl_ms if self._virtual and pick % 2 else LONG_MS


def plain(value: Any) -> Any:
    """A verdict, an event or a run's entry as plain data without its times."""
    if isinstance(value, Event):
        return (value.id, value.seq, value.type, value.raw, value.parent)
    if isinstance(value, port.Taken):
        return ("Taken", sorted(plain(value.runs)), value.more, value.next_timer_ms is None)
    if is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in fields(value) if field.name not in _UNCOMPARED)
        return (
            type(value).__name__,
            {name: _is_set(name, plain(getattr(value, name))) for name in names},
        )
    if isinstance(value, list | tuple):
        return tuple(plain(one) for one in value)
    return value


def _is_set(name: str, value: Any) -> Any:
    return value is not None if name == "closed_ms" else value


def _same(what: object, mine: Any, theirs: Any) -> None:
    expected, got = plain(mine), plain(theirs)
    assert got == expected, f"after {what}:\n  model:   {expected}\n  subject: {got}"
