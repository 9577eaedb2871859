"""What a pass may ask for. Plain data: an action says what is to be done and why, and is compared
and logged as it stands. Only :mod:`aaa_operator.apply` carries one out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Server-side apply of a whole object; nothing is sent while the cluster has it already."""

    object: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete one object, and no later one of its name."""

    kind: str
    name: str
    uid: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStatus:
    """Replace an object's status, only if the object is still what was looked at."""

    kind: str
    name: str
    uid: str
    resource_version: str
    status: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFinalizers:
    """Replace an AgentRun's finalizers, only if the object is still what was looked at."""

    name: str
    resource_version: str
    finalizers: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotate:
    """Set annotations of an object (``None`` removes one)."""

    kind: str
    name: str
    annotations: Mapping[str, str | None]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBack:
    """Replace a Deployment's whole pod template by the one of its revision."""

    name: str
    resource_version: str
    template: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Set a pool's number of pods."""

    pool: str
    replicas: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Evict one pod through the Eviction API, only if it is still what was looked at."""

    pod: str
    uid: str
    resource_version: str
    grace_s: int
    evidence: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePod:
    """Delete a pod that cannot be evicted, by its uid."""

    pod: str
    uid: str
    evidence: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """Let a namespace's workers into its part of the shared store: the server learns first."""

    user: str
    #: Of the passwords that let in.
    digests: tuple[str, ...]
    #: What tells the workers; ``None`` if it stands.
    secret: Mapping[str, Any] | None = field(repr=False)
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expel:
    """Remove a namespace's user, whom nobody needs, and the Secret that tells of it."""

    user: str
    secret: str
    #: ``None`` if the Secret has gone.
    secret_uid: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Create the run in the store if it is absent."""

    name: str
    run_id: str
    app: str
    input: Mapping[str, Any]
    deadline_s: float | None
    #: Hash of the policies that its calls must be claimed under.
    policy: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Require:
    """From now on the run's calls are claimed under the policies of this hash only."""

    run_id: str
    policy: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Cancel, suspend or resume a run in the store."""

    run_id: str
    verb: Literal["cancel", "suspend", "resume"]
    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decide:
    """Carry a person's decision to the store, and say in its status what became of it."""

    name: str
    uid: str
    resource_version: str
    generation: int
    status: Mapping[str, Any]
    run_id: str
    call_id: str
    args_digest: str
    decision: str
    by: str
    result: Any
    why: str
    #: Milliseconds since the epoch at which an approval ends.
    expires_ms: int | None
    reason: str


Action = (
    Apply
    | Delete
    | WriteStatus
    | SetFinalizers
    | Annotate
    | PutBack
    | Scale
    | Evict
    | DeletePod
    | Admit
    | Expel
    | Submit
    | Require
    | Control
    | Decide
)
