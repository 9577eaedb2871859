"""Visiting partitions: taking what has to be decided, claiming what may be run, owning what is ours.

A partition is visited when there is a reason to: a hint from the store, a beat that says that
something waits there, a lease that may have ended, a timer that is due, a free slot. One visit of
one partition at a time; what comes meanwhile makes it go round once more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from aaa import events as ev
from aaa.bus import Bus, Receipt
from aaa.clock import Clock
from aaa.cluster import Cluster
from aaa.errors import AAAError, StoreWentBack
from aaa.lease import Heartbeat
from aaa.runtime.decide import approval_requested
from aaa.runtime.executor import Executor
from aaa.runtime.owner import Owner
from aaa.store import port
from aaa.store.port import Append, Beat, Claimed, Offer, Why
from aaa.telemetry import names, tell

log = logging.getLogger("aaa.visits")

#: Dirty runs and due timers taken in one visit; more follow in the next.
TAKE_LIMIT: Final = 100
#: A worker without a free slot looks after what it owns so soon after a hint.
BUSY_VISIT_MS: Final = 100


class Visits:
    """One worker's rounds. Nothing is visited before :meth:`begin` or after :meth:`cease`."""

    def __init__(
        self,
        *,
        bus: Bus,
        cluster: Cluster,
        heartbeat: Heartbeat,
        executor: Executor,
        owner: Owner,
        clock: Clock,
    ) -> None:
        self._bus, self._cluster, self._heartbeat = bus, cluster, heartbeat
        self._executor, self._owner, self._clock = executor, owner, clock
        self._worker = cluster.worker
        self._running = False
        self._visits: dict[int, asyncio.Task[None]] = {}
        self._errands: set[asyncio.Task[None]] = set()
        self._again: set[int] = set()
        self._backlog: set[int] = set()
        self._due: dict[int, asyncio.TimerHandle] = {}

    # ---------------------------------------------------------------- beginning, ending

    def begin(self) -> None:
        """Visits may be made."""
        self._running = True

    def cease(self) -> None:
        """Begin no visit any more; those under way end by themselves."""
        self._running = False
        for handle in self._due.values():
            handle.cancel()

    async def end(self) -> None:
        """End what is still under way."""
        tasks = [*self._visits.values(), *self._errands]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def give_back(self) -> None:
        """Give every owned partition back, once nothing is being decided."""
        await self._owner.quiet()
        gone = []
        for app, partition in self._cluster.owned():
            self._heartbeat.disown(app, partition)
            gone.append(self._bus.send(partition, [port.Disown(app=app, worker=self._worker)]))
        await asyncio.gather(*gone)

    # ------------------------------------------------------------------------- reasons

    def hint(self, partition: int) -> None:
        """The store says that something is left to do there."""
        if self._executor.free:
            self.soon(partition)
        else:
            self._backlog.add(partition)  # visited as soon as a slot is free
            if any(self._cluster.term(app, partition) for app in self._owner.algorithms):
                # The owner has more to do than to claim: a cancellation waits for no slot.
                self.later(partition, BUSY_VISIT_MS)

    def beat(self, beat: Beat) -> None:
        """A heartbeat's reply: who lives, what was lost, what waits."""
        self._cluster.heard(dict(beat.workers))
        for partition, app in beat.lost_owned:
            self._lost(app, partition)
        for app, partition in self._cluster.strays():
            self._spawn(self._disown(app, partition))
        for partition in beat.hot:
            self.soon(partition)
        for partition, after_ms in beat.next_expiry_ms.items():
            self._look_in(partition, after_ms)

    def slot_free(self) -> None:
        """A call has ended: claim what was left for want of a slot."""
        backlog, self._backlog = self._backlog, set()
        for partition in backlog:
            self.soon(partition)

    def _look_in(self, partition: int, after_ms: int) -> None:
        """Look at busy calls again when a lease can have ended (G14).

        The worker that should own the partition looks at once, each other one at its own moment
        within ``wait_poll_s``, so that they do not all ask for the same call.
        """
        late_ms = 0.0
        if not all(self._cluster.prefers(app, partition) for app in self._owner.algorithms):
            late_ms = self._executor.patience()[1] * 1000 * self._cluster.place(partition)
        self.later(partition, after_ms + round(late_ms))

    def later(self, partition: int, after_ms: int) -> None:
        """Visit the partition in so many milliseconds at the latest."""
        loop = asyncio.get_running_loop()
        at = loop.time() + after_ms / 1000 + 0.001
        known = self._due.get(partition)
        if known is not None and known.when() <= at and not known.cancelled():
            return
        if known is not None:
            known.cancel()
        self._due[partition] = loop.call_at(at, self._expired, partition)

    def _expired(self, partition: int) -> None:
        self._due.pop(partition, None)
        self.soon(partition)

    def soon(self, partition: int) -> None:
        """Visit the partition now, or once more if it is being visited."""
        if not self._running or not self._owner.algorithms:
            return
        if partition in self._visits:
            self._again.add(partition)
            return
        self._visits[partition] = asyncio.create_task(self._visit(partition))

    async def _visit(self, partition: int) -> None:
        try:
            while self._running:
                self._again.discard(partition)
                for app in list(self._owner.algorithms):
                    await self._visit_app(partition, app)
                if partition not in self._again:
                    return
        except AAAError as error:
            self._tell(names.LOG_VISIT_FAILED, partition, "partition %d: %s", partition, error)
        finally:
            self._visits.pop(partition, None)

    async def _visit_app(self, partition: int, app: str) -> None:
        operations: list[port.Operation] = []
        term = self._cluster.term(app, partition)
        if term is None and self._cluster.prefers(app, partition):
            operations.append(self._own_op(app))
        if term is not None or operations:
            # Runs that wait for their policy stay in the list: they must not hide the others.
            limit = TAKE_LIMIT + self._owner.awaiting(partition)
            operations.append(port.Take(app=app, worker=self._worker, term=term or 0, limit=limit))
        # Decisions claim what they open; a visit only gathers what was left, so it takes a share.
        slots = self._executor.reserve(max(1, self._executor.free // 4))
        offer = Offer(
            worker=self._worker,
            nonce=self._clock.token(),
            limit=slots,
            queues=self._executor.queues(),
        )
        operations.append(port.Claim(app=app, offer=offer))
        try:
            receipt = await self._bus.send(partition, operations)
            for verdict in receipt.verdicts:
                self._visited(partition, app, verdict, receipt)
        finally:
            self._executor.unreserve(slots)

    def _visited(self, partition: int, app: str, verdict: port.Verdict, receipt: Receipt) -> None:
        match verdict:
            case port.Owned(term):
                self._won(app, partition, term)
            case port.Busy(_, for_ms):
                self.later(partition, for_ms)
            case port.Taken():
                for run_id, head in verdict.runs:
                    self._owner.poke(run_id, app, head)
                if verdict.more:
                    self._again.add(partition)
                if verdict.next_timer_ms is not None:
                    self.later(partition, verdict.next_timer_ms)
            case port.Claims():
                self._claimed(partition, app, verdict, receipt)
            case port.Refused(why=Why.TERM):
                self._lost(app, partition)
            case port.Refused(why=Why.BEHIND):
                error = StoreWentBack(_went_back(partition))
                self._tell(names.LOG_STORE_WENT_BACK, partition, "%s", error)

    def _claimed(self, partition: int, app: str, claims: port.Claims, receipt: Receipt) -> None:
        for claimed in claims.claimed:
            self._executor.start(claimed, partition=partition, sent_s=receipt.sent_s)
        for held in claims.held:
            self._spawn(self._hold(partition, held))
        if claims.more:
            self._backlog.add(partition)
        if claims.next_expiry_ms is not None:
            self._look_in(partition, claims.next_expiry_ms)
        for run_id in claims.settled_runs:
            message = "run %s: a call was lost, and may have acted: aaa show %s"
            tell(
                log,
                names.LOG_CALL_UNKNOWN,
                message,
                run_id,
                run_id,
                run_id=run_id,
                worker=self._worker,
            )
        if self._cluster.term(app, partition) is not None:
            moved = [*claims.settled_runs, *(each.run_id for each in claims.claimed)]
            for run_id in dict.fromkeys(moved):  # in order: who drives first does not hang on luck
                self._owner.poke(run_id, app)

    async def _hold(self, partition: int, held: Claimed) -> None:
        """A ready call may not start without a (new) approval: ask a person."""
        asked = await self._bus.read(held.run_id)
        request = held.request
        again = sum(e.type == ev.APPROVAL_REQUESTED and e.parent == request.id for e in asked)
        digest = ev.args_digest(request.data["name"], request.data["arguments"])
        question = approval_requested(
            request, digest, reason="expired" if again else "requires_approval", again=again
        )
        entry = port.Entry(question, port.Hold(request.id))
        await self._bus.send(partition, [Append(run_id=held.run_id, entries=(entry,))])

    def _tell(self, event: names.LogEvent, partition: int, message: str, *args: object) -> None:
        tell(log, event, message, *args, partition=partition, worker=self._worker)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._errands.add(task)  # the loop itself keeps no task alive
        task.add_done_callback(self._errands.discard)
        task.add_done_callback(_log_failure)

    # --------------------------------------------------------------------------- ownership

    def _own_op(self, app: str) -> port.Own:
        return port.Own(app=app, worker=self._worker, ttl_ms=round(self._heartbeat.ttl_s * 1000))

    async def own(self, app: str, partition: int) -> None:
        """Try to become the owner."""
        receipt = await self._bus.send(partition, [self._own_op(app)])
        if isinstance(receipt.verdicts[0], port.Owned):
            self._won(app, partition, receipt.verdicts[0].term)
            self.soon(partition)  # it may have come with unfinished runs

    def _won(self, app: str, partition: int, term: int) -> None:
        if self._cluster.term(app, partition) != term:
            self._owner.forget(app, partition)
        self._cluster.won(app, partition, term)
        self._heartbeat.own(app, partition)

    def _lost(self, app: str, partition: int) -> None:
        self._cluster.lost(app, partition)
        self._heartbeat.disown(app, partition)
        self._owner.forget(app, partition)

    async def _disown(self, app: str, partition: int) -> None:
        """Another worker should have it: stop deciding, then give it back."""
        self._lost(app, partition)
        await self._bus.send(partition, [port.Disown(app=app, worker=self._worker)])


def _went_back(partition: int) -> str:
    return (
        f"the store has gone back in time (partition {partition}): it holds less than this worker "
        "has seen; nothing is claimed until 'aaa doctor --accept-loss' (see docs/operations.md)"
    )


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        tell(log, names.LOG_TASK_FAILED, "%s", error)
