"""AgentRun: one run of an agent, on a laptop or in a cluster."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from aaa.manifest.base import (
    Condition,
    DataKey,
    FieldProblem,
    Model,
    ObjectName,
    Resource,
    Sentence,
    StatusModel,
    Timestamp,
    form,
    list_map,
    refuse_repeated,
)
from aaa.manifest.metadata import LabelKey, LabelValue, Metadata
from aaa.manifest.pod import Affinity, EnvVar, LocalRef, Resources, Toleration

#: Most bytes of an inline input, as JSON.
MAX_INPUT_BYTES = 65_536
#: Most bytes of a result that stands in a status, as JSON.
MAX_RESULT_BYTES = 8_192

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
AppPath = Annotated[
    str,
    Field(
        min_length=3,
        max_length=255,
        pattern=form(rf"^{_NAME}(\.{_NAME})*:{_NAME}(\.{_NAME})*$", "must be module:attribute"),
    ),
]
Identity = Annotated[str, Field(min_length=1, max_length=253)]


class ConfigMapRef(Model):
    """A ConfigMap of the run's namespace."""

    name: ObjectName = Field(description="The ConfigMap's name.")


class ConfigMapKeyRef(Model):
    """One key of a ConfigMap of the run's namespace."""

    name: ObjectName = Field(description="The ConfigMap's name.")
    key: DataKey = Field(default="input.json", description="The key that holds a JSON object.")


class SecretRef(Model):
    """A Secret of the run's namespace that carries the label aaa.dev/store."""

    name: ObjectName = Field(description="The Secret's name.")
    key: DataKey = Field(default="url", description="The key that holds the store's URL.")


class AgentSource(Model):
    """The agent's code when no image was built for it."""

    config_map_ref: ConfigMapRef = Field(
        description="A ConfigMap of Python files, mounted beside the stock worker image."
    )


class Agent(Model):
    """The agent application and the pods that its workers run in."""

    app: AppPath = Field(
        description="The agent application as module:attribute, in the image or on the laptop."
    )
    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        pattern=form(r"^\S+$", "must be an image without spaces"),
        description="The worker image; the stock image if left out.",
    )
    source: AgentSource | None = Field(
        default=None, description="The agent's code for the stock worker image."
    )
    env: list[EnvVar] = Field(
        default_factory=list,
        max_length=128,
        description="Environment variables of the worker.",
        json_schema_extra=list_map("name"),
    )
    resources: Resources | None = Field(default=None, description="CPU and memory of a worker.")
    service_account_name: ObjectName | None = Field(
        default=None,
        description='The workers\' service account; it carries the label aaa.dev/worker: "true".',
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        default=None, description="When the image is pulled; Kubernetes' rule if left out."
    )
    image_pull_secrets: list[LocalRef] = Field(
        default_factory=list,
        max_length=16,
        description="Secrets for the image's registry.",
        json_schema_extra=list_map("name"),
    )
    node_selector: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, max_length=32, description="Labels that a node must have."
    )
    tolerations: list[Toleration] = Field(
        default_factory=list, max_length=32, description="Taints that the workers put up with."
    )
    affinity: Affinity | None = Field(default=None, description="Rules about nodes and neighbours.")

    @field_validator("env", "image_pull_secrets")
    @classmethod
    def _names_once(cls, value: list[Any]) -> list[Any]:
        """Each name stands once."""
        refuse_repeated(value)
        return value


class RunInput(Model):
    """The run's input: any object, or only ``configMapRef``, which is therefore a reserved key."""

    model_config = ConfigDict(extra="allow")

    config_map_ref: ConfigMapKeyRef | None = Field(
        default=None, description="A ConfigMap's key that holds the input as JSON; stands alone."
    )

    @model_validator(mode="after")
    def _inline_or_reference(self) -> Self:
        """Either inline values of at most 64 KiB, or a reference."""
        if self.config_map_ref is not None and self.model_extra:
            raise ValueError("has both configMapRef and other fields; configMapRef stands alone")
        size = _json_bytes(self.inline)
        if size > MAX_INPUT_BYTES:
            raise ValueError(
                f"has {size} bytes as JSON; at most {MAX_INPUT_BYTES} may stand inline"
            )
        return self

    @property
    def inline(self) -> dict[str, Any]:
        """The inline object; empty when the input is a reference."""
        return dict(self.model_extra or {})


class Store(Model):
    """Where the run's events are kept."""

    secret_ref: SecretRef = Field(description="A Secret that holds the store's URL.")


class Workers(Model):
    """The size of a dedicated pool."""

    min_replicas: int | None = Field(
        default=None, ge=0, le=1000, description="Fewest workers while there is work."
    )
    max_replicas: int | None = Field(default=None, ge=1, le=1000, description="Most workers.")
    concurrency: int | None = Field(
        default=None, ge=1, le=1024, description="Calls that one worker runs at a time."
    )

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        """MinReplicas is at most maxReplicas."""
        low, high = self.min_replicas, self.max_replicas
        if low is not None and high is not None and low > high:
            raise FieldProblem(f"is {low}, above maxReplicas {high}", "minReplicas")
        return self


