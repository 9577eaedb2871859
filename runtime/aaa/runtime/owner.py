"""Owned runs: fold, decide, append; one decision at a time per run (L8).

Each active run has one driver. It takes everything that has happened to the run since its last
step (outcomes of calls that ran here, hints that the log has moved), folds ahead, decides, and
sends settles and decision together: one operation each, one trip. Whatever the store refuses
makes the driver forget the folded state and read the log again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from aaa import events as ev
from aaa.algos import Algorithm, RunState
from aaa.bus import Bus, Receipt
from aaa.clock import Clock
from aaa.cluster import Cluster
from aaa.errors import AAAError, AlgorithmError, CorruptHistory, StoreUnavailable
from aaa.events import Event
from aaa.ids import partition_of
from aaa.runtime.decide import decide, overdue
from aaa.runtime.executor import Executor
from aaa.runtime.observe import Observer
from aaa.store import port
from aaa.store.port import Append, Appended, Create, EventStore, Head, Offer, Settle, Settled, Why
from aaa.telemetry import names, tell
from aaa.tools import ToolHandler

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
    #: The state's events up to this one stand in the log; what follows is folded ahead.
    sure: int = 0
    creates: list[tuple[Create, asyncio.Future[Appended | port.Refused]]] = field(
        default_factory=list
    )
    settles: list[tuple[Settle, asyncio.Future[None]]] = field(default_factory=list)
    poked: bool = False
    head: Head | None = None
    errors: int = 0
    #: Calls that run without an attempt record: the log does not show that they have begun (G18).
    #: So found at this head; when the log moves, one of them may have settled: try again.
    begun: set[str] = field(default_factory=set)
    begun_at: Head | None = None
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
        observer: Observer,
        on_closed: Callable[[str, Event], None],
        on_term_lost: Callable[[str, int], None],
        on_timer: Callable[[int, int], None],
    ) -> None:
        self._store, self._bus, self._cluster = store, bus, cluster
        self._executor, self._clock, self._observer = executor, clock, observer
        self._on_closed, self._on_term_lost = on_closed, on_term_lost
        self._on_timer = on_timer
        #: By (app, run id): a run that is submitted to a newer version stays the older one's (L11).
        self._runs: dict[tuple[str, str], OwnedRun] = {}
        self.algorithms: dict[str, Algorithm] = {}
        #: By partition: runs whose policy this worker has not read. Policies that were told of.
        self._awaiting: dict[int, set[str]] = {}
        self._told_of: set[str] = set()
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
        owned = self._find(run_id)
        return owned is not None and self._cluster.term(owned.app, owned.partition) is not None

    def state_of(self, run_id: str, seq: int) -> RunState | None:
        """The folded state, if it is here and is what the log says up to ``seq``."""
        owned = self._find(run_id)
        return owned.state if owned is not None and owned.sure >= seq else None

    def _find(self, run_id: str) -> OwnedRun | None:
        found = (self._runs.get((app, run_id)) for app in self.algorithms)
        return next((owned for owned in found if owned is not None), None)

    def awaiting(self, partition: int) -> int:
        """How many runs there are left unfolded for want of their policy."""
        return len(self._awaiting.get(partition, ()))

    def policies_changed(self) -> None:
        """Other policies are in force here: what waits is told of anew."""
        self._told_of.clear()

    def forget(self, app: str, partition: int) -> None:
        """The partition is another's: what is folded here is of no use any more."""
        self._awaiting.pop(partition, None)
        for owned in list(self._runs.values()):
            if owned.app == app and owned.partition == partition and owned.task is None:
                del self._runs[app, owned.run_id]

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
        owned = self._runs.pop((app, run_id), None)
        if owned is None:
            partition = partition_of(run_id, self._store.partitions)
            owned = OwnedRun(run_id, app, partition, self.algorithms[app])
            self._evict()
        self._runs[app, run_id] = owned  # newest last: the first idle one is the first to go
        return owned

    def _evict(self) -> None:
        while len(self._runs) > MAX_IDLE_RUNS:
            idle = next((run for run in self._runs.values() if run.task is None), None)
            if idle is None:
                return
            del self._runs[idle.app, idle.run_id]

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
                except StoreUnavailable:
                    raise
                except Exception:
                    # The store cannot take the decision; what has happened is stored without it.
                    await self._send_undecided(owned)
                    raise
        except asyncio.CancelledError:
            _fail(owned, StoreUnavailable("the engine has stopped"))
            raise
        except AAAError as error:
            self._tell(names.LOG_RUN_STUCK, owned, "run %s: %s", owned.run_id, error)
            self._runs.pop((owned.app, owned.run_id), None)
            _fail(owned, error)
        except Exception as error:  # noqa: BLE001 - told with its trace
            tell(
                log,
                names.LOG_RUN_STUCK,
                "run %s",
                owned.run_id,
                exc_info=True,
                run_id=owned.run_id,
                worker=self._cluster.worker,
            )
            self._runs.pop((owned.app, owned.run_id), None)
            _fail(owned, error)
        finally:
            owned.task = None

    async def _step(self, owned: OwnedRun) -> None:
        creates, owned.creates = owned.creates, []
        settles, owned.settles = owned.settles, []
        try:
            operations: list[port.Operation] = [create for create, _ in creates]
            if owned.state is None and creates:
                owned.state, owned.sure = _begin(creates[0][0]), 0
            state = owned.state = await self._load(owned)
            if state.ending is not None and not operations and not settles:
                self._runs.pop((owned.app, owned.run_id), None)  # somebody has ended it
                self._on_closed(owned.run_id, state.ending)
                return
            foreseen = all(_foreseen(state, settle) for settle, _ in settles)
            if foreseen:
                for settle, _ in settles:
                    state.fold(settle.outcome.stored(state.seq + 1, 0))
            operations += [settle for settle, _ in settles]
            rests_on = tuple((settle.request_id, settle.attempt) for settle, _ in settles)
            append = self._decision(owned, state, rests_on) if foreseen else None
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
        self._heard(owned, creates, settles, receipt, fold=not foreseen)
        if append is None and foreseen:
            owned.state = None
        owned.poked = owned.poked or not foreseen

    async def _load(self, owned: OwnedRun) -> RunState:
        state = owned.state or RunState(owned.run_id)
        head, owned.head = owned.head, None
        if state.seq == 0 or (head is not None and head.seq > state.seq):
            try:
                for event in await self._bus.read(owned.run_id, after=state.seq):
                    state.fold(event)
            except BaseException:
                owned.state = None
                raise
            owned.sure = state.seq
        return state

    def _decision(
        self, owned: OwnedRun, state: RunState, rests_on: tuple[tuple[str, int], ...]
    ) -> Append | None:
        term = self._cluster.term(owned.app, owned.partition)
        if term is None or state.last is None or state.root is None:
            return None
        if state.root.data.get("app") != owned.app:
            return None  # pinned to another version, which a term of this one says nothing about
        at = Head(state.seq, state.last.id)
        if owned.begun_at != at:
            owned.begun.clear()
        was_open = state.status == "open"
        if was_open and self._awaits_policy(owned, state):
            return None  # stays unfolded, for whoever has the policy, or this worker when it has
        entries: list[port.Entry] = []
        if was_open:
            with self._observer.deciding(state, owned.algorithm) as step:
                entries = decide(state, owned.algorithm, self._tools(state), owned.begun)
                step.decided(len(entries))
        opened = [e.effect.queue for e in entries if isinstance(e.effect, port.OpenCall)]
        return Append(
            run_id=owned.run_id,
            entries=tuple(entries),
            at=at,
            term=term,
            worker=self._cluster.worker,
            rests_on=rests_on,
            offer=self._offer(opened, state.policy),
        )

    def _tools(self, state: RunState) -> ToolHandler | None:
        in_force = self._executor.in_force
        return in_force.under(state.policy) if in_force.knows(state.policy) else None

    def _awaits_policy(self, owned: OwnedRun, state: RunState) -> bool:
        """Whether nothing may be decided before this worker has read the run's policy.

        What ends a run needs none.
        """
        awaiting = self._awaiting.setdefault(owned.partition, set())
        ends = state.cancelling is not None or overdue(state) is not None
        if ends or self._executor.in_force.knows(state.policy):
            awaiting.discard(owned.run_id)
            return False
        awaiting.add(owned.run_id)
        if state.policy not in self._told_of:
            self._told_of.add(state.policy)
            self._tell(names.LOG_POLICY_AWAITED, owned, "%s", self._what_is_awaited(state))
        return True

    def _what_is_awaited(self, state: RunState) -> str:
        run_id, policy = state.run_id, state.policy
        if not policy:
            return (
                f"run {run_id} requires no policy, and this worker serves only runs that do; "
                "such runs wait"
            )
        why = self._executor.in_force.refused.get(policy)
        what = "has not read" if why is None else f"refuses ({why})"
        return f"run {run_id} requires policy {policy}, which this worker {what}; such runs wait"

    def _offer(self, opened: Sequence[str], policy: str) -> Offer | None:
        """To claim at once what the decision opens, of the queues that it opens."""
        if self.draining or not opened:
            return None
        served = self._executor.queues(policy)
        queues = {queue: served[queue] for queue in opened if queue in served}
        limit = self._executor.reserve(len(opened)) if queues else 0
        if not limit:
            return None
        return Offer(
            worker=self._cluster.worker,
            nonce=self._clock.token(),
            limit=limit,
            queues=queues,
        )

    async def _send(
        self, owned: OwnedRun, operations: list[port.Operation], append: Append | None
    ) -> Receipt:
        reserved = append.offer.limit if append is not None and append.offer is not None else 0
        try:
            receipt = await self._bus.send(owned.partition, operations)
            for after_ms in _timers(operations):
                self._on_timer(owned.partition, after_ms)
            if append is not None and not _stood_before(operations, receipt):
                self._appended(owned, append, receipt)
            return receipt
        finally:
            self._executor.unreserve(reserved)

    def _appended(self, owned: OwnedRun, append: Append, receipt: Receipt) -> None:
        verdict, state = receipt.verdicts[-1], owned.state
        if isinstance(verdict, port.Refused):
            self._refused(owned, append, verdict.why)
            return
        if not isinstance(verdict, Appended) or state is None:
            raise AssertionError(f"unexpected verdict {verdict!r}")
        for claimed in verdict.claimed:
            if claimed.started is not None and claimed.started.seq == state.seq + 1:
                state.fold(claimed.started)
        if verdict.head.seq == state.seq:
            owned.errors, owned.sure = 0, state.seq
        else:
            owned.state, owned.poked = None, True
        for claimed in verdict.claimed:
            self._executor.start(claimed, partition=owned.partition, sent_s=receipt.sent_s)
        if any(verdict.dups) and owned.state is None and not receipt.again:
            raise AlgorithmError(
                f"algorithm {owned.algorithm.name} of run {owned.run_id} yields events again that "
                "stand in the log already; it must look at the state first"
            )
        if state.cancelling is not None:
            self._executor.stop_run(owned.run_id)
        if state.ending is not None and owned.state is not None:
            self._runs.pop((owned.app, owned.run_id), None)
            self._on_closed(owned.run_id, state.ending)

    def _refused(self, owned: OwnedRun, append: Append, why: Why) -> None:
        """The decision did not happen: what was folded ahead is not so."""
        owned.state = None
        if why is Why.STARTED:
            # Of calls without a record only the store knows; they will settle by themselves.
            owned.begun_at = append.at
            owned.begun |= {
                entry.effect.request_id
                for entry in append.entries
                if isinstance(entry.effect, port.SettleUnstarted)
            }
        if why is Why.TERM:
            self._cluster.lost(owned.app, owned.partition)
            self._on_term_lost(owned.app, owned.partition)
        elif why in (Why.MOVED, Why.STARTED, Why.SETTLED, Why.CLOSED):
            owned.poked = True
        else:
            message = "run %s: decision refused (%s)"
            self._tell(names.LOG_DECISION_REFUSED, owned, message, owned.run_id, why)

    def _heard(
        self,
        owned: OwnedRun,
        creates: list[tuple[Create, asyncio.Future[Appended | port.Refused]]],
        settles: list[tuple[Settle, asyncio.Future[None]]],
        receipt: Receipt,
        *,
        fold: bool = False,
    ) -> None:
        """Tell who waits. ``fold``: what was applied has not been folded ahead."""
        verdicts = iter(receipt.verdicts)
        for _, reply in creates:
            verdict = next(verdicts)
            if not isinstance(verdict, Appended) or verdict.dups[0]:
                owned.state = None  # another run's, or one that has a history already
                owned.poked = isinstance(verdict, Appended)
            if _anothers(owned, verdict):
                owned.poked = False  # it was begun under another version, and is left alone (L11)
                self._runs.pop((owned.app, owned.run_id), None)
            if not reply.done() and isinstance(verdict, Appended | port.Refused):
                reply.set_result(verdict)
        for settle, done in settles:
            verdict = next(verdicts)
            if not (isinstance(verdict, Settled) and verdict.verdict == "applied"):
                _tell_settle(settle, verdict, self._cluster.worker)
                owned.state, owned.poked = None, True
            elif fold:
                _fold_settled(owned, verdict)
            if not done.done():
                done.set_result(None)

    # ----------------------------------------------------------------- what can go wrong

    def _tell(self, event: names.LogEvent, owned: OwnedRun, message: str, *args: object) -> None:
        tell(log, event, message, *args, run_id=owned.run_id, worker=self._cluster.worker)

    async def _algorithm_failed(self, owned: OwnedRun, error: AlgorithmError) -> None:
        owned.errors += 1
        owned.state, owned.poked = None, True
        said = (error, owned.errors, MAX_ALGORITHM_ERRORS)
        self._tell(names.LOG_ALGORITHM_FAILED, owned, "%s (%d of %d)", *said)
        await self._send_undecided(owned)
        if owned.errors < MAX_ALGORITHM_ERRORS:
            return
        owned.errors = 0
        state = await self._load(owned)
        term = self._cluster.term(owned.app, owned.partition)
        if state.last is None or term is None:
            return
        parked = state.last.caused(
            ev.RUN_PARKED, {"error": "AlgorithmError", "message": ev.recordable(str(error))}
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
        message = "%s; the run is left alone until it is repaired"
        self._tell(names.LOG_RUN_CORRUPT, owned, message, error)
        await self._send_undecided(owned)
        info = await self._bus.run(owned.run_id)
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
        self._runs.pop((owned.app, owned.run_id), None)

    async def _send_undecided(self, owned: OwnedRun) -> None:
        """Store what has happened, whatever the algorithm makes of it."""
        creates, owned.creates = owned.creates, []
        settles, owned.settles = owned.settles, []
        operations = [each for each, _ in creates] + [each for each, _ in settles]
        owned.state = None
        if not operations:
            return
        try:
            receipt = await self._bus.send(owned.partition, operations)
        except BaseException:
            owned.creates, owned.settles = creates + owned.creates, settles + owned.settles
            raise
        self._heard(owned, creates, settles, receipt)
        owned.state = None


def _begin(create: Create) -> RunState:
    """The state that a new run has, if it is indeed new."""
    state = RunState(create.run_id)
    for entry in create.entries:
        state.fold(entry.event.stored(state.seq + 1, 0))
    return state


def _foreseen(state: RunState, settle: Settle) -> bool:
    """Whether it is clear what the settle will append, if it is applied."""
    if state.status != "open":
        return False
    if settle.outcome.type in (ev.LLM_COMPLETED, ev.LLM_FAILED):
        turn = state.turn
        asked = turn is not None and turn.request.id == settle.request_id
        return asked and turn is not None and turn.completed is None and turn.failed is None
    return settle.request_id in state.open_calls


def _fold_settled(owned: OwnedRun, settled: Settled) -> None:
    """Go on from what was stored, unless something else came between."""
    state, event = owned.state, settled.event
    if state is None or event is None:
        return
    if event.seq == state.seq + 1:
        state.fold(event)
    else:
        owned.state = None


def _stood_before(operations: list[port.Operation], receipt: Receipt) -> bool:
    """Whether the run that was to be created has a history already, which nobody has folded.

    After a lost reply it may be this very operation that created it: then its decision stands.
    """
    first = receipt.verdicts[0]
    if not isinstance(operations[0], Create):
        return False
    return not isinstance(first, Appended) or (first.dups[0] and not receipt.again)


def _anothers(owned: OwnedRun, verdict: port.Verdict) -> bool:
    """Whether the run that was to be created is there already, pinned to another app (L11)."""
    if not isinstance(verdict, Appended) or not (verdict.dups and verdict.dups[0]):
        return False
    roots = [event for event in verdict.events if event.type == ev.RUN_REQUESTED]
    # The same input under the same app has the same first event (L4).
    return not any(root.data.get("app") == owned.app for root in roots)


def _tell_settle(settle: Settle, verdict: port.Verdict, worker: str) -> None:
    what = verdict.verdict if isinstance(verdict, Settled) else verdict
    tell(
        log,
        names.LOG_SETTLE_VERDICT,
        "run %s: outcome of attempt %d of %s: %s",
        settle.run_id,
        settle.attempt,
        settle.request_id[:12],
        what,
        run_id=settle.run_id,
        call_id=settle.outcome.data.get("call_id"),
        attempt=settle.attempt,
        worker=worker,
    )


def _timers(operations: Sequence[port.Operation]) -> Iterator[int]:
    """When the timers that these operations set are due, in milliseconds from now."""
    for operation in operations:
        for entry in operation.entries if isinstance(operation, Create | Append) else ():
            if isinstance(entry.effect, port.StartTimer):
                yield entry.effect.after_ms


def _fail(owned: OwnedRun, error: Exception) -> None:
    for _, reply in owned.creates:
        if not reply.done():
            reply.set_exception(error)
    for _, done in owned.settles:
        if not done.done():
            done.set_exception(error)
