"""ToolPolicy: how the tools of the selected runs may be called.

No field has a default: what a policy doesn't say leaves the other layers alone. The rules are
those of :mod:`aaa.policy`, which this module only translates: camelCase into snake_case, enums
into the runtime's words, integers with their unit into seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from aaa.errors import ConfigError
from aaa.manifest.base import (
    Condition,
    Model,
    Resource,
    StatusModel,
    form,
    list_map,
    refuse_repeated,
)
from aaa.manifest.metadata import LabelSelector, Metadata
from aaa.policy import ToolEntry, ToolPolicyRules, check_overrides, check_template

if TYPE_CHECKING:
    from aaa.manifest.agentrun import AgentRun

_ENUMS = {
    "AtLeastOnce": "at_least_once",
    "AtMostOnce": "at_most_once",
    "Cancel": "cancel",
    "Finish": "finish",
}
ToolName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=128,
        pattern=form(
            r"^([A-Za-z_][A-Za-z0-9_.-]*\*?|\*)$",
            "must be a tool's name, or the beginning of one followed by *",
        ),
    ),
]


class GuardSettings(Model):
    """Fields of a GuardConfig; each may be left out."""

    enabled: bool | None = Field(
        default=None, description="False: no lease and no attempt records."
    )
    delivery: Literal["AtLeastOnce", "AtMostOnce"] | None = Field(
        default=None,
        description="AtLeastOnce runs a lost call again; AtMostOnce reports it as OutcomeUnknown.",
    )
    max_attempts: int | None = Field(
        default=None, ge=1, le=1000, description="Most executions of one call under AtLeastOnce."
    )
    lease_ttl_seconds: int | None = Field(
        default=None, ge=1, le=86_400, description="Seconds that a silent worker keeps its claim."
    )
    heartbeat_seconds: int | None = Field(
        default=None,
        ge=1,
        le=86_399,
        description="Seconds between renewals; below leaseTtlSeconds; a third of it if left out everywhere.",
    )
    wait_poll_milliseconds: int | None = Field(
        default=None,
        ge=1,
        le=3_600_000,
        description="Milliseconds after a lease's end by which a worker has looked at the call again.",
    )
    on_lost_lease: Literal["Cancel", "Finish"] | None = Field(
        default=None, description="What a worker does with a tool whose lease it lost."
    )
    fence_results: bool | None = Field(
        default=None, description="Whether the outcome of a superseded attempt is refused."
    )

    @model_validator(mode="after")
    def _stands_by_itself(self) -> Self:
        """HeartbeatSeconds is below leaseTtlSeconds; a disabled guard can hold on to nothing."""
        try:
            check_overrides(self.overrides())
        except ConfigError as error:
            raise ValueError(f"contradicts itself: {error}") from None
        return self

    def overrides(self) -> dict[str, object]:
        """What is said, in the runtime's names and units."""
        seconds = {
            "lease_ttl_s": self.lease_ttl_seconds,
            "heartbeat_s": self.heartbeat_seconds,
            "wait_poll_s": None
            if self.wait_poll_milliseconds is None
            else self.wait_poll_milliseconds / 1000,
        }
        said: dict[str, object] = {
            "enabled": self.enabled,
            "delivery": self.delivery and _ENUMS[self.delivery],
            "max_attempts": self.max_attempts,
            **{name: None if value is None else float(value) for name, value in seconds.items()},
            "on_lost_lease": self.on_lost_lease and _ENUMS[self.on_lost_lease],
            "fence_results": self.fence_results,
        }
        return {name: value for name, value in said.items() if value is not None}


class ToolSettingsEntry(GuardSettings):
    """What holds for one tool, or for all tools whose names begin alike."""

    name: ToolName = Field(
        description="A tool's exact name, or a prefix ending in *; the longest match wins; a prefix only tightens."
    )
    requires_approval: bool | None = Field(
        default=None, description="Whether a person approves each call before its first attempt."
    )
    timeout_seconds: int | None = Field(
        default=None, ge=1, le=604_800, description="Time limit of one attempt, in seconds."
    )
    idempotency_key: str | None = Field(
        default=None,
        min_length=3,
        max_length=256,
        description="A template over the arguments, for example refund:{order_id}.",
    )

    @field_validator("idempotency_key")
    @classmethod
    def _is_template(cls, value: str | None) -> str | None:
        """The template names at least one argument and has no formats, indexes or attributes."""
        return value if value is None else check_template(value)

    def overrides(self) -> dict[str, object]:
        said: dict[str, object] = {
            "requires_approval": self.requires_approval,
            "timeout_s": None if self.timeout_seconds is None else float(self.timeout_seconds),
            "idempotency_key": self.idempotency_key,
        }
        own = {name: value for name, value in said.items() if value is not None}
        return {**super().overrides(), **own}


class ToolPolicySpec(Model):
    """Which runs, and what holds for their tools."""

    selector: LabelSelector = Field(
        description="The runs of the namespace that the policy binds; {} is every run."
    )
    defaults: GuardSettings | None = Field(
        default=None, description="For every tool; a tool's own declaration overrides it."
    )
    tools: list[ToolSettingsEntry] = Field(
        default_factory=list,
        max_length=256,
        description="For single tools; an exact name overrides a tool's own declaration.",
        json_schema_extra=list_map("name"),
    )
    unlisted_tools: Literal["Allow", "Deny"] | None = Field(
        default=None, description="Whether tools that the policy does not list may be called."
    )

    @field_validator("tools")
    @classmethod
    def _names_once(cls, value: list[ToolSettingsEntry]) -> list[ToolSettingsEntry]:
        """Each name stands once."""
        refuse_repeated(value)
        return value


class ToolPolicyStatus(StatusModel):
    """Written by the operator."""

    observed_generation: int | None = Field(
        default=None, ge=0, description="The generation that was judged."
    )
    hash: str | None = Field(
        default=None, max_length=128, description="The hash of what the policy says."
    )
    bound_runs: int | None = Field(default=None, ge=0, description="Runs that the policy binds.")
    unmatched_tools: list[ToolName] = Field(
        default_factory=list, max_length=256, description="Entries that no known tool matches."
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        description="What holds.",
        json_schema_extra=list_map("type"),
    )


class ToolPolicy(Resource):
    """How the tools of the selected runs may be called."""

    api_version: Literal["aaa.dev/v1alpha1"] = Field(
        default="aaa.dev/v1alpha1", description="The API's version."
    )
    kind: Literal["ToolPolicy"] = Field(default="ToolPolicy", description="The kind.")
    metadata: Metadata = Field(description="Name, namespace, labels.")
    spec: ToolPolicySpec = Field(description="Which runs, and what holds for their tools.")
    status: ToolPolicyStatus | None = Field(
        default=None, description="What is; written by the operator."
    )

    def selects(self, run: AgentRun) -> bool:
        """Whether the policy binds the run: its namespace, and its labels by the selector."""
        return self.metadata.namespace == run.metadata.namespace and self.spec.selector.matches(
            run.metadata.labels
        )

    def rules(self) -> ToolPolicyRules:
        """What the policy says, as the data that :func:`aaa.policy.compile_settings` takes."""
        spec = self.spec
        unlisted: dict[str | None, Literal["allow", "deny"]] = {"Allow": "allow", "Deny": "deny"}
        return ToolPolicyRules(
            name=self.metadata.name,
            defaults=spec.defaults.overrides() if spec.defaults else {},
            tools=[ToolEntry(name=tool.name, settings=tool.overrides()) for tool in spec.tools],
            unlisted_tools=unlisted.get(spec.unlisted_tools),
        )
