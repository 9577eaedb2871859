"""The process: kopf delivers what happens, a keyed queue decides when a namespace is looked at.

kopf's handlers only note what they are given and ask for a look, so that nothing that can fail runs
inside them. Its peering is no leader election and stays off; a coordination Lease is held instead,
and losing it ends the process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from contextlib import AsyncExitStack
from typing import Any, Final

import kopf

from aaa.clock import SYSTEM_CLOCK
from aaa.errors import ConfigError
from aaa.telemetry import JsonFormatter, Telemetry, configure_from_environment
from aaa_operator import crds, names
from aaa_operator.api import Api, ApiFailure, connected
from aaa_operator.cluster import Cluster
from aaa_operator.election import Election
from aaa_operator.health import Heartbeat, health_app
from aaa_operator.metrics import Metrics, metrics_app
from aaa_operator.namespace import Namespace
from aaa_operator.observe import Problem, RunSeen
from aaa_operator.queue import Again, KeyedQueue
from aaa_operator.read import read_app
from aaa_operator.reading import Reading
from aaa_operator.serving import serve
from aaa_operator.settings import Settings

log = logging.getLogger("aaa.operator")

#: What is watched: group and version, plural, kind, and the label without which it is not ours.
_WATCHED: Final = (
    (names.API_VERSION, "agentruns", "AgentRun", None),
    (names.API_VERSION, "toolpolicies", "ToolPolicy", None),
    (names.API_VERSION, "tooldecisions", "ToolDecision", None),
    ("v1", "pods", "Pod", names.POOL),
    ("v1", "configmaps", "ConfigMap", names.MANAGED_BY),
    ("apps/v1", "deployments", "Deployment", names.POOL),
    ("apps/v1", "controllerrevisions", "ControllerRevision", names.POOL),
    ("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", names.POOL),
)


#: Loggers that would write a line for each request.
_CHATTY: Final = ("httpx2", "httpcore2", "aiohttp.access", "kopf.activities", "kopf.objects")


class Operator:
    """Everything that lives as long as the process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.cluster = Cluster()
        self.me = f"{socket.gethostname()}-{SYSTEM_CLOCK.token()[:8]}"
        self._namespaces: dict[str, Namespace] = {}
        self._stack = AsyncExitStack()
        self._api: Api | None = None
        self._queue: KeyedQueue | None = None
        self._leading = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._telemetry = Telemetry.current()
        self.metrics = Metrics(self.cluster)
        self.reading = Reading(self.cluster, self._store_url)
        self.heartbeat = Heartbeat(
            namespace=settings.heartbeat_namespace,
            me=self.me,
            every_s=settings.heartbeat_s,
            limit_s=settings.watch_limit_s,
        )

    async def start(self) -> None:
        """Connect; lead as soon as nobody else does; until then only listen."""
        settings = self.settings
        self._api = await self._stack.enter_async_context(connected())
        self._queue = KeyedQueue(
            self._look, retry_s=settings.retry_s, retry_max_s=settings.retry_max_s
        )
        self.observe()
        self._stack.push_async_callback(self.reading.close)
        apps = (
            (settings.read_port, read_app(self.reading)),
            (settings.health_port, health_app(self.heartbeat)),
            (settings.metrics_port, metrics_app(self.metrics)),
        )
        await serve(self._stack, apps)
        self._tasks.append(asyncio.ensure_future(self._lead(self._api)))
        self._tasks.append(asyncio.ensure_future(self.heartbeat.run(self._api)))

    def observe(self) -> None:
        """Let the metrics read what only this process knows of itself."""
        observe = self.metrics.observe
        observe("aaa_operator_leader", "1 while this process leads", self._leading.is_set)
        observe(
            "aaa_operator_queue_depth",
            "Namespaces that wait to be looked at",
            lambda: 0 if self._queue is None else self._queue.depth,
        )
        observe(
            "aaa_operator_watch_age_seconds",
            "Since the watch last delivered the heartbeat; -1 before the first time",
            lambda: -1.0 if self.heartbeat.age_s is None else self.heartbeat.age_s,
        )

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._queue is not None:
            await self._queue.close()
        for namespace in self._namespaces.values():
            await namespace.close()
        await self._stack.aclose()

    def heard(self, kind: str, raw: dict[str, Any], *, deleted: bool) -> None:
        """What a watch delivers."""
        self.metrics.heard(kind)
        if self.heartbeat.is_ours(kind, raw):
            self.heartbeat.heard()
            return
        namespace = self.cluster.heard(kind, raw, deleted=deleted)
        if self._queue is not None and self._leading.is_set():
            self._queue.ask(namespace)

    async def _lead(self, api: Api) -> None:
        settings = self.settings
        election = Election(
            api,
            namespace=settings.lives_in,
            name=settings.lease_name,
            me=self.me,
            ttl_s=settings.lease_ttl_s,
        )
        await self._won(election)
        await self._compare_definitions(api)
        self._leading.set()
        for namespace in self.cluster.namespaces():
            if self._queue is not None:
                self._queue.ask(namespace)
        await election.hold()
        # Another one leads now, or may: not one more write from here.
        os._exit(75)

    async def _won(self, election: Election) -> None:
        while True:
            try:
                await election.win()
                return
            except ApiFailure as failure:
                log.warning("no lease yet: %s", failure)
                await SYSTEM_CLOCK.sleep(self.settings.retry_max_s / 10)

    async def _look(self, key: str) -> Again:
        await self._leading.wait()
        began_s = SYSTEM_CLOCK.boot_s()
        try:
            return await self._namespace(key).look()
        except ApiFailure as failure:
            self.metrics.failed(took_s=SYSTEM_CLOCK.boot_s() - began_s)
            log.warning("namespace %s cannot be looked at: %s", key, failure)
            return Again(in_s=failure.retry_after_s, failed=True)

    def _namespace(self, key: str) -> Namespace:
        if self._api is None:
            raise AssertionError("looked before it was started")
        if key not in self._namespaces:
            self._namespaces[key] = Namespace(
                key,
                api=self._api,
                cluster=self.cluster,
                settings=self.settings,
                canary=f"operator.{self.me}",
                metrics=self.metrics,
                telemetry=self._telemetry,
            )
        return self._namespaces[key]

    async def _store_url(self, namespace: str, runs: list[RunSeen]) -> str | Problem:
        try:
            return await self._namespace(namespace).store_url(runs)
        except ApiFailure as failure:
            return Problem("StoreSecretUnreadable", str(failure))

    async def _compare_definitions(self, api: Api) -> None:
        """Say so if the cluster's definitions are not those that this operator was built with."""
        for kind, plural in crds.PLURALS.items():
            name = f"{plural}.{crds.GROUP}"
            where = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
            try:
                found = await api.get_path(where)
            except ApiFailure as failure:
                log.warning("definition %s cannot be compared: %s", name, failure)
                continue
            said = (found["metadata"].get("annotations") or {}).get(crds.HASH_ANNOTATION)
            wanted = crds.schema_hash(crds.definition(kind)["spec"])
            if said != wanted:
                log.error(
                    "the definition %s is of another version (%s, not %s): fields may be pruned; "
                    "apply the crds/ of this version",
                    name,
                    said,
                    wanted,
                )


