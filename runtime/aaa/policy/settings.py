"""What is in force for one tool: the merged settings, where each came from, and their hash.

The hash is what an attempt records as the policy in force. It covers the effective values and
nothing else: two ways of arriving at the same settings give the same hash, and so do a laptop
and a cluster. It does not cover the tool's own code (``verify=``, a key function's body).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b

from aaa.policy.config import GUARD_FIELDS, GuardConfig
from aaa.policy.overrides import KEY_FROM_CODE, plain


@dataclass(frozen=True, kw_only=True)
class ToolSettings:
    """The effective settings of one tool. Made by :func:`aaa.policy.compile_settings`."""

    guard: GuardConfig = field(default_factory=GuardConfig)
    #: A person approves each call before its first attempt.
    requires_approval: bool = False
    #: Time limit of one attempt in seconds, or ``None``.
    timeout_s: float | None = None
    #: Template of the business key, or ``None``: ``<run id>/<call id>``, or see ``key_from_code``.
    idempotency_key_template: str | None = None
    #: The tool's own key function is in force.
    key_from_code: bool = False
    #: ``False``: a policy that lists the allowed tools does not list this one.
    allowed: bool = True
    #: The tool has a ``verify=``; used for validation only.
    has_verify: bool = False
    #: For each of ``SETTING_FIELDS`` and ``allowed``: where its value comes from, for people.
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    #: One sentence for each setting that a prefix entry asked for and that would have loosened.
    notes: tuple[str, ...] = field(default=(), compare=False)

    @cached_property
    def hash(self) -> str:
        """32 hex digits over the effective values; the policy in force."""
        return digest(self.to_json())

    def to_json(self) -> dict[str, object]:
        """The effective values as plain JSON, keyed like a layer, plus ``allowed``."""
        key = KEY_FROM_CODE if self.key_from_code else self.idempotency_key_template
        return {
            **{name: _canonical(name, getattr(self.guard, name)) for name in GUARD_FIELDS},
            "requires_approval": self.requires_approval,
            "timeout_s": _canonical("timeout_s", self.timeout_s),
            "idempotency_key": key,
            "allowed": self.allowed,
        }


def digest(value: object) -> str:
    """BLAKE2b-128 over a canonical JSON text with sorted keys, as 32 hex digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _canonical(name: str, value: object) -> object:
    """30 and 30.0 seconds are one setting and must give one hash."""
    seconds = name.endswith("_s") and isinstance(value, int)
    return float(value) if seconds else plain(value)  # type: ignore[arg-type]
