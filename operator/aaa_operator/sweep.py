"""Looks for what nobody claims any more, and says whether things may be taken away at all.

A watch that has not delivered every AgentRun yet shows pools without runs, and runs without
AgentRuns: until each one that stands has been heard of, nothing goes. From then on the store's open
runs are compared with the AgentRuns now and then, and always before a pool goes, because an orphan
needs its pool to end. What the cache does not claim is looked up once more in the API server itself.
All memory can be lost without harm.
"""

from __future__ import annotations

import logging
from typing import Final

from aaa.client import Client
from aaa.errors import StoreUnavailable
from aaa_operator.api import Api
from aaa_operator.cluster import Cluster
from aaa_operator.observe import run_of
from aaa_operator.orphans import unclaimed

log = logging.getLogger("aaa.operator")

#: Open runs that are looked at; of more, the newest.
MAX_OPEN: Final = 100_000


class Sweep:
    """Of one namespace. ``every_s``: between looks at all open runs while no pool is about to go."""

    def __init__(self, api: Api, cluster: Cluster, *, namespace: str, every_s: float) -> None:
        self._api, self._cluster, self._namespace = api, cluster, namespace
        self._every_ms, self._last_ms = every_s * 1000, 0
        self._complete = False
        #: The ids of the open runs that no AgentRun claims.
        self.orphans: frozenset[str] = frozenset()

    async def caught_up(self) -> bool:
        """Whether the watch has delivered every AgentRun that there was. Raises ApiFailure."""
        if not self._complete:
            there = await self._api.list_all("AgentRun", namespace=self._namespace)
            known = {run.meta.uid for run in self._cluster.runs(self._namespace)}
            self._complete = {raw["metadata"]["uid"] for raw in there} <= known
        return self._complete

    async def look(self, client: Client, *, now_ms: int) -> bool:
        """Look for orphans if it is time to; whether their pools may go. Raises ApiFailure."""
        pools = self._cluster.pools(self._namespace)
        if not pools:
            self.orphans = frozenset()
            return True
        if now_ms - self._last_ms < self._every_ms and not self._some_pool_goes():
            return True
        try:
            found = await client.store.runs(status="open", limit=MAX_OPEN)
        except StoreUnavailable:
            return False
        orphans = unclaimed(found, self._cluster.runs(self._namespace), pools)
        if orphans - self.orphans:
            there = await self._api.list_all("AgentRun", namespace=self._namespace)
            orphans &= unclaimed(found, map(run_of, there), pools)
        new = sorted(orphans - self.orphans)
        for run_id in new:
            log.warning("run %s is open and its AgentRun is gone", run_id)
        self.orphans, self._last_ms = orphans, now_ms
        return not new  # how far they are is seen in the next pass

    def _some_pool_goes(self) -> bool:
        runs = self._cluster.runs(self._namespace)
        wanted = {(run.status.get("pool") or {}).get("name") for run in runs if not run.finished}
        pools = self._cluster.pools(self._namespace).values()
        return any(not pool.pods and pool.name not in wanted for pool in pools)
