"""What the operator keeps of the pods that it removed: a bounded record in each namespace.

Events go after an hour; this stays. The ConfigMap ``aaa-evictions`` holds one JSON document, newest
last, at most :data:`KEPT` entries, one a pod. An entry is written before the pod is asked to go,
so that an operator that dies in between leaves its evidence all the same, and again when the
answer is known. A budget that says no again and again changes nothing and so writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from aaa_operator import names
from aaa_operator.actions import DeletePod, Evict
from aaa_operator.api import Api, ApiFailure
from aaa_operator.observe import Raw, timestamp_of

#: Entries that are kept: some kilobytes each at most, of the MiB that a ConfigMap may hold.
KEPT: Final = 100
KEY: Final = "evictions.json"
#: What became of a pod: asked to go (the answer is not known); or it went one way or the other; or
#: it was another one by then, or gone. Else ``Refused (…)`` with the API server's reason.
ASKED: Final = "Asked"
EVICTED: Final = "Evicted"
DELETED: Final = "Deleted"
CHANGED: Final = "Changed"
_MAX_TEXT: Final = 500
#: Tries of one write while somebody else changes the ConfigMap.
_TRIES: Final = 3


def entries_in(config: Raw | None) -> list[dict[str, Any]]:
    """The entries of the ConfigMap, oldest first; what was edited by hand into nonsense is none."""
    try:
        found = json.loads(((config or {}).get("data") or {}).get(KEY, "[]"))
    except ValueError:
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def with_entry(
    entries: list[dict[str, Any]], action: Evict | DeletePod, outcome: str, *, now_ms: int
) -> list[dict[str, Any]]:
    """The entries with this pod's brought up to date; the same list if that changes nothing.

    A pod that is asked again keeps what was answered first, until there is another answer.
    """
    before = next((one for one in entries if one.get("podUid") == action.uid), None)
    if before is not None and outcome == ASKED:
        return entries
    entry = {
        "pod": action.pod,
        "podUid": action.uid,
        "since": timestamp_of(now_ms) if before is None else before.get("since"),
        "outcome": outcome,
        "reason": action.reason[:_MAX_TEXT],
        "evidence": {key: _bounded(value) for key, value in action.evidence.items()},
    }
    if before is not None and {**entry, "at": before.get("at")} == before:
        return entries
    others = [one for one in entries if one is not before]
    return [*others, {**entry, "at": timestamp_of(now_ms)}][-KEPT:]


class EvictionRecord:
    """Keeps one namespace's record."""

    def __init__(self, api: Api, *, namespace: str) -> None:
        self._api, self._namespace = api, namespace

    async def note(self, action: Evict | DeletePod, outcome: str, *, now_ms: int) -> None:
        """Write the entry. Raises :class:`ApiFailure` if it cannot be written."""
        for tried in range(_TRIES):
            live = await self._live()
            entries = entries_in(live)
            wanted = with_entry(entries, action, outcome, now_ms=now_ms)
            if wanted is entries:
                return
            try:
                await self._write(live, wanted)
                return
            except ApiFailure as failure:
                if not failure.stale or tried == _TRIES - 1:
                    raise

    async def _live(self) -> dict[str, Any] | None:
        try:
            return await self._api.get("ConfigMap", names.EVICTIONS, namespace=self._namespace)
        except ApiFailure as failure:
            if failure.gone:
                return None
            raise

    async def _write(self, live: Mapping[str, Any] | None, entries: list[dict[str, Any]]) -> None:
        data = {KEY: json.dumps(entries, separators=(",", ":"))}
        if live is not None:
            change = {"op": "add", "path": "/data", "value": data}
            version = str(live["metadata"]["resourceVersion"])
            await self._api.patch_version(
                "ConfigMap",
                names.EVICTIONS,
                [change],
                namespace=self._namespace,
                resource_version=version,
            )
            return
        made = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": names.EVICTIONS,
                "namespace": self._namespace,
                "labels": {names.MANAGED_BY: names.MANAGER},
            },
            "data": data,
        }
        await self._api.create("ConfigMap", made, namespace=self._namespace)


def _bounded(value: Any) -> Any:
    return value[:_MAX_TEXT] if isinstance(value, str) else value
