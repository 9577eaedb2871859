"""Idempotency-key templates: a business key written in a policy, ``refund:{order_id}``.

The template language is small on purpose. A placeholder is an argument's name, or a dotted path
through nested objects (``{order.id}``); ``{{`` and ``}}`` are literal braces. There are no format
specifications, no indexes and no attribute access, so a template can read arguments and nothing
else.

Guarantees: with one template, different arguments never give the same key. Where a template has
several placeholders, a character that its literal text uses is percent-encoded inside values, so
that ``a:b`` + ``c`` and ``a`` + ``b:c`` stay apart. It does not guarantee that two *templates*
give different keys, and ``1`` and ``"1"`` are the same text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from aaa.errors import ConfigError, InvalidArguments

#: Longest template that is accepted, in characters.
MAX_TEMPLATE_CHARS = 256
#: Longest key that is produced, in characters; payment providers stop at 255.
MAX_KEY_CHARS = 255

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+")
_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")

#: A parsed template: literal text, or the path of a placeholder.
_Part = str | tuple[str, ...]


def check_template(template: object) -> str:
    """Return ``template`` if it is one; raise :class:`ConfigError` saying what is wrong."""
    if not isinstance(template, str):
        raise ConfigError(f"idempotency_key must be a template (text), not {template!r}")
    _parse(template)
    return template


def render_key(template: str, args: Mapping[str, object]) -> str:
    """Fill ``template`` from a call's arguments.

    Raises :class:`ConfigError` for a bad template and :class:`InvalidArguments` when an argument
    is missing, empty, not a single value, or makes the key too long.
    """
    parts = _parse(template)
    literals = "".join(part for part in parts if isinstance(part, str))
    several = sum(isinstance(part, tuple) for part in parts) > 1
    reserved = f"%{literals}" if several else ""
    key = "".join(
        part if isinstance(part, str) else _escape(_lookup(part, args, template), reserved)
        for part in parts
    )
    if len(key) > MAX_KEY_CHARS:
        raise InvalidArguments(
            f"the idempotency key made by {template!r} would have {len(key)} characters; "
            f"at most {MAX_KEY_CHARS} are allowed"
        )
    return key


def _parse(template: str) -> list[_Part]:
    if len(template) > MAX_TEMPLATE_CHARS:
        raise ConfigError(
            f"an idempotency_key template has at most {MAX_TEMPLATE_CHARS} characters, "
            f"not {len(template)}"
        )
    parts: list[_Part] = []
    for token in _TOKEN.finditer(template):
        text, path = token.group(0), token.group(1)
        if text in ("{", "}"):
            raise ConfigError(
                f"idempotency_key {template!r} has a single {text!r}; "
                f"write {text * 2!r} for a literal brace"
            )
        if path is None:
            parts.append(text[0] if text in ("{{", "}}") else text)
            continue
        if not _PATH.fullmatch(path):
            raise ConfigError(
                f"idempotency_key {template!r}: {{{path}}} must be an argument's name or a "
                "dotted path, without format or index"
            )
        if parts and isinstance(parts[-1], tuple):
            raise ConfigError(
                f"idempotency_key {template!r} has two placeholders with nothing between them, "
                "so different arguments could give one key; separate them"
            )
        parts.append(tuple(path.split(".")))
    if not any(isinstance(part, tuple) for part in parts):
        raise ConfigError(
            f"idempotency_key {template!r} names no argument, so that all calls of the tool "
            "would share one key; write for example 'refund:{order_id}'"
        )
    return parts


def _lookup(path: tuple[str, ...], args: Mapping[str, object], template: str) -> str:
    value: object = args
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            raise InvalidArguments(
                f"the idempotency key {template!r} needs the argument {'.'.join(path)!r}, "
                "which the call does not have"
            )
        value = value[name]
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)) and value != "":
        return str(value)
    raise InvalidArguments(
        f"the idempotency key {template!r} needs a non-empty text, number or boolean "
        f"in the argument {'.'.join(path)!r}"
    )


def _escape(value: str, reserved: str) -> str:
    if not reserved:
        return value
    return "".join(f"%{ord(char):02X}" if char in reserved else char for char in value)
