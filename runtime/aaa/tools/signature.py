"""Reads a function's signature: what a model may pass, what is injected, what it all means.

A parameter annotated ``ToolContext`` is set aside here, before there is a schema, and so can
never be set by a model (G13). Every argument needs a type hint and a name: nothing is guessed.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import docstring_parser

from aaa.errors import ConfigError
from aaa.tools.context import ToolContext

if TYPE_CHECKING:
    from aaa.tools.schema import Arguments

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument that the model gives."""

    name: str
    annotation: Any
    required: bool
    default: Any
    #: What the docstring says about it.
    text: str


@dataclass(frozen=True, slots=True)
class Signature:
    """What a tool's function takes."""

    #: What the docstring says before its parameters.
    description: str
    parameters: tuple[Parameter, ...]
    #: Name of the parameter that receives the ToolContext, if there is one.
    context_parameter: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """The arguments' names, in the order of the definition."""
        return tuple(each.name for each in self.parameters)

    def arguments(self, tool: str) -> Arguments:
        """Schema and validator; raises ConfigError if a type has no JSON Schema."""
        from aaa.tools.schema import Arguments

        return Arguments(tool, self.parameters)


def read_signature(tool: str, function: Callable[..., Any]) -> Signature:
    """Read ``function``; raises ConfigError naming the tool and the parameter."""
    hints = _hints(tool, function)
    docs = docstring_parser.parse(inspect.getdoc(function) or "")
    texts = {each.arg_name: " ".join((each.description or "").split()) for each in docs.params}
    context_parameter: str | None = None
    parameters: list[Parameter] = []
    for given in inspect.signature(function).parameters.values():
        annotation = _annotation(tool, given, hints)
        if not _is_context(annotation):
            required = given.default is inspect.Parameter.empty
            default = None if required else given.default
            text = texts.get(given.name, "")
            parameters.append(Parameter(given.name, annotation, required, default, text))
        elif context_parameter is None:
            context_parameter = given.name
        else:
            raise ConfigError(
                f"tool {tool!r}: only one parameter can be the ToolContext, and both "
                f"{context_parameter!r} and {given.name!r} are"
            )
    return Signature((docs.description or "").strip(), tuple(parameters), context_parameter)


def schema_digest(schema: Mapping[str, Any]) -> str:
    """32 hexadecimal digits that change whenever the schema does."""
    text = json.dumps(schema, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _hints(tool: str, function: Callable[..., Any]) -> dict[str, Any]:
    # ToolContext is often imported for type checkers only, or inside the function's own scope.
    known = {"ToolContext": ToolContext}
    try:
        return typing.get_type_hints(function, localns=known, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"tool {tool!r}: the type hint {error.name!r} cannot be found; "
            "import or define it at the top level of the module, outside `if TYPE_CHECKING`"
        ) from None
    except Exception as error:  # noqa: BLE001 - a quoted hint is code, and may raise anything
        raise ConfigError(f"tool {tool!r}: a type hint cannot be read: {error}") from None


def _annotation(tool: str, given: inspect.Parameter, hints: Mapping[str, Any]) -> Any:
    if given.kind not in _BY_NAME:
        # str() of a parameter shows its stars and its annotation.
        raise ConfigError(
            f"tool {tool!r}: parameter '{given}' ({given.kind.description}) cannot be filled by a "
            "model, which gives each argument by its name; declare ordinary named parameters"
        )
    if given.name in hints:
        return hints[given.name]
    advice = (
        "decorate the bound method, as in tool(obj.method)"
        if given.name in ("self", "cls")
        else "annotate it, with ToolContext if it is meant to receive the call's context"
    )
    raise ConfigError(f"tool {tool!r}: parameter {given.name!r} has no type annotation; {advice}")


def _is_context(annotation: Any) -> bool:
    """Whether the annotation is ToolContext, also as Optional or inside Annotated."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _is_context(get_args(annotation)[0])
    if origin is typing.Union or origin is types.UnionType:
        members = [member for member in get_args(annotation) if member is not type(None)]
        return len(members) == 1 and _is_context(members[0])
    return annotation is ToolContext
