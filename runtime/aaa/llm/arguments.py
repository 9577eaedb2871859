"""Reads the arguments of a tool call as a model wrote them, which may be anything.

A model that writes broken JSON must be told so, not crash the run. And what is read must be what
was meant: a name given twice, ``NaN`` or half a character is an error here, since readers
disagree about them, and an approval binds to one reading.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from aaa.llm.messages import ToolCall

#: Broken arguments are kept for people to look at, up to this length.
MAX_RAW_CHARS = 10_000


def read_call(name: str, arguments: str | Mapping[str, Any] | None, *, id: str | None) -> ToolCall:  # noqa: A002
    """The call; with ``arguments_error`` if the arguments cannot be used. Never raises."""
    raw = arguments if isinstance(arguments, str) else None
    try:
        return ToolCall(name, _read(arguments), id)
    except RecursionError:
        reason = "they are nested too deeply"
    except ValueError as error:
        reason = str(error)
    shown = None if raw is None else _clean(raw[:MAX_RAW_CHARS])
    said = f"The arguments of {name} are not usable JSON: {reason}. Send one JSON object."
    return ToolCall(name, {}, id, arguments_error=said, raw_arguments=shown)


def _read(arguments: str | Mapping[str, Any] | None) -> dict[str, Any]:
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        text = arguments
    else:  # a provider's client has read it already: hold its value to the same rules
        text = json.dumps(dict(arguments), ensure_ascii=False)
    value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    if not isinstance(value, dict):
        raise ValueError("they must be an object, with the arguments by name")  # noqa: TRY004
    if _clean(json.dumps(value, ensure_ascii=False)) != json.dumps(value, ensure_ascii=False):
        raise ValueError("they hold half a character (a lone surrogate)")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!r} is given more than once")
    return found


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
