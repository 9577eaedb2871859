"""Carries out actions: the only writer, to the API server and to the store.

One action's failure does not keep the others from being carried out, since plans are made anew
from what stands; it makes the namespace be looked at again, after a back-off. A write that finds
the object changed meanwhile is no failure: it is simply planned again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aaa.client import Client
from aaa.errors import (
    AAAError,
    AccessRefused,
    CallNotFound,
    DecisionRefused,
    RunDeleted,
    RunNotFound,
)
from aaa_operator import actions as act
from aaa_operator import evictions, names
from aaa_operator.api import Api, ApiFailure
from aaa_operator.conditions import Judged, no, yes
from aaa_operator.decisions import status_with
from aaa_operator.evictions import EvictionRecord
from aaa_operator.hindrances import hindrance
from aaa_operator.observe import Problem, timestamp_of
from aaa_operator.render import digest

log = logging.getLogger("aaa.operator")

_RESOLUTIONS: Final[Mapping[str, Any]] = {
    "MarkDone": "done",
    "MarkNotDone": "not_done",
    "Retry": "retry",
}
_DECIDED: Final = {
    "Approve": "aaa.tool.approved",
    "Reject": "aaa.tool.rejected",
    **dict.fromkeys(_RESOLUTIONS, "aaa.tool.resolved"),
}


@dataclass(slots=True)
class Report:
    """What came of a plan's actions."""

    done: int = 0
    #: Actions that found the world changed: plan again at once.
    stale: int = 0
    #: What failed, a sentence each: plan again after a back-off.
    failures: list[str] = field(default_factory=list)
    retry_after_s: float = 0.0
    #: What will be refused again until somebody mends it.
    hindered: list[tuple[act.Action, Problem]] = field(default_factory=list)
    #: Uids of the objects whose status was written.
    written: list[str] = field(default_factory=list)
    #: Each action with what became of it: ``done``, ``stale``, or the failure's reason.
    results: list[tuple[act.Action, str]] = field(default_factory=list)


