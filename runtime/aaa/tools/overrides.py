"""Checks the delivery settings that a decorator gives, while the tool is being defined.

A decorator's settings are partial: they override whatever the handler's default will be. So a
value that is wrong by itself, or two that contradict each other, fail here; what can only be
judged beside the handler's default (a ``heartbeat_s`` alone) is left to ``attach()`` (G17).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from aaa.errors import ConfigError
from aaa.policy.config import GUARD_FIELDS, MAX_LEASE_TTL_S, GuardConfig


def checked_overrides(
    tool_name: str, *, delivery: str | None, guard: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """The overrides as one read-only mapping, values normalised; raises ConfigError."""
    where = f"tool {tool_name!r}"
    if guard is not None and not isinstance(guard, Mapping):
        raise ConfigError(
            f"{where}: guard must be a mapping of the GuardConfig fields to change, "
            f"such as guard={{'max_attempts': 1}}, not {type(guard).__name__}"
        )
    overrides: dict[str, Any] = dict(guard or {})
    for field in overrides:
        if field not in GUARD_FIELDS:
            raise ConfigError(
                f"{where}: guard has no field {field!r}; it has {', '.join(GUARD_FIELDS)}"
            )
    if delivery is not None and overrides.setdefault("delivery", delivery) != delivery:
        raise ConfigError(
            f"{where}: delivery={delivery!r} contradicts guard['delivery']="
            f"{overrides['delivery']!r}; give it once"
        )
    # A heartbeat without a TTL beside it is held against the widest TTL there is.
    wide = {"lease_ttl_s": MAX_LEASE_TTL_S} if overrides.get("heartbeat_s") is not None else {}
    try:
        probe = GuardConfig(**{**wide, **overrides})
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return MappingProxyType({field: getattr(probe, field) for field in overrides})
