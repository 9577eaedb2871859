"""Raw objects into one frozen snapshot of a namespace: all that planning may look at.

A snapshot is complete: planning reads no clock and asks nobody. Objects that cannot be understood
stay in it with the reason (:class:`Problem`), so that it can be said in their status. What an
object's status says is read as memory of what was done, never as what is wished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol, TypeVar

from aaa.errors import ConfigError, ManifestError
from aaa.manifest import AgentRun, ToolDecision, ToolPolicy, parse_manifest
from aaa.manifest.problems import ManifestErrors
from aaa.policy import ToolPolicyRules
from aaa_operator import names

Raw = Mapping[str, Any]
_UNKNOWN_FIELD: Final = "is not a field here"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something cannot be accepted: a word for machines and a sentence for people."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What every object has."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    created_ms: int = 0
    deleted_ms: int | None = None
    finalizers: tuple[str, ...] = ()
    owner_uids: tuple[str, ...] = ()

    @property
    def deleting(self) -> bool:
        return self.deleted_ms is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeen:
    """An AgentRun. ``manifest`` is ``None`` when ``problem`` says why."""

    meta: Meta
    manifest: AgentRun | None
    problem: Problem | None
    status: Raw

    @property
    def run_id(self) -> str | None:
        return self.status.get("runId")

    @property
    def started(self) -> bool:
        return bool(self.status.get("startTime"))

    @property
    def finished(self) -> bool:
        return condition(self.status, "Finished") == "True"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySeen:
    """A ToolPolicy. ``rules`` is ``None`` when ``problem`` says why."""

    meta: Meta
    #: The selector's plain labels as written, also where the rest cannot be accepted.
    match_labels: Mapping[str, str]
    manifest: ToolPolicy | None
    rules: ToolPolicyRules | None
    problem: Problem | None
    status: Raw


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSeen:
    """A ToolDecision."""

    meta: Meta
    manifest: ToolDecision | None
    problem: Problem | None
    status: Raw


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """A worker's pod."""

    meta: Meta
    pool: str
    phase: str
    ready: bool
    #: Milliseconds since the epoch, by the kubelet; ``None`` while the container doesn't run.
    started_ms: int | None
    restarts: int
    image_id: str
    #: Why the container waits or has ended, as the kubelet says: ``ImagePullBackOff``.
    trouble: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool's objects, raw, as far as they are there."""

    name: str
    deployment: Raw | None = None
    config: Raw | None = None
    budget: Raw | None = None
    revision: Raw | None = None
    pods: tuple[PodSeen, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSeen:
    """A call that waits for a person."""

    call_id: str
    tool: str
    args_digest: str
    since_ms: int
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A run as the store has it."""

    app: str
    digest: str
    status: Literal["open", "completed", "failed", "cancelled"] = "open"
    created_ms: int = 0
    closed_ms: int | None = None
    cancelling: bool = False
    suspended: bool = False
    parked: bool = False
    parked_because: str = ""
    #: Hash of the policies that its calls are claimed under.
    policy: str = ""
    requested: int = 0
    running: int = 0
    #: Calls that are ready or running: what workers are needed for.
    busy: int = 0
    completed: int = 0
    failed: int = 0
    value: Any = None
    error: str = ""
    message: str = ""
    waiting: tuple[CallSeen, ...] = ()
    unknown: tuple[CallSeen, ...] = ()
    #: The workers that run its calls now.
    holders: frozenset[str] = frozenset()

    @property
    def ended(self) -> bool:
        return self.status != "open"


class ToolCode(Protocol):
    """What a pool's image itself says about one of its tools."""

    @property
    def name(self) -> str: ...

    def settings(self, policies: Sequence[ToolPolicyRules]) -> object:
        """The merge under these policies; raises :class:`AAAError` for one that is invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCode:
    """All tools of a pool's image, from its workers' catalogues. Equal digests, equal tools."""

    digest: str
    tools: tuple[ToolCode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSeen:
    """The namespace's store. While ``problem`` stands nothing else in it means anything."""

    identity: str = ""
    problem: Problem | None = None
    #: By run id; a run that was looked for and is not there is absent.
    runs: Mapping[str, Progress] = field(default_factory=dict)
    #: Runs that were deleted from the store: their ids stay taken.
    deleted: frozenset[str] = frozenset()
    #: Full names of apps that live workers serve, by pool.
    apps: Mapping[str, str] = field(default_factory=dict)
    #: Policy hashes that every live worker of the pool has read, by pool.
    acknowledged: Mapping[str, frozenset[str]] = field(default_factory=dict)
    #: What the image's code says, by pool; absent while no worker lives that says all of it.
    code: Mapping[str, PoolCode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A namespace at one moment."""

    namespace: str
    namespace_uid: str
    now_ms: int
    terminating: bool = False
    runs: tuple[RunSeen, ...] = ()
    policies: tuple[PolicySeen, ...] = ()
    decisions: tuple[DecisionSeen, ...] = ()
    pools: Mapping[str, Pool] = field(default_factory=dict)
    #: ConfigMaps that runs refer to, and copies of sources, raw, by name.
    config_maps: Mapping[str, Raw] = field(default_factory=dict)
    #: Service accounts that carry the worker label.
    worker_accounts: frozenset[str] = frozenset()
    #: Secrets that carry the store label.
    store_secrets: frozenset[str] = frozenset()
    store: StoreSeen = field(default_factory=StoreSeen)
    #: When this process last wrote an object's status, by uid: counters alone wait ten seconds.
    written_ms: Mapping[str, int] = field(default_factory=dict)
    #: Runs that have frozen pods again and again, by run id: quarantined.
    quarantined: Mapping[str, Problem] = field(default_factory=dict)
    #: What the API server refused in the last pass, by pool, by ``run/<name>``, or ``""`` for all.
    hindered: Mapping[str, Problem] = field(default_factory=dict)
    #: What the operator may not read in this pass: then no absence means anything.
    unread: Problem | None = None
    #: Runs of the store that are ours and that no AgentRun claims, by their id.
    orphans: frozenset[str] = frozenset()
    #: Whether nothing may be taken away yet: the watch has not delivered all that stands, or the
    #: store could not be asked for orphans.
    nothing_goes: bool = False
    #: ``None`` while the admission policy that binds ``decidedBy`` stands as installed.
    decisions_barred: Problem | None = None


# ------------------------------------------------------------------------------------ reading


def meta_of(raw: Raw) -> Meta:
    found = raw.get("metadata") or {}
    return Meta(
        name=found.get("name", ""),
        namespace=found.get("namespace", ""),
        uid=found.get("uid", ""),
        resource_version=found.get("resourceVersion", ""),
        generation=found.get("generation", 0),
        labels=dict(found.get("labels") or {}),
        annotations=dict(found.get("annotations") or {}),
        created_ms=ms_of(found.get("creationTimestamp")) or 0,
        deleted_ms=ms_of(found.get("deletionTimestamp")),
        finalizers=tuple(found.get("finalizers") or ()),
        owner_uids=tuple(owner["uid"] for owner in found.get("ownerReferences") or ()),
    )


def run_of(raw: Raw) -> RunSeen:
    manifest, problem = _parsed(raw, AgentRun)
    return RunSeen(
        meta=meta_of(raw), manifest=manifest, problem=problem, status=raw.get("status") or {}
    )


def policy_of(raw: Raw) -> PolicySeen:
    manifest, problem = _parsed(raw, ToolPolicy)
    rules = None
    if manifest is not None:
        try:
            rules = manifest.rules()
        except ConfigError as error:
            manifest, problem = None, Problem("InvalidSpec", str(error))
    selector = (raw.get("spec") or {}).get("selector")
    wanted = selector.get("matchLabels") if isinstance(selector, Mapping) else None
    return PolicySeen(
        meta=meta_of(raw),
        match_labels=dict(wanted) if isinstance(wanted, Mapping) else {},
        manifest=manifest,
        rules=rules,
        problem=problem,
        status=raw.get("status") or {},
    )


def decision_of(raw: Raw) -> DecisionSeen:
    manifest, problem = _parsed(raw, ToolDecision)
    return DecisionSeen(
        meta=meta_of(raw), manifest=manifest, problem=problem, status=raw.get("status") or {}
    )


def pod_of(raw: Raw) -> PodSeen:
    status = raw.get("status") or {}
    containers: Sequence[Raw] = status.get("containerStatuses") or ()
    worker: Raw = next((c for c in containers if c.get("name") == names.WORKER_CONTAINER), {})
    state = worker.get("state") or {}
    meta = meta_of(raw)
    return PodSeen(
        meta=meta,
        pool=meta.labels.get(names.POOL, ""),
        phase=status.get("phase", "Unknown"),
        ready=bool(worker.get("ready")),
        started_ms=ms_of((state.get("running") or {}).get("startedAt")),
        restarts=worker.get("restartCount", 0),
        image_id=worker.get("imageID", ""),
        trouble=_trouble(meta.name, status, worker),
    )


def pod_of_worker(worker: str) -> str:
    """A worker in a pod is named ``<pod>-<process id>-<token>``; the container's host is the pod."""
    return worker.rsplit("-", 2)[0]


def condition(status: Raw, type_: str) -> str:
    """The status of one condition; ``Unknown`` if it was never judged."""
    found = next((c for c in status.get("conditions") or () if c.get("type") == type_), None)
    return "Unknown" if found is None else str(found.get("status", "Unknown"))


def ms_of(timestamp: str | None) -> int | None:
    """Milliseconds since the epoch of an RFC 3339 time."""
    if not timestamp:
        return None
    return round(datetime.fromisoformat(timestamp.upper()).timestamp() * 1000)


def timestamp_of(ms: int) -> str:
    """RFC 3339, to the second."""
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ------------------------------------------------------------------------------------- inside

_M = TypeVar("_M", AgentRun, ToolPolicy, ToolDecision)


def _parsed(raw: Raw, model: type[_M]) -> tuple[_M | None, Problem | None]:
    """The manifest without its status, which is the operator's own and judged by nobody."""
    wished = {key: value for key, value in raw.items() if key != "status"}
    wished.setdefault("apiVersion", names.API_VERSION)
    wished.setdefault("kind", model.__name__)
    try:
        manifest = parse_manifest(wished)
    except ManifestErrors as errors:
        unknown = any(_UNKNOWN_FIELD in error.reason for error in errors.errors)
        return None, Problem("UnknownField" if unknown else "InvalidSpec", str(errors))
    except ManifestError as error:
        return None, Problem("InvalidSpec", str(error))
    if not isinstance(manifest, model):
        return None, Problem("InvalidSpec", f"is a {manifest.kind}, not a {model.__name__}")
    return manifest, None


#: What the kubelet says of a container that will not run until somebody mends something.
_TROUBLE: Final = {
    "ImagePullBackOff": "the image cannot be pulled; check spec.agent.image and imagePullSecrets",
    "ErrImagePull": "the image cannot be pulled; check spec.agent.image and imagePullSecrets",
    "InvalidImageName": "spec.agent.image is not a valid image name",
    "ErrImageNeverPull": "the image is not on the node and imagePullPolicy is Never",
    "CreateContainerConfigError": "a Secret or ConfigMap that the pod refers to is missing",
    "CreateContainerError": "the container cannot be created",
    "CrashLoopBackOff": "the worker ends again and again; look at its log: kubectl logs --previous {pod}",
}


def _trouble(name: str, status: Raw, worker: Raw) -> Problem | None:
    waiting = (worker.get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason", "")
    if reason in _TROUBLE:
        ended = (worker.get("lastState") or {}).get("terminated") or {}
        details = [waiting.get("message", ""), (ended.get("message") or "").strip()]
        said = "; ".join(text for text in details if text)[:400]
        what = _TROUBLE[reason].format(pod=name)
        return Problem(reason, what + (f" ({said})" if said else ""))
    for found in status.get("conditions") or ():
        if found.get("type") == "PodScheduled" and found.get("status") == "False":
            return Problem("Unschedulable", f"no node takes the pod: {found.get('message', '')}")
    return None