class Applier:
    """Carries out the actions of one namespace. ``client`` is ``None`` while there is no store."""

    def __init__(self, api: Api, client: Client | None, *, namespace: str, now_ms: int) -> None:
        self._api, self._client = api, client
        self._namespace, self._now_ms = namespace, now_ms

    async def carry_out(self, actions: Sequence[act.Action]) -> Report:
        """All of them, in order. Never raises for what an API server or a store may answer."""
        report = Report()
        for action in actions:
            try:
                await self._one(action, report)
                report.done += 1
                report.results.append((action, "done"))
                log.info("%s: %s", type(action).__name__, action.reason)
            except ApiFailure as failure:
                self._failed(action, failure, report)
            except AAAError as error:
                if isinstance(error, AccessRefused):
                    report.hindered.append((action, Problem("AccessRefused", str(error))))
                report.failures.append(f"{type(action).__name__}: {error}")
                report.results.append((action, type(error).__name__))
        for said in report.failures:
            log.warning("%s", said)
        return report

    def _failed(self, action: act.Action, failure: ApiFailure, report: Report) -> None:
        if failure.stale or failure.gone:
            report.stale += 1
            report.results.append((action, "stale"))
            return
        lasting = hindrance(failure.status, str(failure))
        if lasting is not None:
            report.hindered.append((action, lasting))
        report.results.append((action, failure.reason))
        report.failures.append(f"{type(action).__name__} ({action.reason}): {failure}")
        report.retry_after_s = max(report.retry_after_s, failure.retry_after_s or 0.0)

    async def _one(self, action: act.Action, report: Report) -> None:
        match action:
            case act.WriteStatus():
                await self._write_status(action.kind, action)
                report.written.append(action.uid)
            case act.Submit() | act.Require() | act.Control() | act.Decide():
                await self._store(action)
            case act.Evict() | act.DeletePod():
                await self._remove_pod(action)
            case act.Admit() | act.Expel():
                await self._tenant(action)
            case _:
                await self._object(action)

    # ---------------------------------------------------------------------------- the API server

    async def _object(self, action: act.Action) -> None:
        api, namespace = self._api, self._namespace
        match action:
            case act.Apply():
                await api.apply(action.object, namespace=namespace)
            case act.Delete():
                await api.delete(action.kind, action.name, namespace=namespace, uid=action.uid)
            case act.SetFinalizers():
                change = {
                    "op": "add",
                    "path": "/metadata/finalizers",
                    "value": list(action.finalizers),
                }
                await api.patch_version(
                    "AgentRun",
                    action.name,
                    [change],
                    namespace=namespace,
                    resource_version=action.resource_version,
                )
            case act.Annotate():
                notes = {"metadata": {"annotations": dict(action.annotations)}}
                await api.merge(action.kind, action.name, notes, namespace=namespace)
            case act.Scale():
                patch = {"spec": {"replicas": action.replicas}}
                await api.merge(
                    "Deployment", action.pool, patch, namespace=namespace, below="scale"
                )
            case act.PutBack():
                await self._put_back(action)
            case _:
                raise AssertionError(f"nobody carries out {action!r}")

    async def _put_back(self, action: act.PutBack) -> None:
        change = {"op": "replace", "path": "/spec/template", "value": dict(action.template)}
        live = await self._api.patch_version(
            "Deployment",
            action.name,
            [change],
            namespace=self._namespace,
            resource_version=action.resource_version,
        )
        # What the API server makes of the template today, which may be more than it once was.
        mark = {names.LIVE_TEMPLATE: digest(live["spec"]["template"])}
        patch = {"metadata": {"annotations": mark}}
        await self._api.merge("ControllerRevision", action.name, patch, namespace=self._namespace)

    async def _write_status(self, kind: str, action: act.WriteStatus | act.Decide) -> None:
        change = {"op": "add", "path": "/status", "value": dict(action.status)}
        await self._api.patch_version(
            kind,
            action.name,
            [change],
            namespace=self._namespace,
            resource_version=action.resource_version,
            below="status",
        )

    async def _remove_pod(self, action: act.Evict | act.DeletePod) -> None:
        """Its evidence is written down first: what follows may be the last that we do."""
        record = EvictionRecord(self._api, namespace=self._namespace)
        try:
            await record.note(action, evictions.ASKED, now_ms=self._now_ms)
            await self._ask_to_go(action)
        except ApiFailure as failure:
            changed = failure.stale or failure.gone
            outcome = evictions.CHANGED if changed else f"Refused ({failure.reason})"
            await record.note(action, outcome, now_ms=self._now_ms)
            raise
        outcome = evictions.EVICTED if isinstance(action, act.Evict) else evictions.DELETED
        await record.note(action, outcome, now_ms=self._now_ms)
        await self._api.create("Event", self._event(action), namespace=self._namespace)

    async def _ask_to_go(self, action: act.Evict | act.DeletePod) -> None:
        if isinstance(action, act.Evict):
            await self._api.evict(
                action.pod,
                namespace=self._namespace,
                uid=action.uid,
                resource_version=action.resource_version,
                grace_s=action.grace_s,
            )
        else:
            await self._api.delete(
                "Pod", action.pod, namespace=self._namespace, uid=action.uid, grace_s=0
            )

    def _event(self, action: act.Evict | act.DeletePod) -> dict[str, Any]:
        """The evidence, beside the pod, as long as the cluster keeps events."""
        when = timestamp_of(self._now_ms)
        said = ", ".join(f"{key}={value}" for key, value in action.evidence.items())
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "generateName": f"{action.pod}-frozen-",
                "namespace": self._namespace,
                "annotations": {f"aaa.dev/{k}": str(v) for k, v in action.evidence.items()},
            },
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": action.pod,
                "namespace": self._namespace,
                "uid": action.uid,
            },
            "type": "Warning",
            "reason": "FrozenWorker",
            "message": f"{action.reason} ({said})"[:1000],
            "source": {"component": names.MANAGER},
            "firstTimestamp": when,
            "lastTimestamp": when,
            "count": 1,
        }

    # ---------------------------------------------------------------------------------- the store

    async def _tenant(self, action: act.Admit | act.Expel) -> None:
        """The server first: no Secret tells of a user who is not there."""
        if self._client is None:
            raise AssertionError(f"no store, and yet: {action!r}")
        api, namespace = self._api, self._namespace
        match action:
            case act.Admit():
                await self._client.users.admit(action.user, action.digests)
                if action.secret is not None:
                    await api.apply(action.secret, namespace=namespace)
            case act.Expel():
                await self._client.users.expel(action.user)
                if action.secret_uid is not None:
                    await api.delete(
                        "Secret", action.secret, namespace=namespace, uid=action.secret_uid
                    )

    async def _store(self, action: act.Submit | act.Require | act.Control | act.Decide) -> None:
        client = self._client
        if client is None:
            raise AssertionError(f"no store, and yet: {action!r}")
        match action:
            case act.Submit():
                await client.submit(
                    action.app,
                    dict(action.input),
                    run_id=action.run_id,
                    deadline_s=action.deadline_s,
                    policy=action.policy,
                )
            case act.Require():
                await client.require_policy(action.run_id, action.policy)
            case act.Control(verb="cancel"):
                await client.cancel(action.run_id, by=action.by, reason=action.reason)
            case act.Control(verb="suspend"):
                await client.suspend(action.run_id, by=action.by)
            case act.Control():
                await client.resume(action.run_id, by=action.by)
            case act.Decide():
                await self._decide(client, action)

    async def _decide(self, client: Client, action: act.Decide) -> None:
        """Carry the decision to the store, where the first one wins; then say what became of it."""
        judged = await self._taken(client, action)
        log.info(
            "%s decided %s on call %s of run %s: %s (%s)",
            action.by,
            action.decision,
            action.call_id,
            action.run_id,
            judged.reason,
            action.why or "no reason given",
        )
        status = status_with(
            action.status, judged, now_ms=self._now_ms, generation=action.generation
        )
        await self._write_status(
            "ToolDecision",
            act.WriteStatus(
                kind="ToolDecision",
                name=action.name,
                uid=action.uid,
                resource_version=action.resource_version,
                status=status,
                reason=judged.reason,
            ),
        )

    async def _taken(self, client: Client, action: act.Decide) -> Judged:
        try:
            await self._decided(client, action)
        except DecisionRefused as error:
            if await _stands_already(client, action):
                return yes("Accepted", "Taken", f"taken as {action.by}'s word")
            return no("Accepted", "Refused", str(error))
        except (CallNotFound, RunDeleted, RunNotFound) as error:
            return no("Accepted", "Refused", f"{error}; look at the run again")
        return yes("Accepted", "Taken", f"taken as {action.by}'s word")

    async def _decided(self, client: Client, action: act.Decide) -> None:
        run_id, call_id, by = action.run_id, action.call_id, action.by
        if action.decision == "Approve":
            for_s = ((action.expires_ms or self._now_ms) - self._now_ms) / 1000
            await client.approve(
                run_id, call_id, by=by, args_digest=action.args_digest, for_s=max(0.001, for_s)
            )
        elif action.decision == "Reject":
            await client.reject(run_id, call_id, by=by, reason=action.why)
        else:
            await client.resolve(
                run_id,
                call_id,
                _RESOLUTIONS[action.decision],
                by=by,
                result=action.result,
                reason=action.why,
            )


async def _stands_already(client: Client, action: act.Decide) -> bool:
    """Whether the log holds this very decision: the operator died before it could say so."""
    return any(
        event.type == _DECIDED[action.decision]
        and event.data.get("call_id") == action.call_id
        and event.data.get("by") == action.by
        and event.data.get("args_digest", action.args_digest) == action.args_digest
        and event.data.get("outcome") == _RESOLUTIONS.get(action.decision)
        for event in await client.events(action.run_id)
    )
