"""The server-side library: its source, put together from the Lua files, and its name.

The name carries the hash of the source, so two versions of the product can work on one server at
the same time, each with its own functions, and a call can never reach another version's code.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import Final

from aaa import events as ev
from aaa.ids import json_text
from aaa.policy.config import Delivery
from aaa.store import claims, guard, port

#: In the order in which they need each other: one chunk, each file's table is a local of it.
FILES: Final = (
    "wire.lua",
    "rows.lua",
    "owners.lua",
    "writes.lua",
    "guard.lua",
    "claims.lua",
    "drafts.lua",
    "logic.lua",
    "renewal.lua",
    "reads.lua",
    "functions.lua",
)

#: A page of a read ends after so many bytes.
PAGE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Library:
    """What ``FUNCTION LOAD`` takes, and the names of the functions in it."""

    name: str
    source: bytes

    def function(self, name: str) -> bytes:
        """The full name of one of the library's functions."""
        return f"{self.name}_{name}".encode()


@cache
def library() -> Library:
    """The library of this version of the code."""
    body = "\n".join(
        [_constants(), *((files(__package__) / name).read_text("utf-8") for name in FILES)]
    )
    name = f"aaa_{blake2b(body.encode(), digest_size=8).hexdigest()}"
    source = f"#!lua name={name}\nlocal K = {{LIBRARY = '{name}'}}\n{body}"
    return Library(name, source.encode())


def missing(where: str) -> str:
    """What to say where it is not loaded and may not be."""
    return (
        f"{where} does not have the functions of this version of AAA ({library().name}), and the "
        "user of the store URL may not load them: open the store once with this version as a user "
        "who may (FUNCTION LOAD); in a cluster the operator of the same version does"
    )


def _constants() -> str:
    """What the Lua code shares with the Python reference, from the reference itself."""
    values: dict[str, str | int] = {
        "AT_MOST_ONCE": Delivery.AT_MOST_ONCE.value,
        "AT_LEAST_ONCE": Delivery.AT_LEAST_ONCE.value,
        "MAX_VERIFIES": guard.MAX_VERIFIES,
        "VERIFY_GRACE_TTLS": guard.VERIFY_GRACE_TTLS,
        "SCAN_LIMIT": claims.SCAN_LIMIT,
        "TOOL_QUEUE": port.TOOL_QUEUE,
        "LLM_QUEUE": port.LLM_QUEUE,
        "POLICY_MARK": port.POLICY_MARK,
        "TOOL_STARTED": ev.TOOL_STARTED,
        "TOOL_FAILED": ev.TOOL_FAILED,
        "TOOL_STALE_RESULT": ev.TOOL_STALE_RESULT,
        "LLM_FAILED": ev.LLM_FAILED,
        "TIMER_FIRED": ev.TIMER_FIRED,
        "UNKNOWN_JSON": json_text(claims.UNKNOWN_TEXT),
        "ABANDONED_JSON": json_text(claims.ABANDONED_TEXT),
        "PAGE_BYTES": PAGE_BYTES,
    }
    return "\n".join(f"K.{name} = {_literal(value)}" for name, value in values.items())


def _literal(value: str | int) -> str:
    return str(value) if isinstance(value, int) else f"[==[{value}]==]"
