"""What the read-only endpoint answers from: what the watch has delivered, and the runs' stores.

It reads stores through :mod:`aaa.client` and by connections of its own, so that a slow reader is in
nobody's way. At most :data:`MAX_STORES` stays open; the one that was unused longest goes first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from aaa.client import CallView, Catalogue, Client, RunInfo, catalogue_of, open_client
from aaa.errors import AAAError, ConfigError, PolicyConflict, RunDeleted, RunNotFound
from aaa.policy import PolicyLayers, compile_settings, unmatched_tools
from aaa_operator import names, shown
from aaa_operator.binding import layers_in
from aaa_operator.cluster import Cluster
from aaa_operator.evictions import entries_in
from aaa_operator.metrics import replicas_of, state_of
from aaa_operator.observe import PodSeen, Pool, Problem, RunSeen, meta_of
from aaa_operator.pools import pool_state
from aaa_operator.restart import restarting_since_ms
from aaa_operator.shown import Json

MAX_STORES: Final = 16
#: Runs whose logs one question about waiting calls may fold.
MAX_FOLDED: Final = 200
StoreUrl = Callable[[str, list[RunSeen]], Awaitable["str | Problem"]]


class Unreadable(Exception):
    """A question that cannot be answered: an HTTP status, a word and a sentence."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status, self.reason = status, reason
        super().__init__(message)


@dataclass(slots=True)
class _Opened:
    client: Client
    users: int = 0