class AgentRunSpec(Model):
    """What is to run. The agent cannot be changed once the run has an id."""

    agent: Agent = Field(description="The agent application and its workers.")
    input: RunInput = Field(
        default_factory=RunInput,
        description="The run's input: an object of at most 64 KiB, or configMapRef.",
    )
    run_key: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        pattern=form(
            r"^[A-Za-z0-9]([-A-Za-z0-9_.:]*[A-Za-z0-9])?$",
            "must begin and end with a letter or digit, with -, _, . and : between",
        ),
        description="Immutable. The same key in a namespace is the same run, also after deleting and applying again.",
    )
    store: Store | None = Field(
        default=None, description="The run's store; the installation's default if left out."
    )
    policy_refs: list[LocalRef] = Field(
        default_factory=list,
        max_length=32,
        description="Policies that must be bound before the run starts.",
        json_schema_extra=list_map("name"),
    )
    isolation: Literal["Shared", "Dedicated"] = Field(
        default="Shared",
        description="Whether the run shares a worker pool with runs of the same template.",
    )
    workers: Workers | None = Field(
        default=None, description="The pool's size; only with Dedicated."
    )
    desired_state: Literal["Running", "Suspended", "Cancelled"] = Field(
        default="Running", description="Suspended starts nothing new; Cancelled ends the run."
    )
    active_deadline_seconds: int | None = Field(
        default=None, ge=1, le=31_536_000, description="Seconds after which the run is cancelled."
    )
    drain_timeout_seconds: int | None = Field(
        default=None,
        ge=0,
        le=86_400,
        description="Seconds that calls get to end when workers stop.",
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None,
        ge=0,
        le=315_360_000,
        description="Seconds after which a finished AgentRun is deleted; never if left out.",
    )
    deletion_policy: Literal["Drain", "DrainThenForce", "Force"] = Field(
        default="Drain", description="What deleting the AgentRun does with calls in flight."
    )

    @field_validator("policy_refs")
    @classmethod
    def _names_once(cls, value: list[LocalRef]) -> list[LocalRef]:
        """Each policy stands once."""
        refuse_repeated(value)
        return value

    @model_validator(mode="after")
    def _workers_only_dedicated(self) -> Self:
        """A shared pool is sized by the installation, not by one of its runs."""
        if self.workers is not None and self.isolation != "Dedicated":
            raise FieldProblem("may only be given with isolation: Dedicated", "workers")
        return self


class ToolCalls(StatusModel):
    """How many calls are in which state."""

    requested: int = Field(default=0, ge=0, description="Calls asked for so far.")
    running: int = Field(default=0, ge=0, description="Calls that an attempt runs now.")
    completed: int = Field(default=0, ge=0, description="Calls with a result.")
    failed: int = Field(default=0, ge=0, description="Calls that failed.")
    unknown: int = Field(default=0, ge=0, description="Calls whose effect is unknown.")


class PoolStatus(StatusModel):
    """The worker pool that serves the run."""

    name: str = Field(max_length=253, description="The pool's name.")
    hash: str = Field(max_length=128, description="The hash of its pod template.")
    image_ids: list[Annotated[str, Field(max_length=1024)]] = Field(
        default_factory=list, alias="imageIDs", max_length=16, description="The images' digests."
    )


class PolicyStatus(StatusModel):
    """The policy in force."""

    name: str = Field(default="", max_length=1024, description="The policies' names.")
    hash: str = Field(max_length=128, description="The hash of what they say.")


class OpenCall(StatusModel):
    """A call that waits for a person."""

    call_id: Identity = Field(description="The call's id.")
    tool: Identity = Field(description="The tool's name.")
    args_digest: Identity = Field(
        description="The digest of its arguments, to be named in a ToolDecision."
    )
    since: Timestamp | None = Field(default=None, description="Since when it waits.")
    message: Sentence = Field(default="", description="Why it waits.")


class AgentRunStatus(StatusModel):
    """Written by the operator; never read as a wish."""

    observed_generation: int | None = Field(
        default=None, ge=0, description="The generation that was judged."
    )
    run_id: Identity | None = Field(default=None, description="The run's id in the store.")
    store_id: Identity | None = Field(default=None, description="The store's identity.")
    input_digest: Identity | None = Field(
        default=None, description="The digest of the accepted input."
    )
    start_time: Timestamp | None = Field(default=None, description="When the run began.")
    completion_time: Timestamp | None = Field(default=None, description="When the run ended.")
    result: Any = Field(
        default=None,
        description="The result, of at most 8 KiB; a longer one by reference.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    tool_calls: ToolCalls | None = Field(default=None, description="Counters of the run's calls.")
    pool: PoolStatus | None = Field(default=None, description="The pool that serves the run.")
    policy: PolicyStatus | None = Field(default=None, description="The policy in force.")
    pending_approvals: list[OpenCall] = Field(
        default_factory=list,
        max_length=32,
        description="Calls that wait for approval; the first ones.",
    )
    unknown_outcomes: list[OpenCall] = Field(
        default_factory=list,
        max_length=32,
        description="Calls whose effect is unknown; the first ones.",
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        description="What holds.",
        json_schema_extra=list_map("type"),
    )


class AgentRun(Resource):
    """One run of an agent."""

    api_version: Literal["aaa.dev/v1alpha1"] = Field(
        default="aaa.dev/v1alpha1", description="The API's version."
    )
    kind: Literal["AgentRun"] = Field(default="AgentRun", description="The kind.")
    metadata: Metadata = Field(description="Name, namespace, labels.")
    spec: AgentRunSpec = Field(description="What is to run.")
    status: AgentRunStatus | None = Field(
        default=None, description="What is; written by the operator."
    )


def _json_bytes(value: object) -> int:
    return len(
        json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    )
