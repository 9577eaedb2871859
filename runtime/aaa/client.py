"""Client: what a person does to runs from outside: look, approve, reject, resolve, cancel.

It works on any store, whether or not a worker is running: what it writes are events, and whoever
owns the run's partition goes on from there. Every word of a person is recorded with who said it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from aaa import events as ev
from aaa import ids
from aaa.algos import CallState, RunState
from aaa.catalogue import Catalogue as Catalogue  # noqa: PLC0414 - re-exported
from aaa.catalogue import ToolLayers as ToolLayers  # noqa: PLC0414 - re-exported
from aaa.catalogue import decode as _catalogue
from aaa.clock import SYSTEM_CLOCK, Clock
from aaa.errors import (
    CallNotFound,
    ConfigError,
    DecisionRefused,
    RunDeleted,
    RunNotFound,
    StoreUnavailable,
)
from aaa.events import Event
from aaa.overview import OpenCall as OpenCall  # noqa: PLC0414 - re-exported
from aaa.overview import Overview as Overview  # noqa: PLC0414 - re-exported
from aaa.runtime.observe import submitting
from aaa.runtime.outcome import Run
from aaa.runtime.submission import app_parts, check_policy, creation, submitted
from aaa.runtime.submission import input_digest as input_digest  # noqa: PLC0414 - re-exported
from aaa.store import open_store, port
from aaa.store.port import Append, Entry, EventStore, Flag, Refused, StoreInfo, Why
from aaa.store.port import Member as Member  # noqa: PLC0414 - re-exported
from aaa.store.port import Members as Members  # noqa: PLC0414 - re-exported
from aaa.store.port import RunInfo as RunInfo  # noqa: PLC0414 - re-exported
from aaa.store.redis_acl import acl_rule as acl_rule  # noqa: PLC0414 - re-exported
from aaa.store.redis_acl import password_digest as password_digest  # noqa: PLC0414 - re-exported
from aaa.store.redis_acl import tenant_url as tenant_url  # noqa: PLC0414 - re-exported
from aaa.telemetry import RunTraces, Telemetry
from aaa.waiting import CallView as CallView  # noqa: PLC0414 - re-exported
from aaa.waiting import folded, question_of, view_of

if TYPE_CHECKING:
    from aaa.store.redis.users import RedisUsers

#: How long an approval holds until the call is claimed, unless said otherwise.
APPROVAL_FOR_S: Final = 86_400.0
#: Runs that are looked at for what waits for a person, at most.
MAX_RUNS: Final = 1_000_000
#: Tries of one write while the store cannot be reached, a second apart at most.
TRIES: Final = 5

Resolution = Literal["done", "not_done", "retry"]


class Client:
    """Submits, reads and decides; runs nothing itself.

    ``store`` is an :class:`EventStore` or a URL. ``async with`` opens and closes it. ``traces``,
    if any, are where submissions are told.
    """

    def __init__(
        self,
        store: EventStore | str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        traces: RunTraces | None = None,
    ) -> None:
        self.store = open_store(store) if isinstance(store, str) else store
        self._clock, self._traces = clock, traces
        self._renewer: port.Renewer | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> StoreInfo:
        """Open the store. Raises what :meth:`EventStore.open` raises."""
        info = await self.store.open()
        if self._traces is not None:
            self._traces.identity = info.identity
        return info

    # ------------------------------------------------------------------------- looking

    async def info(self, run_id: str) -> RunInfo:
        """The run's index entry. Raises RunNotFound or RunDeleted."""
        info = await self.store.run(run_id)
        if info is None:
            raise RunNotFound(f"there is no run {run_id!r} in this store")
        if info.deleted:
            raise RunDeleted(f"run {run_id} was deleted")
        return info

    async def events(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Event]:
        """The run's log, or ``limit`` events of it. Raises RunNotFound or RunDeleted."""
        await self.info(run_id)
        return await self.store.read(run_id, after=after, limit=limit)

    async def state(self, run_id: str) -> RunState:
        """The run, folded."""
        state = RunState(run_id)
        for event in await self.events(run_id):
            state.fold(event)
        return state

    async def pending(self, run_id: str | None = None) -> list[CallView]:
        """Every call that waits for an approval, longest waiting first. Of one run, or of all."""
        found = []
        for info in await self._of(run_id, status="waiting"):
            events = await self.store.read(info.run_id)
            state = folded(info.run_id, events)
            found += [
                view_of(state, call, events, reason=question_of(call, events).data["reason"])
                for call in state.open_calls.values()
                if call.waiting
            ]
        return sorted(found, key=lambda view: view.since_ms)

    async def unknown(self, run_id: str | None = None) -> list[CallView]:
        """Every call whose effect is unknown and unresolved, oldest first. Of one run, or of all."""
        found = []
        for info in await self._of(run_id, status="unknown"):
            events = await self.store.read(info.run_id)
            state = folded(info.run_id, events)
            found += [
                view_of(state, call, events, reason=call.result.data["error"])
                for call in state.unknown.values()
                if call.result is not None
            ]
        return sorted(found, key=lambda view: view.since_ms)

    async def overview(self, run_id: str, *, known: Overview | None = None) -> Overview | None:
        """How far the run is; ``None`` if the store has never had it. Raises RunDeleted.

        ``known``, from an earlier look, is brought up to date and returned: only what was appended
        since is read, and nothing at all if nothing was.
        """
        info = await self.store.run(run_id)
        if info is None:
            return None
        if info.deleted:
            raise RunDeleted(f"run {run_id} was deleted")
        known = known or Overview(run_id)
        if known.seq > info.head.seq:  # the store went back in time: begin again
            known = Overview(run_id)
        if known.seq < info.head.seq:
            for event in await self.store.read(run_id, after=known.seq):
                known.fold(event)
        known.index(info)
        return known

    async def members(self) -> Members:
        """The workers that live, by the store's clock."""
        return await self.store.members()

    async def beat(self, name: str, *, ttl_s: float) -> None:
        """Hold a lease that serves nothing, as a canary: that it lives shows that leases can be
        renewed. Raises :class:`StoreUnavailable`.
        """
        if self._renewer is None:
            self._renewer = self.store.renewer()
        pulse = port.Pulse(worker=name, apps=(), ttl_ms=round(ttl_s * 1000))
        await asyncio.to_thread(self._renewer.pulse, pulse)

    @property
    def users(self) -> RedisUsers:
        """The server's users that are limited to this store. Raises :class:`ConfigError` for a store
        that has none: all but Redis.
        """
        users: RedisUsers | None = getattr(self.store, "users", None)
        if users is None:
            raise ConfigError("this store has no users; only Redis and Valkey have")
        return users

    async def close(self) -> None:
        """Close the store."""
        if self._renewer is not None:
            await asyncio.to_thread(self._renewer.close)
        await self.store.close()

    # ---------------------------------------------------------------------- submitting

    async def submit(
        self,
        app: str,
        input: Any,  # noqa: A002 - as Engine.submit calls it
        *,
        run_id: str,
        deadline_s: float | None = None,
        policy: str | None = None,
    ) -> Run:
        """Begin a run of an app that workers serve under this full name, without loading it.

        The name is what :meth:`aaa.app.App.full_name` returns and what a run's ``app`` says. The same
        run id with the same input is the same run. ``policy`` is the hash of the
        :class:`aaa.policy.PolicyLayers` that its calls must be claimed under from the beginning; a
        run that is there already keeps what it requires (:meth:`require_policy` changes that).
        Raises :class:`ConfigError` for a name or input that is none, :class:`RunConflict` for other
        input, :class:`RunDeleted`.
        """
        _, algorithm, version, _ = app_parts(app)
        create = creation(
            ids.check_run_id(run_id),
            app,
            algorithm=algorithm,
            version=version,
            input=input,
            deadline_s=deadline_s,
            policy=policy,
        )
        with submitting(self._traces, run_id, algorithm=algorithm, version=version, worker=None):
            return submitted(run_id, await self._commit(run_id, create))

    # ------------------------------------------------------------------------ deciding

    async def approve(
        self,
        run_id: str,
        call_id: str,
        *,
        by: str,
        args_digest: str | None = None,
        for_s: float = APPROVAL_FOR_S,
    ) -> Event:
        """Approve one waiting call, with the arguments it has now, for so long (G19).

        With ``args_digest`` the approval is refused if it is for other arguments.
        """
        call, events = await self._waiting(run_id, call_id)
        asked = question_of(call, events)
        digest = args_digest or asked.data["args_digest"]
        count = sum(e.type == ev.APPROVED and e.parent == call.request.id for e in events)
        approved = call.request.named(
            f"{call.request.id}:approved:{count + 1}",
            ev.APPROVED,
            {"args_digest": digest, "by": by, "call_id": call_id, "for_s": for_s},
        )
        effect = port.Grant(call.request.id, digest, round(for_s * 1000))
        return (await self._append(run_id, [Entry(approved, effect)], call_id))[0]

    async def reject(self, run_id: str, call_id: str, *, by: str, reason: str) -> Event:
        """Refuse one waiting call; the model is told why."""
        call, _ = await self._waiting(run_id, call_id)
        request = call.request
        rejected = request.named(
            f"{request.id}:rejected",
            ev.REJECTED,
            {"by": by, "call_id": call_id, "reason": reason},
        )
        message = f"{call.name} was not run: {by} rejected it. Reason: {reason}"
        failed = ev.tool_failed(request, "ApprovalRejected", message)
        entries = [Entry(rejected), Entry(failed, port.SettleUnstarted(request.id))]
        return (await self._append(run_id, entries, call_id))[0]

    async def resolve(
        self,
        run_id: str,
        call_id: str,
        outcome: Resolution,
        *,
        by: str,
        result: Any = None,
        reason: str = "",
    ) -> Event:
        """Say what became of a call whose effect is unknown; once (G4)."""
        data = {"by": by, "call_id": call_id, "outcome": outcome, "reason": reason}
        if outcome == "done" and result is not None:
            data["result"] = result
        while True:
            with suppress(_Moved):
                return await self._resolve(run_id, call_id, data)

    async def _resolve(self, run_id: str, call_id: str, data: dict[str, Any]) -> Event:
        retry = data["outcome"] == "retry"
        state = await self.state(run_id)
        call = state.call_named(call_id)
        if call is None:
            raise CallNotFound(f"run {run_id} has no call {call_id!r}")
        if not call.unknown:
            raise DecisionRefused(
                f"call {call_id} of run {run_id} has no unknown outcome to resolve"
            )
        if retry and (state.status != "open" or state.cancelling is not None):
            raise DecisionRefused(
                f"run {run_id} has ended or is being cancelled, so nothing would run call {call_id} "
                "again; submit another run"
            )
        resolved = call.request.named(f"{call.request.id}:resolved", ev.TOOL_RESOLVED, data)
        entries = [Entry(resolved, port.Resolve(call.request.id))]
        # A retry is only asked of a run that goes on: it must not end in between.
        last = state.last if retry else None
        at = None if last is None else port.Head(last.seq, last.id)
        return (await self._append(run_id, entries, call_id, at=at))[0]

    async def cancel(self, run_id: str, *, by: str, reason: str = "") -> Event:
        """Stop decisions and claims; the run is cancelled when every call has settled (L13)."""
        root = await self._root(run_id)
        asked = root.named(
            f"{root.id}:cancel", ev.RUN_CANCEL_REQUESTED, {"by": by, "reason": reason}
        )
        return (await self._append(run_id, [Entry(asked, Flag("cancel"))], None))[0]

    async def suspend(self, run_id: str, *, by: str) -> Event:
        """Stop decisions and claims until :meth:`resume`."""
        return await self._flag(run_id, ev.RUN_SUSPENDED, "suspend", by)

    async def resume(self, run_id: str, *, by: str) -> Event:
        """Go on with a suspended or parked run."""
        return await self._flag(run_id, ev.RUN_RESUMED, "resume", by)

    async def require_policy(self, run_id: str, policy: str) -> Event:
        """From now on the run's calls are claimed under the policy of this hash only.

        The next attempt begins under it; a call that is open keeps what it began with, tightened at
        most (G22). Until a worker has read the policy the run's calls wait.
        Raises :class:`DecisionRefused` for a run that has ended.
        """
        data = {"policy": check_policy(policy)}
        while True:
            info = await self.info(run_id)
            (last, *_) = await self.store.read(run_id, after=info.head.seq - 1)
            if last.id == info.head.last_id:
                entry = Entry(last.caused(ev.RUN_POLICY, data), port.Require(policy))
                with suppress(_Moved):
                    return (await self._append(run_id, [entry], None, at=info.head))[0]

    async def delete(self, run_id: str, *, force: bool = False) -> bool:
        """Remove an ended run; a tombstone stays (L12). Whether it was there."""
        verdict = await self._commit(run_id, port.Delete(run_id=run_id, force=force))
        if isinstance(verdict, Refused):
            if verdict.why is Why.OPEN:
                cancelling = (await self.info(run_id)).cancelling
                first = "wait for its calls in flight" if cancelling else "cancel it first"
                raise DecisionRefused(
                    f"run {run_id} has not ended; {first}, or delete it with force, whatever is in flight"
                )
            raise RunNotFound(f"there is no run {run_id!r} in this store")
        return isinstance(verdict, port.Done) and verdict.count > 0

    async def accept_loss(self, *, by: str, restored: bool = False) -> int:
        """Accept that the store lost writes: every open tool call becomes unknown (G23).

        ``restored`` says so of a store that no worker has noticed to have gone back. ``by`` is
        recorded with each call; returns how many there are.
        """
        accept, changed = port.AcceptLoss(by=by, force=restored), 0
        for partition in range(self.store.partitions):
            verdict = await self._send(partition, accept)
            changed += verdict.count if isinstance(verdict, port.Done) else 0
        return changed

    # ------------------------------------------------------------------------ inside

    async def _of(self, run_id: str | None, *, status: str) -> list[RunInfo]:
        if run_id:
            return [await self.info(run_id)]
        return await self.store.runs(status=status, limit=MAX_RUNS)

    async def _flag(self, run_id: str, type_: str, flag: str, by: str) -> Event:
        events = await self.events(run_id)
        event = events[-1].caused(type_, {"by": by})
        return (await self._append(run_id, [Entry(event, Flag(flag))], None))[0]

    async def _root(self, run_id: str) -> Event:
        await self.info(run_id)
        return (await self.store.read(run_id, limit=1))[0]

    async def _waiting(self, run_id: str, call_id: str) -> tuple[CallState, list[Event]]:
        events = await self.events(run_id)
        call = folded(run_id, events).call_named(call_id)
        if call is None:
            raise CallNotFound(f"run {run_id} has no call {call_id!r}")
        if not call.waiting:
            raise DecisionRefused(f"call {call_id} of run {run_id} does not wait for an approval")
        return call, events

    async def _append(
        self,
        run_id: str,
        entries: list[Entry],
        call_id: str | None,
        *,
        at: port.Head | None = None,
    ) -> tuple[Event, ...]:
        verdict = await self._commit(run_id, Append(run_id=run_id, entries=tuple(entries), at=at))
        if isinstance(verdict, Refused) and verdict.why is Why.MOVED:
            raise _Moved
        what = f"run {run_id}" if call_id is None else f"call {call_id} of run {run_id}"
        if isinstance(verdict, port.Appended):
            for entry, stands in zip(entries, verdict.events, strict=True):
                if entry.event.raw != stands.raw:
                    raise DecisionRefused(f"{what}: somebody was faster, and decided otherwise")
            return verdict.events
        raise DecisionRefused(f"{what}: {_said(verdict)}")

    async def _commit(self, run_id: str, operation: port.Operation) -> port.Verdict:
        return await self._send(ids.partition_of(run_id, self.store.partitions), operation)

    async def _send(self, partition: int, operation: port.Operation) -> port.Verdict:
        for tried in range(TRIES):
            try:
                return (await self.store.commit(partition, [operation])).verdicts[0]
            except StoreUnavailable:
                if tried == TRIES - 1:
                    raise
                await self._clock.sleep(min(1.0, 0.1 * 2**tried))
        raise AssertionError("unreachable")


