"""From a function's signature to what a model sees of it, and back to checked arguments.

The JSON Schema comes from the type hints (through pydantic) and the docstring. A parameter
annotated ``ToolContext`` is left out of it, and so can never be set by a model (G13). Arguments
that the function does not have are refused rather than dropped. Two definitions with the same
signature and docstring have the same digest, on every machine.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

import docstring_parser
from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_jsonable_python
from typing_extensions import NotRequired, TypedDict

from aaa.errors import ConfigError, InvalidArguments
from aaa.tools.context import ToolContext

#: A model that got everything wrong needs the pattern, not an endless list.
MAX_REPORTED_FIELDS = 10

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class _Untitled(GenerateJsonSchema):
    """A title that repeats the field's name tells a model nothing and costs tokens each turn."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Signature:
    """What a tool's function takes: for the model, for the validator and for the call."""

    #: What the tool does, for the model.
    description: str
    #: JSON Schema of the arguments object.
    schema: dict[str, Any]
    #: Name of the parameter that receives the ToolContext, if there is one.
    context_parameter: str | None
    #: Names of the arguments, in the order of the definition.
    parameters: tuple[str, ...]
    defaults: Mapping[str, Any]
    adapter: TypeAdapter[Any]

    def validate(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Python values for every argument, defaults filled in; raises InvalidArguments."""
        if not isinstance(arguments, Mapping):
            raise InvalidArguments(
                f"The arguments of {tool} must be a JSON object, not {type(arguments).__name__}."
            )
        try:
            given = self.adapter.validate_python(dict(arguments))
        except ValidationError as error:
            raise InvalidArguments(_explain(tool, error)) from None
        for name, default in self.defaults.items():
            if name not in given:
                given[name] = copy.deepcopy(default)
        return {name: given[name] for name in self.parameters}


def read_signature(tool: str, function: Callable[..., Any], description: str | None) -> Signature:
    """Read ``function``; raises ConfigError naming the tool and the parameter."""
    hints = _hints(tool, function)
    context_parameter: str | None = None
    fields: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    docs = docstring_parser.parse(inspect.getdoc(function) or "")
    texts = {item.arg_name: item.description for item in docs.params if item.description}
    for parameter in inspect.signature(function).parameters.values():
        annotation = _annotation(tool, parameter, hints)
        if _is_context(annotation):
            if context_parameter is not None:
                raise ConfigError(
                    f"tool {tool!r}: only one parameter can be the ToolContext, and both "
                    f"{context_parameter!r} and {parameter.name!r} are"
                )
            context_parameter = parameter.name
            continue
        if parameter.default is not inspect.Parameter.empty:
            defaults[parameter.name] = _default(tool, parameter)
        fields[parameter.name] = _field(parameter, annotation, texts.get(parameter.name))
    adapter, schema = _compile(tool, fields)
    return Signature(
        description=_describe(docs) if description is None else description,
        schema=schema,
        context_parameter=context_parameter,
        parameters=tuple(fields),
        defaults=types.MappingProxyType(defaults),
        adapter=adapter,
    )


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
    except TypeError as error:
        raise ConfigError(f"tool {tool!r}: a type hint cannot be read: {error}") from None


def _annotation(tool: str, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Any:
    name = parameter.name
    if parameter.kind not in _BY_NAME:
        shown = {inspect.Parameter.VAR_POSITIONAL: f"*{name}"}.get(
            parameter.kind,
            f"**{name}" if parameter.kind is inspect.Parameter.VAR_KEYWORD else f"{name!r} (before /)",
        )
        raise ConfigError(
            f"tool {tool!r}: parameter {shown} cannot be filled by a model, which gives each "
            "argument by its name; declare every argument as a named parameter"
        )
    if name not in hints:
        hint = "decorate the bound method, as in tool(obj.method)" if name in ("self", "cls") else (
            "annotate it, with ToolContext if it is meant to receive the call's context"
        )
        raise ConfigError(f"tool {tool!r}: parameter {name!r} has no type annotation; {hint}")
    return hints[name]


def _is_context(annotation: Any) -> bool:
    """Whether the annotation is ToolContext, also as Optional or inside Annotated."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _is_context(get_args(annotation)[0])
    if origin is typing.Union or origin is types.UnionType:
        members = [member for member in get_args(annotation) if member is not type(None)]
        return len(members) == 1 and _is_context(members[0])
    return annotation is ToolContext


def _default(tool: str, parameter: inspect.Parameter) -> Any:
    if isinstance(parameter.default, FieldInfo):
        raise ConfigError(
            f"tool {tool!r}: parameter {parameter.name!r} has a pydantic Field as its default; "
            "write Annotated[type, Field(...)] and an ordinary default"
        )
    return parameter.default


def _field(parameter: inspect.Parameter, annotation: Any, text: str | None) -> Any:
    extras: dict[str, Any] = {}
    if text is not None:
        extras["description"] = " ".join(text.split())
    if parameter.default is inspect.Parameter.empty:
        return Annotated[annotation, Field(**extras)] if extras else annotation
    try:
        shown = to_jsonable_python(parameter.default)
        json.dumps(shown, allow_nan=False)
        extras["json_schema_extra"] = {"default": shown}
    except Exception:  # noqa: BLE001 - a default that has no JSON form is only not shown
        pass
    return NotRequired[Annotated[annotation, Field(**extras)]]


def _compile(tool: str, fields: dict[str, Any]) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    # A TypedDict, not a model: argument names such as `schema` or `_id` collide with nothing.
    arguments = TypedDict(tool, fields)  # type: ignore[operator]
    arguments.__pydantic_config__ = _STRICT
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(arguments)
        schema = adapter.json_schema(schema_generator=_Untitled)
    except (PydanticUserError, TypeError, ValueError, NameError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"tool {tool!r}: no JSON Schema for its arguments: {reason}") from None
    schema.pop("title", None)
    schema.setdefault("properties", {})
    return adapter, schema


def _describe(docs: docstring_parser.Docstring) -> str:
    return (docs.description or "").strip()


def _explain(tool: str, error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    said = [f"{_place(item['loc'])}: {_reason(item)}" for item in problems[:MAX_REPORTED_FIELDS]]
    if len(problems) > len(said):
        said.append(f"and {len(problems) - len(said)} more")
    return f"The arguments of {tool} do not fit its schema: {'; '.join(said)}."


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) or "arguments"


def _reason(problem: Any) -> str:
    known = {"missing": "is required", "extra_forbidden": "is not an argument of this tool"}
    kind, text = problem["type"], str(problem["msg"])
    return known.get(kind, text[:1].lower() + text[1:])
