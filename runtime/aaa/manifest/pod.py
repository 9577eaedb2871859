"""The parts of a pod that an agent may choose: a small, bounded slice of Kubernetes' own API.

Affinity keeps Kubernetes' free form: the API server judges it when it makes the pod.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from aaa.manifest.base import DataKey, FieldProblem, Model, ObjectName, form
from aaa.manifest.metadata import LabelKey, LabelValue

#: Variables that belong to the runtime, the interpreter and the loader.
RESERVED_ENV = ("AAA_", "PYTHON", "LD_")


def _quantity(value: object) -> object:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if is_number else value


Quantity = Annotated[
    str,
    BeforeValidator(_quantity),
    Field(
        max_length=32,
        pattern=form(
            r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]+)?$",
            "must be a quantity like 500m or 1Gi",
        ),
    ),
]


class KeyRef(Model):
    """One key of a ConfigMap or Secret of the same namespace."""

    name: ObjectName = Field(description="The object's name.")
    key: DataKey = Field(description="The key in its data.")
    optional: bool = Field(default=False, description="Whether the object or key may be missing.")


class FieldRef(Model):
    """A field of the pod itself."""

    field_path: str = Field(min_length=1, max_length=253, description="For example metadata.name.")


class EnvSource(Model):
    """Where a variable's value comes from; exactly one of the three."""

    secret_key_ref: KeyRef | None = Field(default=None, description="A key of a Secret.")
    config_map_key_ref: KeyRef | None = Field(default=None, description="A key of a ConfigMap.")
    field_ref: FieldRef | None = Field(default=None, description="A field of the pod.")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        """Exactly one source is given."""
        given = [self.secret_key_ref, self.config_map_key_ref, self.field_ref]
        if sum(one is not None for one in given) != 1:
            raise ValueError("needs exactly one of secretKeyRef, configMapKeyRef and fieldRef")
        return self


class EnvVar(Model):
    """An environment variable of the worker."""

    name: str = Field(
        min_length=1,
        max_length=253,
        pattern=form(r"^[A-Za-z_][A-Za-z0-9_]*$", "must be a variable's name"),
        description="The variable's name; AAA_*, PYTHON* and LD_* are reserved.",
    )
    value: str | None = Field(default=None, max_length=32_768, description="Its value.")
    value_from: EnvSource | None = Field(default=None, description="Where its value comes from.")

    @model_validator(mode="after")
    def _allowed(self) -> Self:
        """A reserved name is refused; value and valueFrom exclude each other."""
        if self.name.startswith(RESERVED_ENV):
            raise FieldProblem(f"{self.name!r} is reserved, as are AAA_*, PYTHON* and LD_*", "name")
        if self.value is not None and self.value_from is not None:
            raise FieldProblem("cannot stand beside value; keep one", "valueFrom")
        return self


class Resources(Model):
    """What a worker's container asks for and may use at most."""

    requests: dict[LabelKey, Quantity] = Field(
        default_factory=dict, max_length=16, description="Asked for, for example cpu: 500m."
    )
    limits: dict[LabelKey, Quantity] = Field(
        default_factory=dict, max_length=16, description="Never exceeded."
    )


class LocalRef(Model):
    """An object of the same namespace."""

    name: ObjectName = Field(description="The object's name.")


class Toleration(Model):
    """A node's taint that the pod puts up with."""

    key: LabelKey | None = Field(
        default=None, description="The taint's key; every key if left out."
    )
    operator: Literal["Exists", "Equal"] | None = Field(
        default=None, description="How the value is compared; Equal if left out."
    )
    value: LabelValue | None = Field(default=None, description="The taint's value.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="The effect; every one if left out."
    )
    toleration_seconds: int | None = Field(
        default=None,
        ge=0,
        le=31_536_000,
        description="How long a NoExecute taint is borne, in seconds.",
    )


class Affinity(Model):
    """Rules about nodes and neighbours, in Kubernetes' own form."""

    node_affinity: dict[str, Any] | None = Field(
        default=None, max_length=8, description="Which nodes."
    )
    pod_affinity: dict[str, Any] | None = Field(
        default=None, max_length=8, description="Near which pods."
    )
    pod_anti_affinity: dict[str, Any] | None = Field(
        default=None, max_length=8, description="Away from which pods."
    )
