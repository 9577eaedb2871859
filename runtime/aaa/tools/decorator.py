"""``tool``: turns a function into a :class:`Tool`, refusing every bad setting on the spot (G17).

::

    @tool                                   # as it is
    @tool(delivery="at_most_once")          # with settings
    search = tool(client.search, timeout_s=5)   # a function or bound method from elsewhere

Nothing here runs a tool or knows a lease: the settings are recorded on the Tool, and the guard
reads them.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, ParamSpec, TypeVar, overload

from aaa.errors import ConfigError
from aaa.policy.config import Delivery
from aaa.policy.overrides import MAX_TIMEOUT_S, MIN_TIMEOUT_S
from aaa.tools.definition import Tool
from aaa.tools.overrides import checked_overrides
from aaa.tools.signature import Signature, read_signature
from aaa.tools.verify import Verdict

P = ParamSpec("P")
R = TypeVar("R")

#: What every provider accepts as a function's name.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    function: Callable[P, R],
    /,
    *,
    name: str | None = ...,
    description: str | None = ...,
    delivery: Delivery | str | None = ...,
    guard: Mapping[str, Any] | None = ...,
    idempotency_key: Callable[[dict[str, Any]], str] | None = ...,
    requires_approval: bool = ...,
    timeout_s: float | None = ...,
    verify: Callable[..., Awaitable[Verdict]] | None = ...,
    isolation: Literal["process"] | None = ...,
    on_repeat: Literal["fail", "ask"] = ...,
) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = ...,
    description: str | None = ...,
    delivery: Delivery | str | None = ...,
    guard: Mapping[str, Any] | None = ...,
    idempotency_key: Callable[[dict[str, Any]], str] | None = ...,
    requires_approval: bool = ...,
    timeout_s: float | None = ...,
    verify: Callable[..., Awaitable[Verdict]] | None = ...,
    isolation: Literal["process"] | None = ...,
    on_repeat: Literal["fail", "ask"] = ...,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(function: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
    """Make a Tool of a function; raises ConfigError naming the tool, the setting and its bound.

    ``delivery`` is short for ``guard={"delivery": ...}``; ``guard`` names the GuardConfig fields
    to change for this tool. ``idempotency_key`` makes a business key from the checked arguments.
    ``requires_approval`` holds every call until a person agrees. ``timeout_s`` ends an attempt.
    ``verify`` looks up whether an effect happened; its parameters are some of the tool's own, by
    name, and optionally a ToolContext. ``isolation="process"`` runs the tool in a child process
    that can be killed. ``on_repeat`` says whether a call that repeats an unsettled one fails or
    asks a person. ``name`` and ``description`` replace the function's name and docstring.
    """
    if unknown := sorted(settings.keys() - _SETTINGS):
        raise ConfigError(f"tool has no setting {unknown[0]!r}; it has {', '.join(_SETTINGS)}")
    if function is None:
        return lambda decorated: _define(decorated, **settings)
    return _define(function, **settings)


def _define(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    delivery: Delivery | str | None = None,
    guard: Mapping[str, Any] | None = None,
    idempotency_key: Callable[[dict[str, Any]], str] | None = None,
    requires_approval: bool = False,
    timeout_s: float | None = None,
    verify: Callable[..., Awaitable[Verdict]] | None = None,
    isolation: str | None = None,
    on_repeat: str = "fail",
) -> Tool[..., Any]:
    chosen = _check_function(function, name)
    overrides = checked_overrides(chosen, delivery=delivery, guard=guard)
    signature = read_signature(chosen, function)
    _check_boolean(chosen, "requires_approval", requires_approval)
    _check_timeout(chosen, timeout_s)
    _check_choice(chosen, "isolation", isolation, (None, "process"))
    _check_choice(chosen, "on_repeat", on_repeat, ("fail", "ask"))
    _check_key(chosen, idempotency_key)
    asked = _read_verify(chosen, verify, signature.names)
    if overrides.get("enabled") is False:
        for setting, given in (("requires_approval", requires_approval), ("verify", verify)):
            if given:
                raise ConfigError(
                    f"tool {chosen!r}: guard.enabled=False cannot be combined with {setting}: "
                    "without a lease and an attempt record it could not be kept"
                )
    if isolation == "process":
        _check_importable(chosen, function)
    return Tool(
        function=function,
        name=chosen,
        signature=signature,
        verify_signature=asked,
        description=signature.description if description is None else description,
        overrides=overrides,
        requires_approval=requires_approval,
        timeout_s=None if timeout_s is None else float(timeout_s),
        verify=verify,
        idempotency_key=idempotency_key,
        isolation=isolation,
        on_repeat=on_repeat,
    )


def _check_function(function: Any, name: str | None) -> str:
    if isinstance(function, Tool):
        raise ConfigError(f"tool {function.name!r} is a tool already; decorate the function once")
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise ConfigError(
            f"a tool is made of a function or a bound method, not of {function!r:.80}"
        )
    chosen: object = function.__name__ if name is None else name
    if not isinstance(chosen, str) or not _NAME.match(chosen):
        raise ConfigError(
            f"tool {chosen!r}: name must be 1 to 64 letters, digits, '_' or '-', "
            "beginning with a letter or '_'; give one with name="
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"tool {chosen!r}: a generator has no single result; return a value")
    return chosen


def _check_importable(tool_name: str, function: Callable[..., Any]) -> None:
    top = function.__qualname__ == function.__name__ and function.__name__.isidentifier()
    if not top or function.__module__ == "__main__":
        where = "the program itself" if top else "a class or another function"
        raise ConfigError(
            f"tool {tool_name!r}: isolation='process' needs a function at the top level of a "
            f"module, which the child process can import; this one is in {where}"
        )


def _check_boolean(tool_name: str, setting: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"tool {tool_name!r}: {setting} must be true or false, not {value!r}")


def _check_choice(tool_name: str, setting: str, value: object, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        allowed = " or ".join(repr(choice) for choice in choices)
        raise ConfigError(f"tool {tool_name!r}: {setting} must be {allowed}, not {value!r}")


def _check_timeout(tool_name: str, value: object) -> None:
    if value is None:
        return
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or math.isnan(value) or not MIN_TIMEOUT_S <= value <= MAX_TIMEOUT_S:  # type: ignore[arg-type,operator]
        raise ConfigError(
            f"tool {tool_name!r}: timeout_s must be between {MIN_TIMEOUT_S:g} and "
            f"{MAX_TIMEOUT_S:g} seconds, not {value!r}"
        )


def _check_key(tool_name: str, value: object) -> None:
    if value is not None and (not callable(value) or inspect.iscoroutinefunction(value)):
        raise ConfigError(
            f"tool {tool_name!r}: idempotency_key must be a plain function of the arguments that "
            f"returns text, such as lambda args: f\"refund:{{args['order_id']}}\", not {value!r:.80}"
        )


def _read_verify(tool_name: str, value: Any, names: tuple[str, ...]) -> Signature | None:
    if value is None:
        return None
    if not inspect.iscoroutinefunction(value):
        raise ConfigError(
            f"tool {tool_name!r}: verify must be an async function, not {value!r:.80}"
        )
    asked = read_signature(f"{tool_name}.verify", value)
    if foreign := [name for name in asked.names if name not in names]:
        raise ConfigError(
            f"tool {tool_name!r}: verify takes {', '.join(map(repr, foreign))}, which the tool does "
            f"not have; it can take {', '.join(names) or 'no argument'} and a ToolContext"
        )
    return asked


#: In the order of the definition, for messages.
_SETTINGS = {
    name: None
    for name, given in inspect.signature(_define).parameters.items()
    if given.kind is inspect.Parameter.KEYWORD_ONLY
}
