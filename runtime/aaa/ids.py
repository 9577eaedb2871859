r"""Canonical encoding and deterministic ids (L4), and the partition of a run.

Canonical JSON, version 1, written down in docs/encoding.md:

- UTF-8, no white space, object keys sorted by code point, characters unescaped except ``"``, ``\\``
  and control characters;
- keys are strings; integers fit 64 bits; floats are finite and written as Python's shortest
  ``repr``; lone surrogates, NaN and infinities are refused;
- ``1`` and ``1.0`` are different data.

An id is BLAKE2b-128 over the length-prefixed parent id, type and canonical data, in hex. The same
bytes come out on every process, machine and Python version; ``tests/golden/`` holds vectors.
"""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from typing import Any

import orjson

from aaa.errors import ConfigError

_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode

_STRICT = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATETIME
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def canonical(data: Any) -> bytes:
    """Encode ``data`` canonically. Raises ``ValueError`` for what has no canonical form."""
    try:
        # orjson refuses what the standard encoder would coerce or let through: keys that are not
        # strings, integers beyond 64 bits, lone surrogates, over-deep nesting. It writes the very
        # same bytes, several times faster, except for floats.
        fast = orjson.dumps(data, option=_STRICT)
        return _encode(data).encode() if _has_float(data) else fast
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not canonical JSON: {error}") from None


def _has_float(data: Any) -> bool:
    kind = type(data)
    if kind is dict:
        return any(map(_has_float, data.values()))
    if kind is list or kind is tuple:
        return any(map(_has_float, data))
    return kind is float


def decode(raw: bytes) -> Any:
    """Read canonical JSON back. Raises ``ValueError`` for anything that is not JSON."""
    return orjson.loads(raw)


def json_text(value: str) -> str:
    """One string as canonical JSON, to be spliced into an object by a store."""
    return _encode(value)


def derive(parent: str, type_: str, data: bytes) -> str:
    """Id of the event that ``parent`` causes with ``type_`` and canonical ``data``: 32 hex digits."""
    digest = blake2b(digest_size=16, person=b"aaa-event-v1")
    for part in (parent.encode(), type_.encode(), data):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def digest_of(data: bytes) -> str:
    """Digest of canonical bytes, for inputs and arguments: 32 hex digits."""
    return blake2b(data, digest_size=16, person=b"aaa-digest-v1").hexdigest()


def result_id(request_id: str) -> str:
    """Id of a request's one result (L5)."""
    return f"{request_id}:result"


def attempt_id(request_id: str, attempt: int) -> str:
    """Id of the ``aaa.tool.started`` of an attempt (G3)."""
    return f"{request_id}:attempt:{attempt}"


def partition_of(run_id: str, partitions: int) -> int:
    """The partition that holds a run: stored with the data, never ``hash()``."""
    digest = blake2b(run_id.encode(), digest_size=8, person=b"aaa-partition-v1").digest()
    return int.from_bytes(digest, "big") % partitions


def check_run_id(run_id: str) -> str:
    """Return ``run_id`` if it is safe in keys and paths; raise :class:`ConfigError` otherwise."""
    if not _RUN_ID.fullmatch(run_id):
        raise ConfigError(
            f"run id {run_id!r} must be 1 to 200 letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit"
        )
    return run_id
