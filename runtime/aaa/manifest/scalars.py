"""What an unquoted YAML scalar means, or why it means too many things.

YAML 1.1, YAML 1.2 and the API server's reader disagree about scalars such as ``on``, ``017``,
``1:30`` and ``2026-12-01``. A manifest must not mean one thing on a laptop and another in a
cluster, so only what all of them read alike is accepted: JSON's numbers, ``true``, ``false``,
``null``, and text that looks like none of the disputed forms. Quoting always settles it.
"""

from __future__ import annotations

import math
import re

_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_BOOLS = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_DISPUTED_BOOLS = frozenset(
    form
    for word in ("y", "n", "yes", "no", "on", "off")
    for form in (word, word.capitalize(), word.upper())
)
_TRUE_WORDS = frozenset(("y", "yes", "on"))
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?")
_OCTAL = re.compile(r"[-+]?0(o[0-7_]+|[0-9_]+)")
_HEX_OR_BINARY = re.compile(r"[-+]?0([xX][0-9a-fA-F_]+|[bB][01_]+)")
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_LOOSE_NUMBER = re.compile(r"[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?")

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1

Scalar = str | int | float | bool | None


class DisputedScalar(ValueError):
    """The scalar is read differently by different readers; the message says what to write."""


def read_plain(text: str) -> Scalar:
    """The value of an unquoted scalar. Raises :class:`DisputedScalar`."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if _NUMBER.fullmatch(text):
        return _float(text)
    reason = _dispute(text)
    if reason is not None:
        raise DisputedScalar(f"{text!r} is {reason}")
    return text


def _integer(text: str) -> int:
    if len(text) > 20 or not MIN_INTEGER <= int(text) <= MAX_INTEGER:
        raise DisputedScalar(f"{text[:24]!r} does not fit 64 bits; quote it if it is text")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise DisputedScalar(f"{text!r} is too large for a number; quote it if it is text")
    return value


def _dispute(text: str) -> str | None:
    if text in _DISPUTED_BOOLS:
        word = "true" if text.lower() in _TRUE_WORDS else "false"
        return f"text to some YAML readers and {word} to others; write {word}, or quote it"
    if _SEXAGESIMAL.fullmatch(text):
        return "a number in base 60 to some YAML readers; quote it"
    if _DATE.fullmatch(text):
        return "a date to some YAML readers and text to others; quote it"
    if _OCTAL.fullmatch(text):
        return "an octal number to some YAML readers; write it without the leading 0, or quote it"
    if _HEX_OR_BINARY.fullmatch(text):
        return "a number only to some YAML readers; write it in decimal, or quote it"
    if _INFINITE.fullmatch(text):
        return "not a number that JSON has; quote it if it is text"
    if _LOOSE_NUMBER.fullmatch(text):
        return "not written as JSON writes numbers; write plain digits, or quote it"
    return None