class _Moved(Exception):
    """The log has grown since it was looked at: look again."""


def catalogue_of(member: Member) -> Catalogue:
    """What a worker says of itself: acknowledged policies, its tools and their layers."""
    return _catalogue(member.info)


async def open_client(url: str) -> tuple[Client, StoreInfo]:
    """A client of the store at ``url``, opened; to be closed by the caller.

    Its submissions are told where the process sends its spans; looking is not: who looks after
    thousands of runs would drown their traces.
    """
    tracer = Telemetry.current().tracer
    client = Client(url, traces=None if tracer is None else RunTraces(tracer))
    return client, await client.open()


_WORDS: Final = {
    Why.DIGEST: "the approval is for other arguments than the call has now; look at it again",
    Why.NOT_WAITING: "nothing is awaited any more; somebody was faster, or it has expired",
    Why.SETTLED: "it has its result already",
    Why.STARTED: "it has begun already",
    Why.CLOSED: "the run has ended",
    Why.NO_RUN: "there is no such run",
    Why.NO_CALL: "there is no such call",
    Why.DELETED: "the run was deleted",
}


def _said(verdict: port.Verdict) -> str:
    if isinstance(verdict, Refused):
        return _WORDS.get(verdict.why, f"refused ({verdict.why})")
    raise AssertionError(f"unexpected verdict {verdict!r}")
