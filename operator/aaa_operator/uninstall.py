"""Before the operator is taken away: nothing is left running, and nothing is left stuck.

``python -m aaa_operator.uninstall``; the chart runs it as a hook. In this order, since each step
would be undone by what the one before it takes away:

1. The operator is stopped, which would scale pools up again and hold runs back; its heartbeat goes.
2. Every pool is scaled to zero: its workers drain.
3. The finalizer is taken off every AgentRun: a deletion then ends without the operator.

Runs, their records in the store, and the pools' definitions stay; the next installation goes on
with them. Doing it again does what is left. It ends with 1 when pods outlive the time limit, and
names them.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import Any, Final

from aaa.clock import SYSTEM_CLOCK, Clock
from aaa.telemetry import JsonFormatter
from aaa_operator import names
from aaa_operator.api import Api, ApiFailure, connected

log = logging.getLogger("aaa.operator")

#: Seconds between looks at what is still there.
LOOK_S: Final = 1.0
#: AgentRuns that are released at a time.
AT_ONCE: Final = 32
#: An object that somebody else changed in between is looked at again this often.
ATTEMPTS: Final = 5
#: The whole cluster, where a namespace is expected.
EVERYWHERE: Final = ""


class Uninstall:
    """One uninstallation. ``namespaces`` empty means every namespace."""

    def __init__(
        self,
        api: Api,
        *,
        namespaces: Sequence[str],
        timeout_s: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._api, self._clock = api, clock
        self._namespaces = tuple(namespaces) or (EVERYWHERE,)
        self._until_s = clock.boot_s() + timeout_s

    async def carry_out(self, *, namespace: str, operator: str, selector: str) -> list[str]:
        """All three steps; returns the names of the pods that are still there. Raises ApiFailure."""
        await self._scale_to_zero(operator, namespace=namespace)
        left = await self._pods_gone([namespace], selector)
        watched = EVERYWHERE in self._namespaces or namespace in self._namespaces
        await self._stop_heartbeat(namespace if watched else self._namespaces[0])
        await self._drain_pools()
        left += await self._pods_gone(self._namespaces, names.POOL)
        await self._release_runs()
        return left

    async def _stop_heartbeat(self, namespace: str) -> None:
        try:
            found = await self._api.get("ConfigMap", names.HEARTBEAT, namespace=namespace)
            uid = found["metadata"]["uid"]
            await self._api.delete("ConfigMap", names.HEARTBEAT, namespace=namespace, uid=uid)
        except ApiFailure as failure:
            if not (failure.gone or failure.stale):
                raise

    async def _drain_pools(self) -> None:
        ours = f"{names.POOL},{names.MANAGED_BY}={names.MANAGER}"
        for namespace in self._namespaces:
            for pool in await self._api.list_all("Deployment", namespace=namespace, labels=ours):
                if pool["spec"].get("replicas", 1) > 0:
                    where = pool["metadata"]
                    await self._scale_to_zero(where["name"], namespace=where["namespace"])

    async def _scale_to_zero(self, deployment: str, *, namespace: str) -> None:
        patch = {"spec": {"replicas": 0}}
        try:
            await self._api.merge(
                "Deployment", deployment, patch, namespace=namespace, below="scale"
            )
        except ApiFailure as failure:
            if not failure.gone:
                raise
        log.info("%s/%s is scaled to zero", namespace, deployment)

    async def _pods_gone(self, namespaces: Sequence[str], labels: str) -> list[str]:
        """Wait for it, until the time is over."""
        while True:
            pods = [
                f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
                for namespace in namespaces
                for pod in await self._api.list_all("Pod", namespace=namespace, labels=labels)
            ]
            if not pods or self._clock.boot_s() >= self._until_s:
                return pods
            await self._clock.sleep(LOOK_S)

    async def _release_runs(self) -> None:
        held = await self._held()
        for _ in range(ATTEMPTS):
            for first in range(0, len(held), AT_ONCE):
                some = held[first : first + AT_ONCE]
                await asyncio.gather(*(self._release(run["metadata"]) for run in some))
            held = await self._held()
            if not held:
                return
        names_of = ", ".join(run["metadata"]["name"] for run in held)
        raise ApiFailure(409, "Conflict", f"AgentRuns that are changed all the time: {names_of}")

    async def _held(self) -> list[dict[str, Any]]:
        return [
            run
            for namespace in self._namespaces
            for run in await self._api.list_all("AgentRun", namespace=namespace)
            if names.FINALIZER in (run["metadata"].get("finalizers") or ())
        ]

    async def _release(self, metadata: dict[str, Any]) -> None:
        kept = [each for each in metadata["finalizers"] if each != names.FINALIZER]
        change = {"op": "add", "path": "/metadata/finalizers", "value": kept}
        try:
            await self._api.patch_version(
                "AgentRun",
                metadata["name"],
                [change],
                namespace=metadata["namespace"],
                resource_version=metadata["resourceVersion"],
            )
        except ApiFailure as failure:
            if not (failure.gone or failure.stale):
                raise


async def _run(given: argparse.Namespace) -> int:
    namespace, _, operator = given.operator.partition("/")
    async with connected() as api:
        task = Uninstall(api, namespaces=given.namespace, timeout_s=given.timeout_s)
        left = await task.carry_out(namespace=namespace, operator=operator, selector=given.selector)
    if left:
        log.error(
            "still there after %g s: %s; look at their nodes, then uninstall again, or with "
            "--no-hooks to leave them behind",
            given.timeout_s,
            ", ".join(left),
        )
    return 1 if left else 0


def main(arguments: Sequence[str] | None = None) -> int:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    parser = argparse.ArgumentParser(
        prog="aaa_operator.uninstall",
        description="Stop the operator, drain its pools, release its AgentRuns.",
    )
    parser.add_argument("--operator", required=True, metavar="NAMESPACE/DEPLOYMENT")
    parser.add_argument("--selector", required=True, help="labels of the operator's pods")
    parser.add_argument(
        "--namespace", action="append", default=[], help="repeatable; all of them if left out"
    )
    parser.add_argument("--timeout-s", type=float, default=240.0)
    try:
        return asyncio.run(_run(parser.parse_args(arguments)))
    except ApiFailure as failure:
        log.error("%s", failure)  # noqa: TRY400 - one sentence, no traceback
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
