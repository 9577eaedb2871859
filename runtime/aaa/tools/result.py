"""Turns what a tool returned into what the log can hold, or says that it cannot (G16).

A tool may return anything that JSON can express, and also pydantic models, dataclasses, dates,
decimals, enumerations, sets and the like, which become plain JSON values. What cannot be
recorded raises :class:`aaa.errors.ResultRejected`, whose message says that the tool did run:
the failure must never read as if nothing had happened.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from aaa.errors import ResultRejected

#: Results are read again on every turn and sent to the model: larger ones belong elsewhere.
DEFAULT_LIMIT_BYTES = 1_048_576


def encode_result(value: Any, *, limit_bytes: int = DEFAULT_LIMIT_BYTES, tool: str = "tool") -> Any:
    """The plain JSON value for ``value``; raises ResultRejected if there is none or it is too big.

    ``limit_bytes`` bounds the compact UTF-8 encoding.
    """
    from pydantic_core import to_jsonable_python

    try:
        plain = to_jsonable_python(value)
        json.dumps(plain, allow_nan=False)  # refuses NaN and infinities, which orjson turns to null
        size = len(orjson.dumps(plain))  # refuses integers over 64 bits and text that is not UTF-8
    except Exception as error:  # a returned object's own serialiser may raise anything
        raise ResultRejected(
            f"{tool} did run, but its result ({type(value).__name__}) is not JSON "
            f"and was not recorded: {_first_line(error)}"
        ) from error
    if size > limit_bytes:
        raise ResultRejected(
            f"{tool} did run, but its result of {size} bytes is over the limit of {limit_bytes} "
            "and was not recorded; return a summary or a reference instead"
        )
    return plain


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]
