"""The Kubernetes API as the operator needs it: plain JSON in and out, with preconditions.

lightkube brings configuration, authentication (tokens are read again when they are refused) and
the connection; objects stay plain JSON, since planning works on them and since its own ``delete``
cannot carry preconditions. Nothing is retried here: whoever asks plans again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import KubeConfig

from aaa_operator import names

TIMEOUT_S: Final = 10.0
#: Objects in one answer to a listing.
PAGE: Final = 500
APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"

#: Kind → the API's path and the plural.
RESOURCES: Final = {
    "AgentRun": (f"apis/{names.API_VERSION}", "agentruns"),
    "ToolPolicy": (f"apis/{names.API_VERSION}", "toolpolicies"),
    "ToolDecision": (f"apis/{names.API_VERSION}", "tooldecisions"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "ControllerRevision": ("apis/apps/v1", "controllerrevisions"),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
    "ConfigMap": ("api/v1", "configmaps"),
    "Secret": ("api/v1", "secrets"),
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "Pod": ("api/v1", "pods"),
    "Event": ("api/v1", "events"),
    "Lease": ("apis/coordination.k8s.io/v1", "leases"),
}


class ApiFailure(Exception):
    """The API server refused. ``status`` is HTTP's; 0 when it did not answer at all.

    ``detail`` is what it said, without the request; ``body`` its whole answer, if that was an object.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        retry_after_s: float | None = None,
        detail: str | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> None:
        self.status, self.reason, self.retry_after_s = status, reason, retry_after_s
        self.detail = message if detail is None else detail
        self.body = body or {}
        super().__init__(message)

    @property
    def gone(self) -> bool:
        """The object is not there."""
        return self.status == 404

    @property
    def stale(self) -> bool:
        """The object is not what was looked at any more: look again."""
        return self.status == 409

    @property
    def busy(self) -> bool:
        """Not now: a disruption budget, or too many requests."""
        return self.status == 429


