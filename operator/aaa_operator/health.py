"""Whether this process still hears the cluster.

A watch can die without a word: the process lives, its event loop ticks, and nothing is delivered
any more. So the operator changes a small ConfigMap every so often and waits for that change to come
back through the very watch that delivers everything else. A change that the API server has taken
and that has not come back for :attr:`Settings.watch_limit_s` means that the watch is deaf, and
``/healthz`` fails, so that the kubelet starts the process anew. While the API server takes no
change there is nothing to conclude: the coordination Lease ends the process then, if it must.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from aaa.clock import SYSTEM_CLOCK, Clock
from aaa_operator import names
from aaa_operator.api import Api, ApiFailure
from aaa_operator.serving import application

log = logging.getLogger("aaa.operator")

BEAT: Final = "beat"
_LABELS: Final = {names.MANAGED_BY: names.MANAGER}


class Heartbeat:
    """Changes the ConfigMap, hears it change, and judges. Times are this process' own."""

    def __init__(
        self,
        *,
        namespace: str,
        me: str,
        every_s: float,
        limit_s: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.namespace = namespace
        self._me, self._every_s, self._limit_s, self._clock = me, every_s, limit_s, clock
        self._count = 0
        #: When the oldest change that has not come back was taken.
        self._unheard_s: float | None = None
        self._heard_s: float | None = None

    def is_ours(self, kind: str, raw: Mapping[str, Any]) -> bool:
        """Whether the watch delivers the heartbeat's ConfigMap."""
        metadata = raw["metadata"]
        return (
            kind == "ConfigMap"
            and metadata.get("name") == names.HEARTBEAT
            and metadata.get("namespace") == self.namespace
        )

    def heard(self) -> None:
        """A change came back; whoever made it, the watch delivers."""
        self._unheard_s, self._heard_s = None, self._clock.boot_s()

    @property
    def age_s(self) -> float | None:
        """Seconds since the watch last delivered a change; ``None`` if it never did."""
        return None if self._heard_s is None else self._clock.boot_s() - self._heard_s

    def problem(self) -> str | None:
        """Why the process should be started anew; ``None`` while all is well."""
        if self._unheard_s is None:
            return None
        waited_s = self._clock.boot_s() - self._unheard_s
        if waited_s <= self._limit_s:
            return None
        return f"a change made {waited_s:.0f} s ago has not come back through the watch"

    async def beat(self, api: Api) -> None:
        """Change the ConfigMap once. Raises :class:`ApiFailure`."""
        self._count += 1
        at_s = self._clock.boot_s()
        data = {BEAT: f"{self._me} {self._count}"}
        # Before the write: the watch may be quicker than the reply.
        before, self._unheard_s = (
            self._unheard_s,
            at_s if self._unheard_s is None else self._unheard_s,
        )
        try:
            await self._write(api, data)
        except ApiFailure:
            self._unheard_s = before
            raise

    async def run(self, api: Api) -> None:
        """Beat for ever."""
        while True:
            try:
                await self.beat(api)
            except ApiFailure as failure:
                log.warning("the heartbeat could not be written: %s", failure)
            await self._clock.sleep(self._every_s)

    async def _write(self, api: Api, data: dict[str, str]) -> None:
        try:
            await api.merge("ConfigMap", names.HEARTBEAT, {"data": data}, namespace=self.namespace)
        except ApiFailure as failure:
            if not failure.gone:
                raise
            made = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": names.HEARTBEAT,
                    "namespace": self.namespace,
                    "labels": _LABELS,
                },
                "data": data,
            }
            await api.create("ConfigMap", made, namespace=self.namespace)


def health_app(heartbeat: Heartbeat) -> web.Application:
    """``/healthz``: the loop ticks and the watch delivers. ``/readyz``: it has delivered once."""
    app = application()

    async def healthz(_: web.Request) -> web.Response:
        return _said(heartbeat.problem())

    async def readyz(_: web.Request) -> web.Response:
        waits = None if heartbeat.age_s is not None else "the watch has delivered nothing yet"
        return _said(heartbeat.problem() or waits)

    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    return app


def _said(problem: str | None) -> web.Response:
    return web.Response(text=problem or "ok", status=503 if problem else 200)
