"""ToolDecision: one person's word on one call."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from aaa.manifest.base import (
    Condition,
    FieldProblem,
    Model,
    ObjectName,
    Resource,
    Sentence,
    StatusModel,
    Timestamp,
    form,
    list_map,
)
from aaa.manifest.metadata import Metadata

#: Most bytes of a result that a person hands in, as JSON.
MAX_DECISION_RESULT_BYTES = 8_192


class RunRef(Model):
    """The AgentRun that the call belongs to; the uid keeps out a later one of the same name."""

    name: ObjectName = Field(description="The AgentRun's name.")
    uid: Annotated[str, Field(min_length=1, max_length=128)] = Field(
        description="The AgentRun's uid."
    )


class ToolDecisionSpec(Model):
    """The decision. It cannot be changed."""

    run_ref: RunRef = Field(description="The run.")
    call_id: str = Field(
        min_length=1, max_length=253, description="The call's id, as in the run's status."
    )
    args_digest: str = Field(
        min_length=16,
        max_length=160,
        pattern=form(r"^([a-z0-9-]+:)?[0-9a-f]{16,128}$", "must be a digest in hexadecimal digits"),
        description="The digest of the arguments that were judged, as in the run's status.",
    )
    decision: Literal["Approve", "Reject", "MarkDone", "MarkNotDone", "Retry"] = Field(
        description="Approve and Reject answer a call that requires approval; the others an unknown outcome."
    )
    result: Any = Field(
        default=None,
        description="What the call gave, as JSON of at most 8 KiB; only with MarkDone.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    reason: Sentence | None = Field(
        default=None, min_length=1, description="Why; needed with Reject."
    )
    decided_by: str = Field(
        min_length=1,
        max_length=253,
        description="Who decides: the user name that the API server knows.",
    )
    expires_at: Timestamp | None = Field(
        default=None, description="When an approval that was not used lapses; needed with Approve."
    )

    @field_validator("expires_at")
    @classmethod
    def _is_moment(cls, value: str | None) -> str | None:
        """The date exists."""
        if value is not None:
            try:
                datetime.fromisoformat(value.upper())
            except ValueError:
                raise ValueError(f"{value!r} is not a date and time that exists") from None
        return value

    @model_validator(mode="after")
    def _parts_fit_decision(self) -> Self:
        """Approve needs expiresAt, Reject needs a reason, only MarkDone carries a result."""
        if self.decision == "Approve" and self.expires_at is None:
            raise FieldProblem("is missing; an approval has an end", "expiresAt")
        if self.decision == "Reject" and self.reason is None:
            raise FieldProblem("is missing; say why the call is rejected", "reason")
        if self.result is not None:
            if self.decision != "MarkDone":
                raise FieldProblem(f"is only for MarkDone, not for {self.decision}", "result")
            size = len(json.dumps(self.result, ensure_ascii=False, allow_nan=False).encode())
            if size > MAX_DECISION_RESULT_BYTES:
                raise FieldProblem(
                    f"has {size} bytes as JSON; at most {MAX_DECISION_RESULT_BYTES} may stand here",
                    "result",
                )
        return self


class ToolDecisionStatus(StatusModel):
    """Written by the operator."""

    observed_generation: int | None = Field(
        default=None, ge=0, description="The generation that was judged."
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        description="What holds.",
        json_schema_extra=list_map("type"),
    )


class ToolDecision(Resource):
    """One person's word on one call."""

    api_version: Literal["aaa.dev/v1alpha1"] = Field(
        default="aaa.dev/v1alpha1", description="The API's version."
    )
    kind: Literal["ToolDecision"] = Field(default="ToolDecision", description="The kind.")
    metadata: Metadata = Field(description="Name, namespace, labels.")
    spec: ToolDecisionSpec = Field(description="The decision.")
    status: ToolDecisionStatus | None = Field(default=None, description="What became of it.")