class Api:
    """Requests to one API server. ``manager`` is the field manager of what is written."""

    def __init__(self, http: httpx2.AsyncClient, *, manager: str = names.MANAGER) -> None:
        self._http, self._manager = http, manager

    async def get(self, kind: str, name: str, *, namespace: str) -> dict[str, Any]:
        return await self._send("GET", path(kind, namespace, name))

    async def get_path(
        self, where: str, *, params: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """One object by its whole path, for what is not namespaced."""
        return await self._send("GET", where, params=params)

    async def ask(self, where: str, question: Mapping[str, Any]) -> dict[str, Any]:
        """Post a question that is stored nowhere, such as who the caller is; the answer."""
        return await self._send("POST", where, body=question)

    async def list_all(
        self, kind: str, *, namespace: str = "", labels: str = ""
    ) -> list[dict[str, Any]]:
        """Every object of a kind that a label selector picks; in all namespaces if none is named."""
        found: list[dict[str, Any]] = []
        params = {"limit": str(PAGE)} | ({"labelSelector": labels} if labels else {})
        while True:
            reply = await self._send("GET", collection(kind, namespace), params=params)
            found += reply.get("items") or []
            more = (reply.get("metadata") or {}).get("continue")
            if not more:
                return found
            params["continue"] = more

    async def apply(self, wanted: Mapping[str, Any], *, namespace: str) -> dict[str, Any]:
        """Server-side apply of a whole object, as its only manager of these fields."""
        where = path(wanted["kind"], namespace, wanted["metadata"]["name"])
        params = {"fieldManager": self._manager, "force": "true"}
        return await self._send("PATCH", where, params=params, body=wanted, content=APPLY)

    async def create(self, kind: str, made: Mapping[str, Any], *, namespace: str) -> dict[str, Any]:
        params = {"fieldManager": self._manager}
        return await self._send("POST", path(kind, namespace), params=params, body=made)

    async def replace(
        self, kind: str, made: Mapping[str, Any], *, namespace: str
    ) -> dict[str, Any]:
        """Replace an object; its ``resourceVersion`` is the precondition."""
        where = path(kind, namespace, made["metadata"]["name"])
        return await self._send("PUT", where, params={"fieldManager": self._manager}, body=made)

    async def merge(
        self, kind: str, name: str, patch: Mapping[str, Any], *, namespace: str, below: str = ""
    ) -> dict[str, Any]:
        """Merge patch; ``below`` names a subresource."""
        where = path(kind, namespace, name) + (f"/{below}" if below else "")
        params = {"fieldManager": self._manager}
        return await self._send("PATCH", where, params=params, body=patch, content=MERGE)

    async def patch_version(
        self,
        kind: str,
        name: str,
        operations: Sequence[Mapping[str, Any]],
        *,
        namespace: str,
        resource_version: str,
        below: str = "",
    ) -> dict[str, Any]:
        """JSON patch of exactly this version of the object; ``stale`` if there is a newer one."""
        where = path(kind, namespace, name) + (f"/{below}" if below else "")
        lock = {"op": "replace", "path": "/metadata/resourceVersion", "value": resource_version}
        return await self._send(
            "PATCH",
            where,
            params={"fieldManager": self._manager},
            body=[lock, *operations],
            content=JSON_PATCH,
        )

    async def delete(
        self, kind: str, name: str, *, namespace: str, uid: str, grace_s: int | None = None
    ) -> None:
        """Delete the object with this uid, and no later one of its name."""
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        await self._send("DELETE", path(kind, namespace, name), body=options)

    async def evict(
        self, name: str, *, namespace: str, uid: str, resource_version: str, grace_s: int
    ) -> None:
        """Evict the pod, only if it is still this version of it. ``busy``: its budget says no."""
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {
                "gracePeriodSeconds": grace_s,
                "preconditions": {"uid": uid, "resourceVersion": resource_version},
            },
        }
        await self._send("POST", f"{path('Pod', namespace, name)}/eviction", body=eviction)

    async def _send(
        self,
        method: str,
        where: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        content: str = "application/json",
    ) -> dict[str, Any]:
        headers = {"Content-Type": content, "Accept": "application/json"}
        try:
            reply = await self._http.request(
                method, where, params=dict(params or {}), headers=headers, json=body
            )
        except httpx2.HTTPError as error:
            said = str(error) or type(error).__name__
            raise ApiFailure(0, "NoAnswer", f"{method} {where}: {error!r}", detail=said) from error
        if reply.is_success:
            found = reply.json() if reply.content else {}
            return found if isinstance(found, dict) else {}
        raise _failure(method, where, reply)


def path(kind: str, namespace: str, name: str = "") -> str:
    """The path of a namespaced object, or of its collection."""
    return collection(kind, namespace) + (f"/{name}" if name else "")


def collection(kind: str, namespace: str = "") -> str:
    """The path of a kind's objects in a namespace, or in all of them."""
    prefix, plural = RESOURCES[kind]
    return f"/{prefix}/namespaces/{namespace}/{plural}" if namespace else f"/{prefix}/{plural}"


@asynccontextmanager
async def connected() -> AsyncIterator[Api]:
    """The API server of this pod's service account, or of KUBECONFIG."""
    config = KubeConfig.from_env().get()
    if config is None:
        raise ApiFailure(0, "NoConfig", "no API server is configured; set KUBECONFIG")
    http = AsyncClient(config, ConnectionParams(timeout=httpx2.Timeout(TIMEOUT_S)))
    async with http:
        yield Api(http)


def _failure(method: str, where: str, reply: httpx2.Response) -> ApiFailure:
    try:
        said = reply.json()
    except ValueError:
        said = {}
    said = said if isinstance(said, dict) else {}
    after = reply.headers.get("Retry-After", "")
    return ApiFailure(
        reply.status_code,
        str(said.get("reason") or reply.reason_phrase),
        f"{method} {where}: {said.get('message') or reply.text[:200]}",
        retry_after_s=float(after) if after.isdigit() else None,
        detail=str(said.get("message") or reply.text[:200].strip()),
        body=said,
    )
