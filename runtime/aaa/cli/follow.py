"""One run, embedded: an engine of its own that serves this run alone, followed to its end.

An engine a run, so that each run has its own policies, and no worker with other policies ever
takes a call of it: the app's name begins with a scope of the run's own (:mod:`aaa.cli.scope`). A
second ``aaa run`` of the same manifest shares the work, and takes over when the first one dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from aaa import events as ev
from aaa.algos import RunState
from aaa.app import App
from aaa.cli import exits
from aaa.cli.display import Display
from aaa.cli.manifests import Plan
from aaa.cli.scope import scope_of, split
from aaa.cli.signals import blocked
from aaa.cli.stores import bounded_open
from aaa.cli.text import short
from aaa.client import Client
from aaa.errors import AppError, PolicyConflict, RunConflict, RunDeleted, StoreUnavailable
from aaa.events import Event
from aaa.ids import partition_of
from aaa.runtime import Engine
from aaa.runtime.submission import new_run
from aaa.store import EventStore
from aaa.store.port import RunInfo

#: Short, so that nobody waits long after a crash: one process with one run renews it easily.
WORKER_TTL_S: Final = 5.0
#: A run waits for a person once nothing else has happened to it for so long.
SETTLE_S: Final = 0.3
#: How often to look whether a tool could not be stopped.
CHECK_S: Final = 1.0
DRAIN_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Followed:
    """How far a run was followed: its last event if it ended, and the exit code that tells it."""

    run_id: str
    code: int
    ending: Event | None = None


class Follower:
    """Serves and follows one run."""

    def __init__(
        self,
        plan: Plan,
        app: App,
        store: EventStore,
        *,
        url: str,
        display: Display,
        by: str,
        tail: str = "",
    ) -> None:
        self.plan, self.app, self._url, self._by = plan, app.own(), url, by
        self._display, self._tail = display, tail
        drain_s = plan.manifest.spec.drain_timeout_seconds
        self._drain_s = DRAIN_TIMEOUT_S if drain_s is None else float(drain_s)
        self.engine = Engine(
            store,
            app=scope_of(plan.run_id, plan.policies),
            worker_ttl_s=WORKER_TTL_S,
            drain_timeout_s=self._drain_s,
            on_blocked=blocked,
            on_progress=self._progress,
        )
        #: The full name of what is served. Policies are judged here, before anything starts.
        self.serves = self.app.attach(self.engine, policies=plan.policies)
        self.client = Client(store)
        self.state = RunState(plan.run_id)
        self._told: set[str] = set()
        self._known_seq = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, *, stop: asyncio.Event, wait: bool) -> Followed:
        """Begin or go on, and follow until the run ends, waits for a person, or ``stop``."""
        self._loop = asyncio.get_running_loop()
        store, spec = self.engine.store, self.plan.manifest.spec
        await bounded_open(store, self._url)
        known = await store.run(self.plan.run_id)
        if spec.desired_state == "Suspended":
            await self._suspended(known)
            return Followed(self.plan.run_id, exits.WAITING)
        if known is not None and not await self._go_on(known):
            await store.close()
            return Followed(self.plan.run_id, exits.WAITING)
        await self.engine.start()
        try:
            if known is None:
                await self._begin()
            return await self._follow(stop, wait=wait)
        finally:
            await self.engine.stop()

    @property
    def open(self) -> bool:
        """Whether the run has not ended, as far as it was followed."""
        return self.state.status == "open"

    # ------------------------------------------------------------------------ beginning

    async def _begin(self) -> None:
        plan = self.plan
        await self.engine.submit(
            self.app.algorithm, plan.input, plan.run_id, deadline_s=plan.deadline_s
        )

    async def _suspended(self, known: RunInfo | None) -> None:
        """Begin the run if it is new, but let nothing start."""
        plan, store = self.plan, self.engine.store
        if known is None:
            create = new_run(
                plan.run_id,
                self.serves,
                self.app.algorithm,
                plan.input,
                deadline_s=plan.deadline_s,
            )
            await store.commit(partition_of(plan.run_id, store.partitions), [create])
        if known is None or not known.suspended:
            await self.client.suspend(plan.run_id, by=self._by)
        self._display.note(
            f"{plan.run_id} is suspended, as its manifest wishes; "
            "set spec.desiredState to Running to go on"
        )
        await store.close()

    async def _go_on(self, known: RunInfo) -> bool:
        """Whether it may: what a person has stopped goes on by a person's word."""
        plan = self.plan
        self._fits(known)
        spec = plan.manifest.spec
        if spec.desired_state == "Cancelled":
            if not known.cancelling:
                await self.client.cancel(plan.run_id, by=self._by, reason="desiredState")
        elif known.suspended or known.parked:
            if "desired_state" not in spec.model_fields_set:
                self._display.note(await self._stopped())
                return False
            await self.client.resume(plan.run_id, by=self._by)
        self._display.note(f"going on with {plan.run_id}, which has {known.head.seq} events so far")
        self._known_seq = known.head.seq
        held = await self._held()
        limit_s = max([WORKER_TTL_S, *(ttl_s for _, _, ttl_s in held)])
        for subject, worker, _ in held:
            self._display.note(f"{subject} is leased to worker {worker}")
        if held:
            self._display.note(
                f"if that worker is gone, its lease ends in at most {limit_s:g} s; waiting for it"
            )
        return True

    async def _stopped(self) -> str:
        """By whom or by what a run was stopped, and how it goes on."""
        run_id = self.plan.run_id
        told = "stopped"
        for event in reversed(await self.engine.store.read(run_id)):
            if event.type == ev.RUN_PARKED:
                error, message = event.data.get("error"), short(event.data.get("message", ""), 300)
                told = f"parked, because its algorithm failed three times ({error}: {message})"
                break
            if event.type == ev.RUN_SUSPENDED:
                told = f"suspended by {short(event.data.get('by', 'somebody'), 60)}"
                break
        return f"{run_id} is {told}; 'aaa resume {run_id}{self._tail}' goes on"

    def _fits(self, known: RunInfo) -> None:
        """Raises unless this process has the policies and the code that the run was begun with."""
        run_id, scope = self.plan.run_id, known.app.partition("/")[0]
        if scope != self.engine.app:
            if split(scope)[0] != split(self.engine.app)[0]:
                raise RunConflict(
                    f"run {run_id} was not begun by 'aaa run', and is served by 'aaa worker "
                    f"--scope {scope}'; begin another one under another name or spec.runKey"
                )
            raise PolicyConflict(
                f"run {run_id} was begun under other policies than {self.plan.file} has for it "
                f"now; put those back, or 'aaa cancel {run_id}{self._tail}' and begin under "
                "another name"
            )
        if known.app != self.serves:
            raise AppError(
                f"run {run_id} began as {_named(known.app)}, and {self.plan.app} is now "
                f"{_named(self.serves)}; bring that code back, or begin under another runKey"
            )

    async def _held(self) -> list[tuple[str, str, float]]:
        """Calls that an attempt has begun and nobody has settled: subject, worker, lease in s."""
        state, workers = RunState(self.plan.run_id), {}
        for event in await self.engine.store.read(self.plan.run_id):
            state.fold(event)
            if event.type == ev.TOOL_STARTED:
                workers[event.parent] = event.data["worker"]
        found = []
        for request_id, call in state.open_calls.items():
            tool = self.app.tools.registry.get(call.name) if self.app.tools else None
            if request_id in workers and self.app.tools is not None and tool is not None:
                ttl_s = self.app.tools.config_for(tool).lease_ttl_s
                found.append((f"{call.name} {call.call_id}", workers[request_id], ttl_s))
        return found

    # ------------------------------------------------------------------------ following

    async def _follow(self, stop: asyncio.Event, *, wait: bool) -> Followed:
        """Show events as they come. After ``stop``, drain, and still show what ends."""
        run_id = self.plan.run_id
        events = self.engine.follow(run_id)
        stopping = asyncio.ensure_future(stop.wait())
        coming = asyncio.ensure_future(_next(events))
        drained: asyncio.Task[None] | None = None
        try:
            while True:
                waits = drained is None and self._waits()
                either: set[asyncio.Future[object]] = {coming, drained or stopping}  # type: ignore[arg-type]
                await asyncio.wait(
                    either,
                    timeout=SETTLE_S if waits else CHECK_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if coming.done():
                    event = await self._came(coming, draining=drained is not None)
                    if event is None and drained is not None:
                        return Followed(run_id, self._left())
                    if event is None:
                        events = self.engine.follow(run_id, after=self.state.seq)
                        coming = asyncio.ensure_future(_next(events))
                        continue
                    self.state.fold(event)
                    self._display.event(event)
                    if event.seq == self._known_seq:
                        self._display.from_here()
                    if event.type in ev.ENDINGS:
                        return Followed(run_id, ending_code(event), event)
                    coming = asyncio.ensure_future(_next(events))
                elif drained is not None and drained.done():
                    return Followed(run_id, self._left())
                elif drained is None and (stopping.done() or self.engine.unstoppable):
                    self._say_unstoppable()
                    drained = asyncio.create_task(self.engine.stop())
                elif waits and await self._tell_waiting() and not wait:
                    return Followed(run_id, exits.WAITING)
        finally:
            stopping.cancel()
            coming.cancel()
            await asyncio.gather(stopping, coming, return_exceptions=True)
            await events.aclose()  # type: ignore[attr-defined]
            if drained is not None:
                await asyncio.gather(drained, return_exceptions=True)

    def _left(self) -> int:
        """The code for a run that is left before its end."""
        return exits.BROKEN if self.engine.unstoppable else exits.INTERRUPTED

    def _say_unstoppable(self) -> None:
        if self.engine.unstoppable:
            names = ", ".join(self.engine.unstoppable)
            self._display.note(f"{names} could not be stopped, so this process has to end")

    async def _came(self, coming: asyncio.Future[Event | None], *, draining: bool) -> Event | None:
        """The next event; ``None`` if the store could not be read just now, or was closed."""
        error = coming.exception()
        if draining and error is not None:
            return None
        if isinstance(error, StoreUnavailable):
            self._display.note(f"{error}; going on as soon as it is back")
            await asyncio.sleep(1.0)
            return None
        event = coming.result()
        if event is None and not draining:
            raise RunDeleted(f"run {self.plan.run_id} was deleted while it was followed")
        return event

    def _waits(self) -> bool:
        """Whether nothing happens any more until a person does something."""
        state = self.state
        if state.status != "open" or state.seq == 0:
            return False
        if state.suspended or state.parked is not None:
            return True
        turn = state.turn
        if turn is None or turn.completed is None or state.retries:
            return False
        if state.open_calls:
            return all(call.waiting for call in state.open_calls.values())
        patient = getattr(self.app.algorithm, "on_unknown", "tell") == "wait"
        return patient and turn.unknown_calls > 0

    async def _tell_waiting(self) -> bool:
        """Say, once each, what is waited for."""
        run_id, state = self.plan.run_id, self.state
        if state.suspended or state.parked is not None:
            if "stopped" not in self._told:
                self._told.add("stopped")
                self._display.note(await self._stopped())
            return True
        self._told.discard("stopped")
        pending = [v for v in await self.client.pending(run_id) if _mark(v) not in self._told]
        unknown = [v for v in await self.client.unknown(run_id) if _mark(v) not in self._told]
        self._told |= {_mark(view) for view in (*pending, *unknown)}
        if pending or unknown:
            self._display.waits(pending, unknown)
        return True

    def _progress(self, run_id: str, call_id: str, message: str, share: float | None) -> None:
        """From whichever thread the tool runs in."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._display.progress, run_id, call_id, message, share)


def ending_code(ending: Event) -> int:
    """0 if the run completed."""
    return exits.DONE if ending.type == ev.RUN_COMPLETED else exits.FAILED


def _mark(view: object) -> str:
    return f"{getattr(view, 'call_id', '')}@{getattr(view, 'since_ms', 0)}"


def _named(app: str) -> str:
    _, algorithm, tools = ([*app.split("/"), "", ""])[:3]
    return f"{algorithm} with tools {tools}"


async def _next(events: AsyncIterator[Event]) -> Event | None:
    return await anext(events, None)
