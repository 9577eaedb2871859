"""One operator at a time: a coordination Lease, held and renewed.

Two writers under one field manager never conflict, so that nothing else would notice a second
operator. Losing the lease, or not having renewed it in time, ends the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from aaa.clock import SYSTEM_CLOCK, Clock
from aaa_operator.api import Api, ApiFailure

log = logging.getLogger("aaa.operator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A lease as it was last seen to change, by this process' own clock."""

    holder: str
    version: str
    at_s: float


def may_take(lease: Mapping[str, Any] | None, seen: Seen | None, *, me: str, now_s: float) -> bool:
    """Whether the lease is nobody's, ours, or was not renewed for as long as it says.

    Only a change of the object counts as a renewal, timed by our own clock: clocks of two nodes
    are never compared.
    """
    spec = (lease or {}).get("spec") or {}
    holder = spec.get("holderIdentity")
    if not holder or holder == me:
        return True
    if seen is None or seen.version != lease["metadata"]["resourceVersion"]:  # type: ignore[index]
        return False
    return now_s - seen.at_s >= float(spec.get("leaseDurationSeconds") or 15)


class Election:
    """Waits for the lease, then holds it."""

    def __init__(
        self,
        api: Api,
        *,
        namespace: str,
        name: str,
        me: str,
        ttl_s: int,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._api, self._clock = api, clock
        self._namespace, self._name, self._me, self._ttl_s = namespace, name, me, ttl_s
        self._seen: Seen | None = None
        self._held_until_s = 0.0

    async def win(self) -> None:
        """Return when the lease is held."""
        while not await self._try():
            await self._clock.sleep(self._ttl_s / 5)
        log.info("%s leads", self._me)

    async def hold(self) -> None:
        """Renew until the lease is lost; then return. Whoever waits for this ends the process."""
        while self._clock.boot_s() < self._held_until_s:
            await self._clock.sleep(self._ttl_s / 5)
            try:
                async with asyncio.timeout(self._ttl_s / 2):
                    if not await self._try():
                        log.error("%s has lost its lease to another operator", self._me)
                        return
            except (ApiFailure, TimeoutError) as error:
                log.warning("the lease could not be renewed: %s", error)
        log.error("%s could not renew its lease in time", self._me)

    async def _try(self) -> bool:
        began_s = self._clock.boot_s()
        try:
            lease: dict[str, Any] | None = await self._api.get(
                "Lease", self._name, namespace=self._namespace
            )
        except ApiFailure as failure:
            if not failure.gone:
                raise
            lease = None
        if not may_take(lease, self._seen, me=self._me, now_s=began_s):
            self._look(lease, began_s)
            return False
        try:
            await self._write(lease)
        except ApiFailure as failure:
            if failure.stale:
                return False
            raise
        # Counted from before the write was sent, less a margin: others count from after it.
        self._held_until_s = began_s + self._ttl_s * 0.8
        return True

    async def _write(self, lease: dict[str, Any] | None) -> None:
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        before = (lease or {}).get("spec") or {}
        spec = {
            "holderIdentity": self._me,
            "leaseDurationSeconds": self._ttl_s,
            "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "leaseTransitions": int(before.get("leaseTransitions") or 0)
            + (before.get("holderIdentity") != self._me),
        }
        if lease is None:
            metadata = {"name": self._name, "namespace": self._namespace}
            made = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            await self._api.create(
                "Lease", {**made, "metadata": metadata, "spec": spec}, namespace=self._namespace
            )
        else:
            await self._api.replace(
                "Lease", {**lease, "spec": {**before, **spec}}, namespace=self._namespace
            )

    def _look(self, lease: dict[str, Any] | None, now_s: float) -> None:
        if lease is None:
            return
        version = str(lease["metadata"]["resourceVersion"])
        if self._seen is None or self._seen.version != version:
            holder = str(lease["spec"].get("holderIdentity", ""))
            self._seen = Seen(holder=holder, version=version, at_s=now_s)
