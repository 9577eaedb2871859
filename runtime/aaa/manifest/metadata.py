"""Object metadata and label selectors, as far as manifests need them.

Metadata knows every field that Kubernetes gives an object, so that what ``kubectl get -o yaml``
prints loads again, and refuses any other: a misspelt ``labels`` would silently unbind a policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from aaa.manifest.base import FieldProblem, Model, ObjectName, form

_LABEL_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
LabelKey = Annotated[
    str,
    Field(
        min_length=1,
        max_length=317,
        pattern=form(
            rf"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_LABEL_NAME}$", "must be a label's key"
        ),
    ),
]
LabelValue = Annotated[
    str,
    Field(
        max_length=63,
        pattern=form(rf"^({_LABEL_NAME})?$", "must consist of letters, digits, -, _ and ."),
    ),
]
Labels = dict[LabelKey, LabelValue]


class Metadata(Model):
    """The part of an object that Kubernetes itself defines."""

    model_config = ConfigDict(extra="forbid")

    name: ObjectName = Field(description="The object's name, unique in its namespace.")
    namespace: ObjectName | None = Field(
        default=None, description="The namespace; the current one by default."
    )
    labels: Labels = Field(
        default_factory=dict,
        max_length=64,
        description="Labels; a ToolPolicy selects runs by them.",
    )
    annotations: dict[str, str] = Field(
        default_factory=dict, max_length=256, description="Notes for tools."
    )
    generate_name: str | None = Field(default=None, max_length=253, description="Kept, not used.")
    uid: str | None = Field(default=None, max_length=128, description="Given by the API server.")
    resource_version: str | None = Field(
        default=None, max_length=128, description="Given by the API server."
    )
    generation: int | None = Field(default=None, ge=0, description="Counts changes of the spec.")
    # The rest belongs to the API server: accepted, whatever it holds.
    creation_timestamp: Any = Field(default=None, description="Given by the API server.")
    deletion_timestamp: Any = Field(default=None, description="Given by the API server.")
    deletion_grace_period_seconds: Any = Field(default=None, description="Given by the API server.")
    self_link: Any = Field(default=None, description="No longer used by Kubernetes.")
    owner_references: Any = Field(default=None, description="The objects that own this one.")
    finalizers: Any = Field(default=None, description="Who has to be asked before it goes.")
    managed_fields: Any = Field(default=None, description="Who set which field.")

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_null(cls, value: object) -> object:
        return value  # `creationTimestamp: null` is what kubectl itself prints


class LabelRequirement(Model):
    """One condition on a label."""

    key: LabelKey = Field(description="The label's key.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(
        description="How values are compared; NotIn also matches when the label is absent."
    )
    values: list[LabelValue] = Field(
        default_factory=list,
        max_length=64,
        description="Values for In and NotIn; must be left out otherwise.",
    )

    @model_validator(mode="after")
    def _values_fit_operator(self) -> Self:
        """In and NotIn need values; Exists and DoesNotExist take none."""
        wants = self.operator in ("In", "NotIn")
        if wants != bool(self.values):
            raise FieldProblem(
                f"{self.operator} {'needs' if wants else 'takes no'} values", "operator"
            )
        return self

    def matches(self, labels: Mapping[str, str]) -> bool:
        if self.operator == "Exists":
            return self.key in labels
        if self.operator == "DoesNotExist":
            return self.key not in labels
        return (labels.get(self.key) in self.values) == (self.operator == "In")


class LabelSelector(Model):
    """Selects runs by their labels. ``{}`` selects every run of the namespace."""

    match_labels: Labels = Field(
        default_factory=dict, max_length=64, description="Labels that must have these values."
    )
    match_expressions: list[LabelRequirement] = Field(
        default_factory=list, max_length=64, description="Conditions that must all hold."
    )

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with ``labels`` is selected; all parts must agree."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.matches(labels) for requirement in self.match_expressions
        )
