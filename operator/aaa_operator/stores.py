"""A namespace's store, looked at again and again: runs, workers, and what they have acknowledged.

A look costs a read of the index for each active run, and of the log only where it has grown. A
store that cannot be reached for a moment is no news; after :data:`GRACE_MS` it is said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, Literal, cast

from aaa.client import (
    Client,
    Member,
    Members,
    OpenCall,
    Overview,
    ToolLayers,
    catalogue_of,
    open_client,
)
from aaa.errors import AAAError, RunDeleted, StoreUnavailable
from aaa_operator.frozen import Look
from aaa_operator.observe import (
    CallSeen,
    PodSeen,
    PoolCode,
    Problem,
    Progress,
    StoreSeen,
    pod_of_worker,
)
from aaa_operator.render import digest

#: How long a store may be out of reach before anybody is told.
GRACE_MS: Final = 10_000
_AT_ONCE: Final = 32
#: Schemes of stores that pods on other nodes can reach. No file is named by any of them.
SCHEMES: Final = (
    "redis", "rediss", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel",
    "postgres", "postgresql",
)  # fmt: skip


class StoreWatch:
    """One store. ``canary`` names the operator's own lease there."""

    def __init__(self, *, canary: str, ttl_s: float) -> None:
        self.client: Client | None = None
        self._canary, self._ttl_s = canary, ttl_s
        self._url: str | None = None
        self._identity = ""
        self._known: dict[str, Overview] = {}
        self._last = StoreSeen()
        self._last_ms: int | None = None
        self._members: Members | None = None
        self._canary_alive = False

    async def look(self, url: str | Problem, run_ids: Iterable[str], *, now_ms: int) -> StoreSeen:
        """The store as it is now; ``url`` is a problem where none is configured. Never raises."""
        if isinstance(url, Problem):
            self._members = None
            return StoreSeen(problem=url)
        try:
            seen = await self._look(url, set(run_ids))
        except StoreUnavailable as error:
            self._members = None
            recent = self._last_ms is not None and now_ms - self._last_ms < GRACE_MS
            problem = Problem("StoreUnreachable", f"{error}; nothing is begun until it answers")
            return self._last if recent and self._url == url else StoreSeen(problem=problem)
        except AAAError as error:
            self._members = None
            return StoreSeen(problem=Problem(type(error).__name__, str(error)))
        self._last, self._last_ms = seen, now_ms
        return seen

    def look_of(self, pods: tuple[PodSeen, ...]) -> Look:
        """The last look, as :mod:`aaa_operator.frozen` judges it."""
        members = self._members
        if members is None or not members.server:
            return Look(server=None)
        live = {
            member.worker: pod_of_worker(member.worker)
            for member in members.members
            if member.worker != self._canary
        }
        return Look(
            server=members.server,
            now_ms=members.now_ms,
            canary_renewed=self._canary_alive,
            live=live,
            pods=pods,
        )

    async def opened(self, url: str) -> Client:
        """The client of the store at ``url``. Raises what opening a store raises."""
        if self.client is not None and self._url == url:
            return self.client
        await self.close()
        self._known, self._last_ms, self._url = {}, None, url
        self.client, info = await open_client(url)
        self._identity = info.identity
        return self.client

    async def close(self) -> None:
        client, self.client = self.client, None
        if client is not None:
            await client.close()

    async def _look(self, url: str, run_ids: set[str]) -> StoreSeen:
        client = await self.opened(url)
        members = await client.members()
        self._canary_alive = any(one.worker == self._canary for one in members.members)
        await client.beat(self._canary, ttl_s=self._ttl_s)
        self._known = {run_id: one for run_id, one in self._known.items() if run_id in run_ids}
        room = asyncio.Semaphore(_AT_ONCE)
        deleted: set[str] = set()

        async def one(run_id: str) -> None:
            async with room:
                try:
                    found = await client.overview(run_id, known=self._known.get(run_id))
                except RunDeleted:
                    deleted.add(run_id)
                    found = None
            if found is None:
                self._known.pop(run_id, None)
            else:
                self._known[run_id] = found

        await asyncio.gather(*(one(run_id) for run_id in run_ids))
        self._members = members
        return StoreSeen(
            identity=self._identity,
            runs={run_id: progress_of(found) for run_id, found in self._known.items()},
            deleted=frozenset(deleted),
            apps=apps_of(members.members),
            acknowledged=acknowledged_of(members.members),
            code=code_of(members.members),
        )


def progress_of(found: Overview) -> Progress:
    """An overview as planning sees it: frozen, and without what it does not need."""
    open_calls = found.open_calls.values()
    return Progress(
        app=found.app,
        digest=found.digest,
        status=cast('Literal["open", "completed", "failed", "cancelled"]', found.status),
        created_ms=found.created_ms,
        closed_ms=found.closed_ms,
        cancelling=found.cancelling,
        suspended=found.suspended,
        parked=found.parked,
        parked_because=found.parked_because,
        policy=found.policy,
        requested=found.requested,
        running=found.running,
        busy=sum(not call.waiting for call in open_calls),
        completed=found.completed,
        failed=found.failed,
        value=found.value,
        error=found.error,
        message=found.message,
        waiting=tuple(_call(call) for call in found.waiting),
        unknown=tuple(_call(call) for call in found.unknown.values()),
        holders=frozenset(call.worker for call in open_calls if call.running),
    )


def apps_of(members: Iterable[Member]) -> dict[str, str]:
    """By pool: the full name of the app that its workers serve; the pool is the app's scope."""
    names = sorted(app for member in members for app in member.apps)
    return {app.partition("/")[0]: app for app in names}


def code_of(members: Iterable[Member]) -> Mapping[str, PoolCode]:
    """By pool: the tools of its image, where its live workers name all of them."""
    found: dict[str, dict[str, ToolLayers]] = {}
    partly: set[str] = set()
    for member in members:
        said = catalogue_of(member)
        for pool in {app.partition("/")[0] for app in member.apps}:
            found.setdefault(pool, {}).update({tool.name: tool for tool in said.tools})
            partly |= set() if said.complete else {pool}
    return {
        pool: PoolCode(digest=_digest(tools), tools=tuple(tools[name] for name in sorted(tools)))
        for pool, tools in found.items()
        if pool not in partly
    }


def _digest(tools: Mapping[str, ToolLayers]) -> str:
    return digest([tools[name].to_json() for name in sorted(tools)])


def acknowledged_of(members: Iterable[Member]) -> Mapping[str, frozenset[str]]:
    """By pool: the policy hashes that every one of its live workers says it has read."""
    found: dict[str, frozenset[str]] = {}
    for member in members:
        said = catalogue_of(member).policies
        for pool in {app.partition("/")[0] for app in member.apps}:
            found[pool] = said & found.get(pool, said)
    return found


def url_in(text: str, *, where: str) -> str | Problem:
    """A store's URL from a Secret, if it is one that a pod can use."""
    scheme = text.partition(":")[0].lower()
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        return Problem("StoreUrlRefused", f"{where} does not begin with one of {known}")
    return text


def _call(call: OpenCall) -> CallSeen:
    return CallSeen(
        call_id=call.call_id,
        tool=call.tool,
        args_digest=call.args_digest,
        since_ms=call.since_ms,
        message=call.message,
    )