class Reading:
    """Answers about one cluster's namespaces. ``store_url`` finds the store of some runs."""

    def __init__(self, cluster: Cluster, store_url: StoreUrl) -> None:
        self._cluster, self._store_url = cluster, store_url
        self._opened: OrderedDict[str, _Opened] = OrderedDict()
        self._opening = asyncio.Lock()

    def may_read(self, namespace: str, uid: str) -> bool:
        """Whether the caller has shown that it can read the namespace's AgentRuns."""
        return any(run.meta.uid == uid for run in self._cluster.runs(namespace) if run.meta.uid)

    async def runs(self, namespace: str, *, state: str | None, limit: int) -> Json:
        """The namespace's AgentRuns, newest first, as their status and their store have them."""
        found = [
            run
            for run in self._cluster.runs(namespace)
            if state is None or state_of(run).lower() == state.lower()
        ]
        found.sort(key=lambda run: (-run.meta.created_ms, run.meta.name))
        page = found[:limit]
        infos = await self._infos(namespace, page)
        return {
            "runs": [run_shown(run, infos.get(run.meta.name)) for run in page],
            "left": len(found) - len(page),
        }

    async def run(self, namespace: str, name: str) -> Json:
        """One run: its status, and the calls that wait for a person."""
        run = self._run(namespace, name)
        async with self._client(namespace, run) as (client, run_id):
            info = await client.info(run_id)
            pending = await client.pending(run_id) if info.awaiting else []
            unknown = await client.unknown(run_id) if info.unknown else []
        return {
            "run": run_shown(run, info),
            "pending": [shown.call_shown(view, name=name) for view in pending],
            "unknown": [shown.call_shown(view, name=name) for view in unknown],
        }

    async def events(
        self, namespace: str, name: str, *, after: int, limit: int, max_bytes: int
    ) -> Json:
        """A page of the run's log; ``next`` is the seq to ask after, ``null`` at its end."""
        run = self._run(namespace, name)
        async with self._client(namespace, run) as (client, run_id):
            info = await client.info(run_id)
            events = await client.events(run_id, after=after, limit=limit)
        page = shown.fitting(map(shown.event_shown, events), max_bytes=max_bytes)
        last = page[-1]["seq"] if page else after
        return {
            "events": page,
            "next": last if last < info.head.seq else None,
            "open": info.status == "open",
        }

    async def calls(self, namespace: str, *, which: str, limit: int, max_bytes: int) -> Json:
        """The calls of the namespace's runs that wait for an approval, or whose effect is unknown."""
        field = "pendingApprovals" if which == "pending" else "unknownOutcomes"
        runs = [run for run in self._cluster.runs(namespace) if run.status.get(field)]
        views: list[tuple[str, CallView]] = []
        for same in _by_store(runs[:MAX_FOLDED]):
            async with self._store(namespace, same[0]) as client:
                for run in same:
                    run_id = run.run_id or ""
                    found = client.pending(run_id) if which == "pending" else client.unknown(run_id)
                    with suppress(RunNotFound, RunDeleted):
                        views += [(run.meta.name, view) for view in await found]
        views.sort(key=lambda one: one[1].since_ms)
        told = (shown.call_shown(view, name=name) for name, view in views[:limit])
        page = shown.fitting(told, max_bytes=max_bytes)
        return {"calls": page, "left": len(views) - len(page) + max(0, len(runs) - MAX_FOLDED)}

    async def policy(self, namespace: str, name: str, *, tools: Sequence[str]) -> Json:
        """What is in force for each tool of the run's app, or only for ``tools``.

        Without a worker that lives, what the tools' own code says is not known: then the policies alone
        are explained, for the tools that they name.
        """
        run = self._run(namespace, name)
        pool = (run.status.get("pool") or {}).get("name", "")
        found = self._cluster.pools(namespace).get(pool)
        hash_ = (run.status.get("policy") or {}).get("hash")
        layers = layers_in(None if found is None else found.config, hash_)
        if layers is None:
            raise Unreadable(
                404, "PolicyUnknown", f"no policy is in force for AgentRun {name!r} yet"
            )
        code = await self._code_of(namespace, run, pool)
        try:
            return explained(name, layers, code, tools=tools)
        except (ConfigError, PolicyConflict) as error:
            raise Unreadable(409, type(error).__name__, str(error)) from error

    async def _code_of(self, namespace: str, run: RunSeen, pool: str) -> Catalogue | None:
        """What a living worker of the pool says of its tools; ``None`` if there is none."""
        try:
            async with self._store(namespace, run) as client:
                members = (await client.members()).members
        except Unreadable:
            return None
        said = [
            catalogue_of(member)
            for member in members
            if any(app.partition("/")[0] == pool for app in member.apps)
        ]
        return next((each for each in said if each.tools), None)

    def pools(self, namespace: str) -> Json:
        """The namespace's pools with their pods."""
        found = self._cluster.pools(namespace)
        runs = self._cluster.runs(namespace)
        users: dict[str, int] = {}
        for run in runs:
            if not run.finished:
                pool = (run.status.get("pool") or {}).get("name", "")
                users[pool] = users.get(pool, 0) + 1
        return {
            "pools": [pool_shown(found[name], runs=users.get(name, 0)) for name in sorted(found)]
        }

    def evictions(self, namespace: str) -> Json:
        """The namespace's record of removed pods, oldest first."""
        return {"evictions": entries_in(self._cluster.config_map(namespace, names.EVICTIONS))}

    async def close(self) -> None:
        """Close every store."""
        opened, self._opened = list(self._opened.values()), OrderedDict()
        for one in opened:
            await one.client.close()

    # ----------------------------------------------------------------------------- its parts

    def _run(self, namespace: str, name: str) -> RunSeen:
        for run in self._cluster.runs(namespace):
            if run.meta.name == name:
                return run
        raise Unreadable(404, "RunNotFound", f"there is no AgentRun {name!r} in {namespace}")

    async def _infos(self, namespace: str, runs: Sequence[RunSeen]) -> dict[str, RunInfo]:
        """The index entries of runs that have begun; none while their store cannot be asked."""
        found: dict[str, RunInfo] = {}
        for same in _by_store(runs):
            try:
                async with self._store(namespace, same[0]) as client:
                    for run in same:
                        with suppress(RunNotFound, RunDeleted):
                            found[run.meta.name] = await client.info(run.run_id or "")
            except Unreadable:
                continue
        return found

    @asynccontextmanager
    async def _client(self, namespace: str, run: RunSeen) -> AsyncIterator[tuple[Client, str]]:
        """A client of the run's store, and the run's id there. Raises :class:`Unreadable`."""
        name, run_id = run.meta.name, run.run_id
        if run_id is None or not run.started:
            raise Unreadable(
                409, "NotBegun", f"AgentRun {name!r} has not begun: {_why(run) or state_of(run)}"
            )
        async with self._store(namespace, run) as client:
            yield client, run_id

    @asynccontextmanager
    async def _store(self, namespace: str, run: RunSeen) -> AsyncIterator[Client]:
        """A client of the run's store. What goes wrong in it becomes :class:`Unreadable`."""
        url = await self._store_url(namespace, [run])
        if isinstance(url, Problem):
            raise Unreadable(503, url.reason, url.message)
        opened = await self._open(url)
        opened.users += 1
        try:
            yield opened.client
        except (RunNotFound, RunDeleted) as error:
            raise Unreadable(404, type(error).__name__, str(error)) from error
        except AAAError as error:
            raise Unreadable(503, type(error).__name__, str(error)) from error
        finally:
            opened.users -= 1
            await self._close_some()

    async def _open(self, url: str) -> _Opened:
        async with self._opening:
            known = self._opened.get(url)
            if known is None:
                try:
                    client, _ = await open_client(url)
                except AAAError as error:
                    raise Unreadable(503, type(error).__name__, str(error)) from error
                known = self._opened[url] = _Opened(client)
            self._opened.move_to_end(url)
            return known

    async def _close_some(self) -> None:
        idle = [url for url, one in self._opened.items() if not one.users]
        for url in idle[: max(0, len(self._opened) - MAX_STORES)]:
            await self._opened.pop(url).client.close()


