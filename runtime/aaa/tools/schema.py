"""From typed parameters to a JSON Schema and a validator, through pydantic.

Arguments that the function does not have are refused rather than dropped, NaN and infinities too.
Importing this module costs the import of pydantic, so it is imported when the first tool is
defined and not before.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict

from aaa.errors import ConfigError, InvalidArguments

if TYPE_CHECKING:
    from aaa.tools.signature import Parameter

#: A model that got everything wrong needs the pattern, not an endless list.
MAX_REPORTED_FIELDS = 10


class _Untitled(GenerateJsonSchema):
    """A title that repeats the field's name tells a model nothing and costs tokens each turn."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's name
        return False


class Arguments:
    """The arguments object of one tool: its ``schema`` and its validation."""

    def __init__(self, tool: str, parameters: tuple[Parameter, ...]) -> None:
        self._tool, self._parameters = tool, parameters
        # A TypedDict, not a model: argument names such as `schema` or `_id` collide with nothing.
        # Made by a call that mypy cannot follow, since the fields are only known here.
        make: Any = TypedDict
        try:
            arguments = make(tool, {each.name: _field(tool, each) for each in parameters})
            arguments.__pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
            self._adapter: TypeAdapter[Any] = TypeAdapter(arguments)
            self.schema = self._adapter.json_schema(schema_generator=_Untitled)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - a type may bring its own schema code
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ConfigError(
                f"tool {tool!r}: no JSON Schema for its arguments: {reason}"
            ) from None
        self.schema.pop("title", None)
        self.schema.setdefault("properties", {})

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Python values for every argument, defaults filled in; raises InvalidArguments."""
        if not isinstance(arguments, Mapping):
            raise InvalidArguments(
                f"The arguments of {self._tool} must be a JSON object, "
                f"not {type(arguments).__name__}."
            )
        try:
            given = self._adapter.validate_python(dict(arguments))
        except ValidationError as error:
            raise InvalidArguments(_explain(self._tool, error)) from None
        return {
            each.name: given[each.name] if each.name in given else copy.deepcopy(each.default)
            for each in self._parameters
        }


def _field(tool: str, parameter: Parameter) -> Any:
    if isinstance(parameter.default, FieldInfo):
        raise ConfigError(
            f"tool {tool!r}: parameter {parameter.name!r} has a pydantic Field as its default; "
            "write Annotated[type, Field(...)] and an ordinary default"
        )
    extras: dict[str, Any] = {}
    if parameter.text:
        extras["description"] = parameter.text
    if not parameter.required:
        extras["json_schema_extra"] = _shown_default(parameter.default)
    annotate: Any = Annotated  # for mypy, brackets hold types that are known when it reads them
    described = annotate[parameter.annotation, Field(**extras)]
    return described if parameter.required else NotRequired[described]


def _shown_default(default: Any) -> dict[str, Any]:
    try:
        shown = to_jsonable_python(default)
        json.dumps(shown, allow_nan=False)
    except Exception:  # noqa: BLE001 - a default without a JSON form works, it is only not shown
        return {}
    return {"default": shown}


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
    text = str(problem["msg"])
    return known.get(problem["type"], text[:1].lower() + text[1:])