def registry_for(operator: Operator) -> kopf.OperatorRegistry:
    """Kopf's handlers: each only passes on what it is given."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        # Asked again when the API server refuses a token: a pod's are short-lived.
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.startup(registry=registry)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.persistence.finalizer = f"{names.GROUP}/unused"
        settings.posting.enabled = False
        # Below the number of objects a limit would keep the first listing from ending.
        settings.queueing.worker_limit = None
        settings.watching.server_timeout = 300
        # What is watched is fixed. Looking for new kinds and namespaces needs rights that a release
        # for one namespace does not have.
        settings.scanning.disabled = True
        await operator.start()

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await operator.stop()

    for version, plural, kind, label in _WATCHED:
        _watch(operator, registry, version=version, plural=plural, kind=kind, label=label)
    return registry


def _watch(
    operator: Operator,
    registry: kopf.OperatorRegistry,
    *,
    version: str,
    plural: str,
    kind: str,
    label: str | None,
) -> None:
    labels = None if label is None else {label: kopf.PRESENT}

    @kopf.on.event(version, plural, registry=registry, labels=labels, id=f"watch-{plural}")
    async def heard(event: Any, **_: Any) -> None:
        operator.heard(kind, dict(event["object"]), deleted=event["type"] == "DELETED")


def main() -> int:
    """``python -m aaa_operator.main``; settings come from ``AAA_OPERATOR_*``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for each in _CHATTY:
        logging.getLogger(each).setLevel(logging.WARNING)
    try:
        settings = Settings.from_environment()
    except ConfigError as error:
        log.error("%s", error)  # noqa: TRY400 - one sentence, no traceback
        return 2
    configure_from_environment(worker=socket.gethostname())
    operator = Operator(settings)
    kopf.run(
        registry=registry_for(operator),
        standalone=True,
        identity=operator.me,  # kopf's own would ask for the user's name, which a pod has not
        namespaces=list(settings.namespaces),
        clusterwide=not settings.namespaces,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
