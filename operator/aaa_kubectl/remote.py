"""The operator's read-only endpoint, as the ``aaa`` command's code sees a store.

It is reached through the API server's service proxy, with the caller's own rights. Runs are named as
their AgentRuns are; what the endpoint has cut, it says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aaa import ids
from aaa.client import CallView, RunInfo
from aaa.errors import AAAError, ConfigError, ReloadError, RunNotFound, StoreUnavailable
from aaa.events import Event
from aaa.store.port import Head
from aaa_kubectl.site import Site
from aaa_operator.api import ApiFailure

VERSION: Final = 1
#: The label of the operator's Service, and its port's name.
LABEL: Final = "app.kubernetes.io/name=aaa-operator"
PORT: Final = "read"
_GUESS: Final = "aaa-operator"
_NAME_IT: Final = "install AAA's chart, or name the Service with --operator NAMESPACE/NAME"

Json = Mapping[str, Any]


async def find_operator(site: Site, said: str | None) -> tuple[str, str]:
    """Namespace and name of the operator's Service: as said, or found by its label."""
    if said is not None:
        namespace, slash, name = said.rpartition("/")
        if not name or (slash and not namespace):
            raise ConfigError(f"--operator: {said!r} is not NAMESPACE/NAME")
        return namespace or site.namespace, name
    for where in (f"/api/v1/namespaces/{site.namespace}/services", "/api/v1/services"):
        try:
            found = await site.api.get_path(where, params={"labelSelector": LABEL})
        except ApiFailure as failure:
            if failure.status == 403:
                continue
            raise
        services = [one["metadata"] for one in found.get("items") or ()]
        if len(services) > 1:
            named = ", ".join(f"{one['namespace']}/{one['name']}" for one in services)
            raise ConfigError(f"there are several operators ({named}); choose one with --operator")
        if services:
            return str(services[0]["namespace"]), str(services[0]["name"])
    return site.namespace, _GUESS


class Remote:
    """One namespace's runs, through one operator. ``uid`` shows that the caller may read them."""

    def __init__(self, site: Site, operator: tuple[str, str], *, uid: str) -> None:
        self._site, self._operator, self._uid = site, operator, uid

    async def get(self, path: str, **query: str | int | list[str] | None) -> dict[str, Any]:
        """One answer. Raises an :class:`AAAError` of one sentence."""
        site, (namespace, name) = self._site, self._operator
        base = f"/api/v1/namespaces/{namespace}/services/http:{name}:{PORT}/proxy"
        params: dict[str, Any] = {key: each for key, each in query.items() if each is not None}
        try:
            found = await site.api.get_path(
                f"{base}/v1/namespaces/{site.namespace}{path}", params={**params, "uid": self._uid}
            )
        except ApiFailure as failure:
            raise self._sentence(failure) from failure
        if found.get("version") != VERSION:
            raise ConfigError(
                f"the operator {namespace}/{name} speaks another version of its endpoint "
                f"({found.get('version')}, not {VERSION}); install the kubectl-aaa of its release"
            )
        return found

    async def events(self, run: str, *, after: int = 0) -> tuple[list[dict[str, Any]], bool]:
        """The run's log as the endpoint shows it, and whether the run is open."""
        found: list[dict[str, Any]] = []
        while True:
            page = await self.get(f"/runs/{run}/events", after=after)
            found += page["events"]
            if page["next"] is None:
                return found, bool(page["open"])
            after = int(page["next"])

    def _sentence(self, failure: ApiFailure) -> AAAError:
        namespace, name = self._operator
        service = f"{namespace}/{name}"
        if "version" in failure.body:
            return self._answered(failure)
        if failure.status == 403:
            return ConfigError(
                f"you may not read from the operator ({failure.detail}); ask for get on "
                f"services/proxy of http:{name}:{PORT} in {namespace}"
            )
        if failure.gone:
            return ConfigError(f"there is no operator's Service {service}; {_NAME_IT}")
        if failure.status in (502, 503, 504):
            return StoreUnavailable(
                f"the operator behind {service} does not answer ({failure.detail}); look at "
                f"'kubectl -n {namespace} get pods'"
            )
        raise failure

    def _answered(self, failure: ApiFailure) -> AAAError:
        site, (namespace, name) = self._site, self._operator
        if failure.reason == "UnknownUid":
            return ConfigError(
                f"the operator {namespace}/{name} does not look after namespace {site.namespace}; "
                "name the one that does with --operator"
            )
        if failure.gone:
            return RunNotFound(failure.detail)
        if failure.stale:
            return ReloadError(failure.detail)
        if failure.status >= 500:
            return StoreUnavailable(failure.detail)
        return ConfigError(failure.detail)


def event_of(told: Json) -> Event:
    """An event as the ``aaa`` command prints it."""
    return Event(
        id=str(told["id"]),
        run_id=str(told["run_id"]),
        type=str(told["type"]),
        raw=ids.canonical(told["data"]),
        parent=told.get("parent"),
        seq=int(told["seq"]),
        time=int(told["time"]),
    )


def call_of(told: Json) -> CallView:
    """A call that a person is to decide on; its run is named as its AgentRun is."""
    return CallView(
        run_id=str(told["run"]),
        call_id=str(told["callId"]),
        name=str(told["tool"]),
        arguments=told["arguments"],
        args_digest=str(told["argsDigest"]),
        idempotency_key=str(told["idempotencyKey"]),
        reason=str(told["reason"]),
        attempts=int(told["attempts"]),
        since_ms=int(told["sinceMs"]),
        retriable=bool(told.get("retriable", True)),
        evidence=tuple(event_of(each) for each in told["evidence"]),
    )


def info_of(run: Json) -> RunInfo:
    """The run's index entry, named as its AgentRun is."""
    told = run["info"]
    return RunInfo(
        run_id=str(run["name"]),
        app=str(told["app"]),
        digest=str(told["digest"]),
        status=str(told["status"]),
        head=Head(int(told["events"]), ""),
        cursor=0,
        cancelling=bool(told["cancelling"]),
        suspended=bool(told["suspended"]),
        parked=bool(told["parked"]),
        awaiting=int(told["awaiting"]),
        unknown=int(told["unknown"]),
        created_ms=int(told["createdMs"]),
        closed_ms=told["closedMs"],
    )


def calls_of(told: Sequence[Json]) -> list[CallView]:
    return [call_of(each) for each in told]
