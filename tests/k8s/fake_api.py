"""An API server small enough to read: storage with versions, the patches that the operator sends,
preconditions, and a log of what was written. It knows no controller: nothing happens by itself.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aaa_operator.api import APPLY, JSON_PATCH, MERGE, RESOURCES, Api

KINDS = {plural: kind for kind, (_, plural) in RESOURCES.items()}


class FakeApi:
    """Objects by (kind, namespace, name)."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.others: dict[str, dict[str, Any]] = {}
        #: (method, kind, name, subresource) of every request that changed something.
        self.writes: list[tuple[str, str, str, str]] = []
        #: Changes that no watch has delivered yet: kind, object, deleted.
        self.changes: list[tuple[str, dict[str, Any], bool]] = []
        #: Answers to give instead, once each, by (method, kind).
        self.answers: dict[tuple[str, str], list[Response]] = {}
        #: Told before and after each write; what it raises ends whoever asked for it.
        self.on_write: Callable[[str], None] = lambda _: None
        #: Most objects in one answer to a listing.
        self.page = 500
        self._version = 0
        routes = [
            Route("/{base:path}/namespaces/{ns}/{plural}", self._list, methods=["GET"]),
            Route("/{base:path}/namespaces/{ns}/{plural}", self._collection, methods=["POST"]),
            Route("/{base:path}/namespaces/{ns}/{plural}/{name}", self._object, methods=_ALL),
            Route("/{base:path}/namespaces/{ns}/{plural}/{name}/{sub}", self._object, methods=_ALL),
            Route("/{path:path}", self._other, methods=["GET"]),
        ]
        self.app = Starlette(routes=routes)

    def api(self) -> Api:
        transport = httpx2.ASGITransport(app=self.app)
        return Api(httpx2.AsyncClient(transport=transport, base_url="http://api"))

    def put(self, raw: dict[str, Any], *, namespace: str = "shop") -> dict[str, Any]:
        """Store an object as somebody else would."""
        self._version += 1
        kind, stored = str(raw["kind"]), copy.deepcopy(raw)
        metadata = stored["metadata"]
        metadata.setdefault("namespace", namespace)
        metadata.setdefault("uid", f"uid-{kind}-{metadata['name']}")
        metadata["resourceVersion"] = str(self._version)
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            self.objects.pop((kind, namespace, metadata["name"]), None)
            self.changes.append((kind, stored, True))
            return stored
        self.objects[kind, namespace, metadata["name"]] = stored
        self.changes.append((kind, copy.deepcopy(stored), False))
        return stored

    def get(self, kind: str, name: str, *, namespace: str = "shop") -> dict[str, Any]:
        return self.objects[kind, namespace, name]

    async def _list(self, request: Request) -> Response:
        """One namespace's objects, or all, a page of at most ``limit`` or ``page`` at a time."""
        ns, query = request.path_params.get("ns"), request.query_params
        kind = KINDS.get(request.path_params.get("plural") or request.url.path.rpartition("/")[2])
        if kind is None:
            return await self._other(request)
        wanted = [each for each in query.get("labelSelector", "").split(",") if each]
        found = [
            raw
            for (its_kind, its_ns, _), raw in sorted(self.objects.items())
            if its_kind == kind and ns in (None, its_ns) and _picked(raw, wanted)
        ]
        begin = int(query.get("continue", "0"))
        end = begin + min(int(query.get("limit", self.page)), self.page)
        metadata = {"continue": str(end) if end < len(found) else ""}
        items = found[begin:end]
        return JSONResponse({"kind": f"{kind}List", "metadata": metadata, "items": items})

    async def _other(self, request: Request) -> Response:
        if request.url.path.rpartition("/")[2] in KINDS:
            return await self._list(request)
        found = self.others.get(request.url.path)
        return _said(404, "NotFound") if found is None else JSONResponse(found)

    async def _collection(self, request: Request) -> Response:
        return await self._written(request, self._create)

    async def _written(
        self, request: Request, handle: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        where = f"{request.method} {request.url.path}"
        self.on_write(f"before {where}")
        reply = await handle(request)
        self.on_write(f"after {where}")
        return reply

    async def _create(self, request: Request) -> Response:
        kind = KINDS[request.path_params["plural"]]
        raw = await request.json()
        name = raw["metadata"].get("name") or f"{raw['metadata']['generateName']}{self._version}"
        raw["metadata"]["name"] = name
        if (kind, request.path_params["ns"], name) in self.objects:
            return _said(409, "AlreadyExists")
        self.writes.append(("POST", kind, name, ""))
        return JSONResponse(self.put(raw, namespace=request.path_params["ns"]), status_code=201)

    async def _object(self, request: Request) -> Response:
        ns, name = request.path_params["ns"], request.path_params["name"]
        kind = KINDS.get(request.path_params["plural"])
        if kind is None:
            return await self._other(request)
        planned = self.answers.get((request.method, kind))
        if planned:
            return planned.pop(0)
        live = self.objects.get((kind, ns, name))
        if request.method == "GET":
            return _said(404, "NotFound") if live is None else JSONResponse(live)
        return await self._written(request, self._change)

    async def _change(self, request: Request) -> Response:
        ns, name = request.path_params["ns"], request.path_params["name"]
        kind = KINDS[request.path_params["plural"]]
        live = self.objects.get((kind, ns, name))
        body = json.loads(await request.body() or b"{}")
        content, sub = request.headers.get("content-type", ""), request.path_params.get("sub", "")
        if live is None and content != APPLY:
            return _said(404, "NotFound")
        self.writes.append((request.method, kind, name, sub))
        if request.method in ("DELETE", "POST"):
            return self._removed(kind, ns, live or {}, body)
        try:
            changed = _changed(live, body, content=content, method=request.method)
        except ValueError as error:
            return _said(409, "Conflict", str(error))
        if sub == "status":
            changed = {**(live or {}), "status": changed.get("status")}
        return JSONResponse(self.put(changed, namespace=ns))

    def _removed(self, kind: str, ns: str, live: dict[str, Any], body: dict[str, Any]) -> Response:
        options = body.get("deleteOptions") or body
        wanted = options.get("preconditions") or {}
        metadata = live["metadata"]
        if any(metadata.get(key) != value for key, value in wanted.items()):
            return _said(409, "Conflict", "the precondition does not hold")
        if metadata.get("finalizers"):
            self.put(
                {**live, "metadata": {**metadata, "deletionTimestamp": "2027-01-01T00:00:00Z"}}
            )
        else:
            del self.objects[kind, ns, metadata["name"]]
            self.changes.append((kind, live, True))
        return JSONResponse({})


_ALL = ["GET", "PUT", "PATCH", "DELETE", "POST"]


def _picked(raw: dict[str, Any], wanted: list[str]) -> bool:
    labels = raw["metadata"].get("labels") or {}
    pairs = [each.partition("=") for each in wanted]
    return all(key in labels and (not is_ or labels[key] == value) for key, is_, value in pairs)


def _changed(
    live: dict[str, Any] | None, body: Any, *, content: str, method: str
) -> dict[str, Any]:
    if method == "PUT":
        if (
            live is None
            or body["metadata"]["resourceVersion"] != live["metadata"]["resourceVersion"]
        ):
            raise ValueError("the object has been modified")
        return dict(body)
    if content == JSON_PATCH:
        return _json_patched(copy.deepcopy(live or {}), body)
    found: dict[str, Any] = _merged(copy.deepcopy(live or {}), body)
    if content == APPLY and body.get("kind") in ("ConfigMap", "Secret"):
        found["data"] = body.get("data", {})
    assert content in (APPLY, MERGE)
    return found


def _json_patched(found: dict[str, Any], operations: list[dict[str, Any]]) -> dict[str, Any]:
    for operation in operations:
        *way, last = operation["path"].strip("/").split("/")
        where: Any = found
        for part in way:
            where = where[part]
        if operation["path"] == "/metadata/resourceVersion":
            if where[last] != operation["value"]:
                raise ValueError("the object has been modified")
            continue
        if operation["op"] == "replace" and last not in where:
            raise ValueError(f"{operation['path']} is not there")
        where[last] = operation["value"]
    return found


def _merged(live: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    found = dict(live) if isinstance(live, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = _merged(found.get(key), value)
    return found


def _said(status: int, reason: str, message: str = "") -> Response:
    return JSONResponse({"reason": reason, "message": message or reason}, status_code=status)
