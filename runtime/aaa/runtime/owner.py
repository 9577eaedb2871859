"""Owned runs: fold, decide, append; one decision at a time per run (L8).

Each active run has one driver. It takes everything that has happened to the run since its last
step (outcomes of calls that ran here, hints that the log has moved), folds ahead, decides, and
sends settles and decision together: one operation each, one trip. Whatever the store refuses
makes the driver forget the folded state and read the log again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aaa import events as ev
from aaa.algos import Algorithm, RunState
from aaa.bus import Bus, Receipt
from aaa.clock import Clock
from aaa.cluster import Cluster
from aaa.errors import AAAError, AlgorithmError, CorruptHistory
from aaa.events import Event
from aaa.ids import partition_of
from aaa.runtime.decide import decide
from aaa.runtime.executor import Executor
from aaa.store import port
from aaa.store.port import Append, Appended, Create, EventStore, Head, Offer, Settle, Settled, Why

log = logging.getLogger("aaa.owner")

#: An algorithm that raises so often on the same state has its run parked (L11).
MAX_ALGORITHM_ERRORS: Final = 3
MAX_IDLE_RUNS: Final = 4_096


@dataclass(slots=True)
class OwnedRun:
    """A run that this worker drives."""

    run_id: str
    app: str
    partition: int
    algorithm: Algorithm
    state: RunState | None = None
    creates: list[tuple[Create, asyncio.Future[Appended | port.Refused]]] = field(
        default_factory=list
    )
    settles: list[tuple[Settle, asyncio.Future[None]]] = field(default_factory=list)
    poked: bool = False
    head: Head | None = None
    errors: int = 0
    task: asyncio.Task[None] | None = None


class Owner:
    """Drives the runs of owned partitions."""

    def __init__(
        self,
        *,
        store: EventStore,
        bus: Bus,
        cluster: Cluster,
        executor: Executor,
        clock: Clock,
        on_closed: Callable[[str, Event], None],
        on_term_lost: Callable[[str, int], None],
    ) -> None:
        self._store, self._bus, self._cluster = store, bus, cluster
        self._executor, self._clock = executor, clock
        self._on_closed, self._on_term_lost = on_closed, on_term_lost
        self._runs: dict[str, OwnedRun] = {}
        self.algorithms: dict[str, Algorithm] = {}
        self.draining = False

    # ------------------------------------------------------------------- what comes in

    def create(self, create: Create) -> asyncio.Future[Appended | port.Refused]:
        """Create a run in an owned partition and take its first step in the same trip."""
        owned = self._owned(create.run_id, create.app)
        reply: asyncio.Future[Appended | port.Refused]
        reply = asyncio.get_running_loop().create_future()
        owned.creates.append((create, reply))
        self._drive(owned)
        return reply

    def poke(self, run_id: str, app: str, head: Head | None = None) -> None:
        """The log of a run may have moved."""
        owned = self._owned(run_id, app)
        owned.poked, owned.head = True, head
        self._drive(owned)

    def settle(self, settle: Settle, app: str) -> asyncio.Future[None]:
        """An attempt has ended here: settle it, and decide on it in the same trip."""
        owned = self._owned(settle.run_id, app)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        owned.settles.append((settle, done))
        self._drive(owned)
        return done

    def drives(self, run_id: str) -> bool:
        """Whether this worker has the run at hand, and will hear of its end."""
        return run_id in self._runs

    def state_of(self, run_id: str) -> RunState | None:
        """The folded state, if it is here."""
        owned = self._runs.get(run_id)
        return owned.state if owned is not None else None

    def forget(self, app: str, partition: int) -> None:
        """The partition is another's: what is folded here is of no use any more."""
        for owned in list(self._runs.values()):
            if owned.app == app and owned.partition == partition and owned.task is None:
                del self._runs[owned.run_id]

    async def close(self) -> None:
        """Stop driving."""
        tasks = [owned.task for owned in self._runs.values() if owned.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def quiet(self) -> None:
        """Wait until no driver has anything to do."""
        while tasks := [owned.task for owned in self._runs.values() if owned.task is not None]:
            await asyncio.wait(tasks)

    def _owned(self, run_id: str, app: str) -> OwnedRun:
        owned = self._runs.pop(run_id, None)
        if owned is None:
            partition = partition_of(run_id, self._store.partitions)
            owned = OwnedRun(run_id, app, partition, self.algorithms[app])
            self._evict()
        self._runs[run_id] = owned  # newest last: the first idle one is the first to go
        return owned

    def _evict(self) -> None:
        while len(self._runs) > MAX_IDLE_RUNS:
            idle = next((run for run in self._runs.values() if run.task is None), None)
            if idle is None:
                return
            del self._runs[idle.run_id]

    def _drive(self, owned: OwnedRun) -> None:
        if owned.task is None:
            owned.task = asyncio.create_task(self._steps(owned))

    # ----------------------------------------------------------------------- the steps

    async def _steps(self, owned: OwnedRun) -> None:
        try:
            while owned.creates or owned.settles or owned.poked:
                owned.poked = False
                try:
                    await self._step(owned)
                except AlgorithmError as error:
                    await self._algorithm_failed(owned, error)
                except CorruptHistory as error:
                    await self._set_aside(owned, error)
        except AAAError as error:
            log.error("run %s: %s", owned.run_id, error)  # noqa: TRY400 - a sentence, no trace
            self._runs.pop(owned.run_id, None)
            _fail(owned, error)
        finally:
            owned.task = None

    async def _step(self, owned: OwnedRun) -> None:
        creates, owned.creates = owned.creates, []
        settles, owned.settles = owned.settles, []
        try:
            operations: list[port.Operation] = [create for create, _ in creates]
            if owned.state is None and creates:
                owned.state = _begin(creates[0][0])
            state = owned.state = await self._load(owned)
            foreseen = True
            for settle, _ in settles:
                foreseen = _fold_settle(state, settle) and foreseen
            operations += [settle for settle, _ in settles]
            append = self._decision(owned, state) if foreseen else None
            if append is not None:
                operations.append(append)
            if not operations:
                return
            receipt = await self._send(owned, operations, append)
        except BaseException:
            # Nothing is known to be lost: what was to be settled is settled without a decision.
            owned.state = None
            owned.creates, owned.settles = creates + owned.creates, settles + owned.settles
            raise
        self._heard(owned, creates, settles, receipt)
        if append is None:
            owned.state = None
            owned.poked = owned.poked or not foreseen

    async def _load(self, owned: OwnedRun) -> RunState:
        state = owned.state or RunState(owned.run_id)
        head, owned.head = owned.head, None
        if state.seq == 0 or (head is not None and head.seq > state.seq):
            try:
                for event in await self._store.read(owned.run_id, after=state.seq):
                    state.fold(event)
            except BaseException:
                owned.state = None
                raise
        return state

    def _decision(self, owned: OwnedRun, state: RunState) -> Append | None:
        term = self._cluster.term(owned.app, owned.partition)
        if term is None or state.last is None:
            return None
        at = Head(state.seq, state.last.id)
        was_open = state.status == "open"
        entries = decide(state, owned.algorithm, self._executor.tools) if was_open else []
        opened = sum(isinstance(entry.effect, port.OpenCall) for entry in entries)
        return Append(
            run_id=owned.run_id,
            entries=tuple(entries),
            at=at,
            term=term,
            worker=self._cluster.worker,
            offer=self._offer(opened),
        )

    def _offer(self, opened: int) -> Offer | None:
        if self.draining or not opened:
            return None
        limit = self._executor.reserve(opened)
        if not limit:
            return None
        return Offer(
            worker=self._cluster.worker,
            nonce=self._clock.token(),
            limit=limit,
            queues=self._executor.queues(),
        )

    async def _send(
        self, owned: OwnedRun, operations: list[port.Operation], append: Append | None
    ) -> Receipt:
        reserved = append.offer.limit if append is not None and append.offer is not None else 0
        try:
            receipt = await self._bus.send(owned.partition, operations)
            if append is not None:
                self._appended(owned, receipt)
            return receipt
        finally:
            self._executor.unreserve(reserved)

    def _appended(self, owned: OwnedRun, receipt: Receipt) -> None:
        verdict, state = receipt.verdicts[-1], owned.state
        if isinstance(verdict, port.Refused):
            self._refused(owned, verdict.why)
            return
        if not isinstance(verdict, Appended) or state is None:
            raise AssertionError(f"unexpected verdict {verdict!r}")
        for claimed in verdict.claimed:
            if claimed.started is not None and claimed.started.seq == state.seq + 1:
                state.fold(claimed.started)
        if verdict.head.seq == state.seq:
            owned.errors = 0
        else:
            owned.state, owned.poked = None, True
        for claimed in verdict.claimed:
            self._executor.start(claimed, partition=owned.partition, sent_s=receipt.sent_s)
        if any(verdict.dups) and owned.state is None:
            raise AlgorithmError(
                f"algorithm {owned.algorithm.name} of run {owned.run_id} yields events again that "
                "stand in the log already; it must look at the state first"
            )
        if state.cancelling is not None:
            self._executor.stop_run(owned.run_id)
        if state.ending is not None and owned.state is not None:
            self._runs.pop(owned.run_id, None)
            self._on_closed(owned.run_id, state.ending)

    def _refused(self, owned: OwnedRun, why: Why) -> None:
        """The decision did not happen: what was folded ahead is not so."""
        owned.state = None
        if why is Why.TERM:
            self._cluster.lost(owned.app, owned.partition)
            self._on_term_lost(owned.app, owned.partition)
        elif why in (Why.MOVED, Why.STARTED, Why.SETTLED):
            owned.poked = True
        else:
            log.info("run %s: decision refused (%s)", owned.run_id, why)

    def _heard(
        self,
        owned: OwnedRun,
        creates: list[tuple[Create, asyncio.Future[Appended | port.Refused]]],
        settles: list[tuple[Settle, asyncio.Future[None]]],
        receipt: Receipt,
    ) -> None:
        verdicts = iter(receipt.verdicts)
        for _, reply in creates:
            verdict = next(verdicts)
            if not isinstance(verdict, Appended) or verdict.dups[0]:
                owned.state = None  # another run's, or one that has a history already
                owned.poked = isinstance(verdict, Appended)
            if not reply.done() and isinstance(verdict, Appended | port.Refused):
                reply.set_result(verdict)
        for settle, done in settles:
            verdict = next(verdicts)
            if not (isinstance(verdict, Settled) and verdict.verdict == "applied"):
                _tell_settle(settle, verdict)
                owned.state, owned.poked = None, True
            if not done.done():
                done.set_result(None)

    # ----------------------------------------------------------------- what can go wrong

    async def _algorithm_failed(self, owned: OwnedRun, error: AlgorithmError) -> None:
        owned.errors += 1
        owned.state, owned.poked = None, True
        log.warning("%s (%d of %d)", error, owned.errors, MAX_ALGORITHM_ERRORS)
        await self._send_undecided(owned)
        if owned.errors < MAX_ALGORITHM_ERRORS:
            return
        owned.errors = 0
        state = await self._load(owned)
        term = self._cluster.term(owned.app, owned.partition)
        if state.last is None or term is None:
            return
        parked = state.last.caused(
            ev.RUN_PARKED, {"error": "AlgorithmError", "message": str(error)[:4_000]}
        )
        await self._bus.send(
            owned.partition,
            [
                Append(
                    run_id=owned.run_id,
                    entries=(port.Entry(parked, port.Flag("park")),),
                    at=Head(state.seq, state.last.id),
                    term=term,
                    worker=self._cluster.worker,
                )
            ],
        )
        owned.state, owned.poked = None, False

    async def _set_aside(self, owned: OwnedRun, error: CorruptHistory) -> None:
        """Leave a run alone that cannot be read; the partition goes on."""
        log.error("%s; the run is left alone until it is repaired", error)
        await self._send_undecided(owned)
        info = await self._store.run(owned.run_id)
        term = self._cluster.term(owned.app, owned.partition)
        if info is not None and term is not None and info.status == "open":
            # Moves the cursor only, so that the run does not stand before others.
            await self._bus.send(
                owned.partition,
                [
                    Append(
                        run_id=owned.run_id,
                        entries=(),
                        at=info.head,
                        term=term,
                        worker=self._cluster.worker,
                    )
                ],
            )
        owned.state, owned.poked = None, False
        self._runs.pop(owned.run_id, None)

    async def _send_undecided(self, owned: OwnedRun) -> None:
        """Store what has happened, whatever the algorithm makes of it."""
        creates, owned.creates = owned.creates, []
        settles, owned.settles = owned.settles, []
        operations = [each for each, _ in creates] + [each for each, _ in settles]
        if operations:
            receipt = await self._bus.send(owned.partition, operations)
            self._heard(owned, creates, settles, receipt)
        owned.state = None


def _begin(create: Create) -> RunState:
    """The state that a new run has, if it is indeed new."""
    state = RunState(create.run_id)
    for entry in create.entries:
        state.fold(entry.event.stored(state.seq + 1, 0))
    return state


def _fold_settle(state: RunState, settle: Settle) -> bool:
    """Fold ahead what the settle will append; ``False`` if that cannot be foreseen."""
    request_id = settle.request_id
    if settle.outcome.type in (ev.LLM_COMPLETED, ev.LLM_FAILED):
        turn = state.turn
        expected = turn is not None and turn.request.id == request_id and turn.reply is None
    else:
        call = state.open_calls.get(request_id)
        expected = call is not None and call.attempts in (0, settle.attempt)
    if expected and state.status == "open":
        state.fold(settle.outcome.stored(state.seq + 1, 0))
        return True
    return False


def _tell_settle(settle: Settle, verdict: port.Verdict) -> None:
    what = verdict.verdict if isinstance(verdict, Settled) else verdict
    log.info(
        "run %s: outcome of attempt %d of %s: %s",
        settle.run_id,
        settle.attempt,
        settle.request_id[:12],
        what,
    )


def _fail(owned: OwnedRun, error: Exception) -> None:
    for _, reply in owned.creates:
        if not reply.done():
            reply.set_exception(error)
    for _, done in owned.settles:
        if not done.done():
            done.set_exception(error)
