"""Validation errors as sentences: what is wrong with which field, and what to write instead."""

from __future__ import annotations

import re
import types
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from aaa.errors import ManifestError
from aaa.manifest.base import FORMS, Path, Source, dotted

#: Problems that one error's text lists; all of them stand in ``errors``.
MAX_LISTED = 20

_TYPES = {
    "string_type": "text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "float_type": "a number",
}


class ManifestErrors(ManifestError):
    """All that is wrong with some manifests, in the order of their lines.

    ``file``, ``line``, ``field`` and ``reason`` are those of the first; the text has a line for
    each.
    """

    def __init__(self, errors: Sequence[ManifestError]) -> None:
        ordered = sorted(errors, key=lambda error: error.line or 0)
        first = ordered[0]
        super().__init__(first.reason, file=first.file, line=first.line, field=first.field)
        self.errors = tuple(ordered)
        lines = [str(error) for error in ordered[:MAX_LISTED]]
        if len(ordered) > MAX_LISTED:
            lines.append(f"and {len(ordered) - MAX_LISTED} more problems")
        self.args = ("\n".join(lines),)


def from_validation(
    error: ValidationError, *, model: type[BaseModel], source: Source
) -> list[ManifestError]:
    """One error for each problem that pydantic found in a document of ``model``."""
    found = []
    for item in error.errors(include_url=False):
        path: Path = tuple(part for part in item["loc"] if part != "[key]")
        path += getattr(item.get("ctx", {}).get("error"), "at", ())
        found.append(
            ManifestError(
                _sentence(dict(item), model=model, path=path),
                file=source.file,
                line=source.line(path),
                field=dotted(path) or None,
            )
        )
    return found


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """``"; did you mean 'x'?"`` or the list of what is known, to end a sentence with."""
    by_lower = {name.lower().replace("_", ""): name for name in known}
    close = get_close_matches(word.lower().replace("_", ""), list(by_lower), n=1, cutoff=0.6)
    if close:
        return f"; did you mean {by_lower[close[0]]!r}?"
    return f"; known are {', '.join(known)}" if known else ""


def _sentence(item: dict[str, Any], *, model: type[BaseModel], path: Path) -> str:
    kind, value, context = item["type"], item.get("input"), item.get("ctx", {})
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return f"is not a field here{did_you_mean(str(path[-1]), _fields_at(model, path[:-1]))}"
    if kind in _TYPES:
        hint = "; quote it" if kind == "string_type" and isinstance(value, (int, float)) else ""
        return f"must be {_TYPES[kind]}, not {_describe(value)}{hint}"
    if kind == "literal_error":
        return _choice(value, str(context["expected"]))
    if kind == "value_error":
        return str(context["error"])
    return _bound(kind, value, context) or str(item["msg"])


def _bound(kind: str, value: object, context: dict[str, Any]) -> str | None:
    if kind == "string_pattern_mismatch":
        form = FORMS.get(context["pattern"], f"must match {context['pattern']}")
        return f"{form}, not {_describe(value)}"
    if kind == "greater_than_equal":
        return f"must be at least {context['ge']}, not {value}"
    if kind == "less_than_equal":
        return f"must be at most {context['le']}, not {value}"
    if kind == "string_too_short":
        return f"must have at least {context['min_length']} characters, not {len(str(value))}"
    if kind == "string_too_long":
        return f"may have at most {context['max_length']} characters, not {len(str(value))}"
    if kind == "too_long":
        return f"may have at most {context['max_length']} entries, not {context['actual_length']}"
    return None


def _choice(value: object, expected: str) -> str:
    choices = re.findall(r"'([^']*)'", expected)
    listed = " or ".join(choices)
    hint = ""
    if isinstance(value, str):
        close = did_you_mean(value, choices)
        hint = close if close.startswith("; did you mean") else ""
    return f"must be {listed}, not {_describe(value)}{hint}"


def _describe(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else f"{value[:57]}…")
    return "a list" if isinstance(value, list) else "an object"


def _fields_at(model: type[BaseModel], path: Path) -> list[str]:
    """The field names, as written in a manifest, of the model that stands at ``path``."""
    current: Any = model
    for part in path:
        current = _step(_unwrap(current), part)
    current = _unwrap(current)
    if not (isinstance(current, type) and issubclass(current, BaseModel)):
        return []
    return [info.alias or name for name, info in current.model_fields.items()]


def _step(annotation: Any, part: str | int) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, info in annotation.model_fields.items():
            if part in (info.alias, name):
                return info.annotation
        return None
    arguments = get_args(annotation)
    return arguments[-1] if arguments else None


def _unwrap(annotation: Any) -> Any:
    """Without ``Annotated`` and ``| None``."""
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
        elif origin in (Union, types.UnionType):
            annotation = next(one for one in get_args(annotation) if one is not type(None))
        else:
            return annotation
