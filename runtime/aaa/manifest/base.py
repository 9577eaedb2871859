"""What all manifest models share: strictness, names, and where a field stands in its file.

Every model refuses unknown fields, refuses a value of another type instead of converting it (the
API server does the same), and refuses an explicit ``null``. In Python fields are snake_case; in a
manifest they are camelCase.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict

from aaa.errors import ManifestError

API_VERSION = "aaa.dev/v1alpha1"

#: A place inside a document: field names as written, and list indexes.
Path = tuple[str | int, ...]

#: What a pattern asks for, in words, for error messages.
FORMS: dict[str, str] = {}


def form(pattern: str, words: str) -> str:
    """``pattern``, remembered with the words that an error about it uses ("must be …")."""
    FORMS[pattern] = words
    return pattern


def list_map(key: str) -> JsonDict:
    """Schema extras of a list of objects that are told apart by ``key``."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


_DNS = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
#: A Kubernetes object's name.
ObjectName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=form(
            rf"^{_DNS}(\.{_DNS})*$", "must consist of lower-case letters, digits, - and ."
        ),
    ),
]
#: A key of a ConfigMap or Secret.
DataKey = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=form(r"^[-._a-zA-Z0-9]+$", "must consist of letters, digits, -, _ and ."),
    ),
]
#: A moment, RFC 3339 with a zone, kept as text.
Timestamp = Annotated[
    str,
    Field(
        min_length=20,
        max_length=40,
        pattern=form(
            r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})$",
            "must be a moment like 2026-12-01T09:30:00Z",
        ),
        json_schema_extra={"format": "date-time"},
    ),
]
#: A sentence for people.
Sentence = Annotated[str, Field(max_length=1024)]


class Model(BaseModel):
    """A part of a manifest."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
        validate_by_alias=True,
        validate_by_name=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_null(cls, value: object) -> object:
        if value is None:
            raise ValueError("has no value; give it one or leave the field out")
        return value


class FieldProblem(ValueError):
    """A validator's objection to one field below the model that it judges."""

    def __init__(self, message: str, *at: str | int) -> None:
        super().__init__(message)
        self.at: Path = at


class StatusModel(Model):
    """A part of a status: written by the operator; fields of a newer one are passed over."""

    model_config = ConfigDict(extra="ignore")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a document stands: its file, and the 1-based line of each of its fields."""

    file: str | None = None
    lines: Mapping[Path, int] = field(default_factory=dict)

    def line(self, path: Path) -> int | None:
        """The line of ``path``, or of the nearest enclosing field that stands in the file."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return None


class Resource(Model):
    """A whole document."""

    _source: Source = PrivateAttr(default_factory=Source)

    @property
    def source(self) -> Source:
        """Where the manifest was read; empty for one that was made in Python."""
        return self._source

    def problem(self, message: str, *, at: Sequence[str | int] = ()) -> ManifestError:
        """An error about the field at ``at`` (``("spec", "agent", "app")``), with its place."""
        path = tuple(at)
        return ManifestError(
            message,
            file=self._source.file,
            line=self._source.line(path),
            field=dotted(path) or None,
        )


class Condition(StatusModel):
    """One condition of a status, as Kubernetes writes them."""

    type: str = Field(max_length=316, description="What is judged, for example Accepted.")
    status: Literal["True", "False", "Unknown"] = Field(description="The judgement.")
    reason: str = Field(default="", max_length=1024, description="One word that machines read.")
    message: str = Field(default="", max_length=32_768, description="A sentence for people.")
    last_transition_time: Timestamp | None = Field(
        default=None, description="When the status last changed."
    )
    observed_generation: int | None = Field(
        default=None, ge=0, description="The generation that was judged."
    )


def dotted(path: Path) -> str:
    """``("spec", "tools", 0, "name")`` as ``spec.tools[0].name``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def refuse_repeated(values: Sequence[Any], *, key: str = "name") -> None:
    """A list of named objects holds each name once."""
    seen: set[object] = set()
    for index, value in enumerate(values):
        name = getattr(value, key)
        if name in seen:
            raise FieldProblem(f"{name!r} stands twice; each {key} may stand once", index, key)
        seen.add(name)