def _by_store(runs: Sequence[RunSeen]) -> list[list[RunSeen]]:
    """The runs that have begun, with those together that name the same store."""
    found: dict[tuple[str, str] | None, list[RunSeen]] = {}
    for run in runs:
        if not run.started:
            continue
        store = run.manifest.spec.store if run.manifest is not None else None
        key = None if store is None else (store.secret_ref.name, store.secret_ref.key)
        found.setdefault(key, []).append(run)
    return list(found.values())


def run_shown(run: RunSeen, info: RunInfo | None) -> Json:
    """An AgentRun: the one word of its status, why, and what the store's index says."""
    return {
        "name": run.meta.name,
        "uid": run.meta.uid,
        "runId": run.run_id,
        "state": state_of(run),
        "message": _why(run),
        "createdMs": run.meta.created_ms,
        "pool": (run.status.get("pool") or {}).get("name"),
        "toolCalls": dict(run.status.get("toolCalls") or {}),
        "info": None if info is None else shown.info_shown(info),
    }


def explained(
    name: str, layers: PolicyLayers, code: Catalogue | None, *, tools: Sequence[str]
) -> Json:
    """The policies merged with what the code says, as ``aaa policy explain --json`` tells it."""
    named = {e.name for rules in layers.policies for e in rules.tools if not e.is_prefix}
    own = {} if code is None else {tool.name: tool for tool in code.tools}
    if code is not None and code.complete and set(tools) - set(own):
        missing = ", ".join(sorted(set(tools) - set(own)))
        raise Unreadable(404, "UnknownTool", f"the app of AgentRun {name!r} has no tool {missing}")
    compiled = {
        tool: own[tool].settings(layers.policies)
        if tool in own
        else compile_settings(tool, policies=layers.policies)
        for tool in sorted(set(tools) or set(own) or named)
    }
    whole = code is not None and code.complete
    return {
        "of": f"run {name}",
        "hash": layers.hash,
        "policies": [rules.name for rules in layers.policies],
        "tools": {
            tool: {
                "settings": each.to_json(),
                "origins": dict(each.origins),
                "notes": list(each.notes),
                "hash": each.hash,
            }
            for tool, each in compiled.items()
        },
        "known": set(compiled) <= set(own),
        "unmatched": unmatched_tools(layers.policies, own) if whole else {},
    }


def pool_shown(pool: Pool, *, runs: int) -> Json:
    """A pool: its pods, what its workers serve, and why none is ready."""
    state = pool_state(pool)
    problem = state.problem
    policies = (pool.config or {}).get("data") or {}
    return {
        "name": pool.name,
        "replicas": replicas_of(pool),
        "ready": sum(pod.ready for pod in pool.pods),
        "runs": runs,
        "app": state.app,
        "policies": sorted(key.removesuffix(".json") for key in policies),
        "restartingSinceMs": restarting_since_ms(pool),
        "problem": None
        if problem is None
        else {"reason": problem.reason, "message": problem.message},
        "created": meta_of(pool.deployment or {}).created_ms,
        "pods": [_pod(pod) for pod in pool.pods],
    }


def _pod(pod: PodSeen) -> Json:
    return {
        "name": pod.meta.name,
        "phase": "Terminating" if pod.meta.deleting else pod.phase,
        "ready": pod.ready,
        "startedMs": pod.started_ms,
        "restarts": pod.restarts,
    }


def _why(run: RunSeen) -> str:
    found: Any = next(
        (one for one in run.status.get("conditions") or () if one.get("type") == "Succeeded"), {}
    )
    return str(found.get("message", ""))
