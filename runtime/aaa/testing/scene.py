"""The vocabulary of the conformance cases: runs, requests, offers and outcomes in a few words.

All runs of a scene lie in one partition, since one claim sees one partition only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, TypeVar

from aaa import events as ev
from aaa.events import Event, run_requested
from aaa.ids import canonical, digest_of, json_text, partition_of, result_id
from aaa.store import port
from aaa.store.port import Entry, HeldCall, Refused, ToolTerms, Why
from aaa.testing.harness import Harness

APP = "app"
REFUND = "tool/refund"
MODEL = "llm/model"
LONG_MS = 60_000  # a lease that does not end within a case

V = TypeVar("V")


def tool_requested(run_id: str, name: str = "c1", **args: Any) -> Event:
    """A request of the tool ``refund`` under call id ``name``."""
    parent = run_requested(run_id, {})
    return parent.caused(ev.TOOL_REQUESTED, {"args": args, "call_id": name, "name": "refund"})


def opens(request: Event, *, queue: str = REFUND, digest: str = "d1", **how: bool) -> Entry:
    """The entry that puts a request on the bus."""
    call = request.data["call_id"]
    return Entry(
        request,
        port.OpenCall(
            queue=queue,
            call_json=json_text(call),
            name_json=json_text(request.data["name"]),
            key_json=json_text(f"{request.run_id}/{call}"),
            args_digest=digest,
            **how,
        ),
    )


def terms(
    delivery: str = "at_least_once", *, cap: int = 3, ttl_ms: int = LONG_MS, **how: Any
) -> ToolTerms:
    """Under which policy a worker offers itself."""
    return ToolTerms(delivery=delivery, max_attempts=cap, lease_ttl_ms=ttl_ms, **how)


def note(run_id: str, type_: str, id_: str, data: Mapping[str, Any] | None = None) -> Event:
    """An event of the run under a given id."""
    return Event(id=id_, run_id=run_id, type=type_, raw=canonical(dict(data or {})), parent=None)


def completed(claimed: port.Claimed, value: Any = "done") -> Event:
    """The outcome of an attempt that went well."""
    data = {"attempt": claimed.attempt, "result": value}
    return claimed.request.named(result_id(claimed.request.id), ev.TOOL_COMPLETED, data)


class Scene:
    """One case's conversation with its store."""

    def __init__(self, harness: Harness) -> None:
        self.harness, self.store = harness, harness.store
        self.home = partition_of("home", self.store.partitions)
        self._nonces = count(1)
        self._renewers: dict[str, port.Renewer] = {}

    async def close(self) -> None:
        """Close the workers' heartbeats. They last as long as the case: a session may be a lease."""
        for renewer in self._renewers.values():
            await asyncio.to_thread(renewer.close)

    def run_id(self, name: str = "run") -> str:
        """The run id of that name in the scene's partition: always the same one."""
        ids = (f"{name}-{number}" for number in count())
        return next(id_ for id_ in ids if partition_of(id_, self.store.partitions) == self.home)

    async def commit(
        self, *operations: port.Operation, seen: int = 0, store: port.EventStore | None = None
    ) -> Sequence[port.Verdict]:
        """All operations in one batch."""
        where = store or self.store
        return (await where.commit(self.home, operations, seen=seen)).verdicts

    async def one(self, operation: port.Operation, kind: type[V], *, seen: int = 0) -> V:
        """One operation, whose verdict must be of this kind."""
        (verdict,) = await self.commit(operation, seen=seen)
        assert isinstance(verdict, kind), verdict
        return verdict

    async def refused(self, operation: port.Operation, why: Why, *, seen: int = 0) -> Refused:
        """One operation that must be refused for this reason."""
        verdict = await self.one(operation, Refused, seen=seen)
        assert verdict.why == why, verdict
        return verdict

    async def create(self, run_id: str, *, app: str = APP, **data: Any) -> port.Appended:
        """Begin a run."""
        return await self.one(creates(run_id, app=app, **data), port.Appended)

    async def append(self, run_id: str, *entries: Entry, **how: Any) -> port.Appended:
        """Append without a decision's term."""
        return await self.one(port.Append(run_id=run_id, entries=entries, **how), port.Appended)

    async def call(self, name: str = "c1", *, run: str = "run", **how: Any) -> Event:
        """A run with one call on the bus; the run is begun if need be."""
        run_id = self.run_id(run)
        await self.create(run_id)
        return await self.request(run_id, name, **how)

    async def request(self, run_id: str, name: str = "c1", **how: Any) -> Event:
        """One more call of a run."""
        return (await self.append(run_id, opens(tool_requested(run_id, name), **how))).events[0]

    def claims(
        self,
        worker: str,
        how: ToolTerms | None = None,
        *,
        limit: int = 10,
        nonce: str = "",
        app: str = APP,
        queues: Sequence[str] = (REFUND,),
    ) -> port.Claim:
        """An offer to take calls; without ``queues``, of a worker that has no tool's code."""
        return port.Claim(
            app=app,
            offer=port.Offer(
                worker=worker,
                nonce=nonce or f"n{next(self._nonces)}",
                limit=limit,
                queues={queue: how or terms() for queue in queues},
            ),
        )

    async def claim(self, worker: str, how: ToolTerms | None = None, **more: Any) -> port.Claims:
        """Claim, and be answered."""
        return await self.one(self.claims(worker, how, **more), port.Claims)

    async def take_one(
        self, worker: str, how: ToolTerms | None = None, **more: Any
    ) -> port.Claimed:
        """Claim exactly one call."""
        (claimed,) = (await self.claim(worker, how, **more)).claimed
        return claimed

    async def settle(
        self, claimed: port.Claimed, worker: str, outcome: Event | None = None, **how: Any
    ) -> port.Settled:
        """Record an outcome."""
        return await self.one(settles(claimed, worker, outcome, **how), port.Settled)

    async def own(self, worker: str, *, app: str = APP, ttl_ms: int = LONG_MS) -> int:
        """Become the owner; the term."""
        owned = await self.one(port.Own(app=app, worker=worker, ttl_ms=ttl_ms), port.Owned)
        return owned.term

    async def fold(self, run_id: str, worker: str, term: int) -> None:
        """The owner has seen the whole log and decides nothing."""
        fold = port.Append(run_id=run_id, entries=(), term=term, worker=worker)
        await self.one(fold, port.Appended)

    async def take(self, worker: str, term: int, *, app: str = APP, limit: int = 10) -> port.Taken:
        """What the owner has to fold."""
        return await self.one(port.Take(app=app, worker=worker, term=term, limit=limit), port.Taken)

    async def pulse(
        self,
        worker: str,
        *held: HeldCall,
        owned: Sequence[str] = (),
        apps: Sequence[str] = (APP,),
        ttl_ms: int = LONG_MS,
        info: bytes | None = b"{}",
    ) -> port.Beat:
        """One heartbeat, from a thread as in life."""
        pulse = port.Pulse(
            worker=worker,
            apps=tuple(apps),
            ttl_ms=ttl_ms,
            owned={self.home: tuple(owned)} if owned else {},
            calls={self.home: held} if held else {},
            info=info,
        )

        return await asyncio.to_thread(self.renewer(worker).pulse, pulse)

    def renewer(self, worker: str) -> port.Renewer:
        """The heartbeat of one worker, the same for the whole case."""
        if worker not in self._renewers:
            self._renewers[worker] = self.store.renewer()
        return self._renewers[worker]

    async def types(self, run_id: str) -> list[str]:
        """The types of a run's events, after checking that its seqs are dense."""
        events = await self.store.read(run_id)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert len({event.id for event in events}) == len(events)
        return [event.type for event in events]

    async def info(self, run_id: str) -> port.RunInfo:
        """The index entry of a run that must be there."""
        info = await self.store.run(run_id)
        assert info is not None
        return info


def creates(run_id: str, *, app: str = APP, **data: Any) -> port.Create:
    """Begin a run with this input."""
    request = run_requested(run_id, data)
    return port.Create(
        run_id=run_id, app=app, digest=digest_of(request.raw), entries=(Entry(request),)
    )


def settles(
    claimed: port.Claimed, worker: str, outcome: Event | None = None, **how: Any
) -> port.Settle:
    """The operation that records an outcome."""
    return port.Settle(
        run_id=claimed.run_id,
        request_id=claimed.request.id,
        attempt=claimed.attempt,
        worker=worker,
        outcome=outcome or completed(claimed),
        **how,
    )


def held(claimed: port.Claimed, ttl_ms: int = LONG_MS) -> HeldCall:
    """A claimed call as its worker names it in a heartbeat."""
    return HeldCall(claimed.run_id, claimed.request.id, claimed.attempt, ttl_ms)
