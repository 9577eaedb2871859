"""One layer's partial settings, checked where they are written.

A decorator, a ToolPolicy's defaults and each of its entries say something about *some* fields.
Such a layer is a plain mapping of the names in :data:`SETTING_FIELDS`. Checking one finds unknown
names, values out of bounds, and contradictions inside that one mapping; a contradiction with
another layer is found where layers meet (:mod:`aaa.policy.compile`).
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from enum import StrEnum

from aaa.errors import ConfigError
from aaa.policy.config import GUARD_FIELDS, MAX_LEASE_TTL_S, Delivery, GuardConfig
from aaa.policy.keys import check_template

#: What one layer may set.
SETTING_FIELDS: tuple[str, ...] = (
    *GUARD_FIELDS,
    "requires_approval",
    "timeout_s",
    "idempotency_key",
)
#: Stands for a key function in a layer that left its process (a function has no JSON form).
#: It can never be mistaken for a template: one without a placeholder is refused.
KEY_FROM_CODE = "<code>"
#: Longest time limit of one attempt, in seconds: a week.
MAX_TIMEOUT_S = 604_800.0
MIN_TIMEOUT_S = 0.001


def check_overrides(
    overrides: Mapping[str, object], *, has_verify: bool = False, where: str = ""
) -> dict[str, object]:
    """Return the layer with its values normalised (enums, floats, ``None`` time limits).

    ``where`` begins each message ("tool 'refund'"). ``idempotency_key`` may be a template or a
    function of the arguments; a function becomes :data:`KEY_FROM_CODE`. Raises
    :class:`ConfigError` naming field and bound.
    """
    try:
        checked = {name: _check_field(name, value) for name, value in overrides.items()}
        problem = contradiction(checked, has_verify=has_verify)
        if problem is not None:
            raise ConfigError(problem[1])
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from None
    return checked


def contradiction(
    values: Mapping[str, object], *, has_verify: bool
) -> tuple[tuple[str, ...], str] | None:
    """The fields of ``values`` that cannot stand together and why, or ``None``. Absent is fine."""
    heartbeat, ttl = values.get("heartbeat_s"), values.get("lease_ttl_s")
    if isinstance(heartbeat, float) and isinstance(ttl, float) and heartbeat >= ttl:
        return ("heartbeat_s", "lease_ttl_s"), (
            f"heartbeat_s ({heartbeat:g}) must be smaller than lease_ttl_s ({ttl:g})"
        )
    if values.get("enabled") is not False:
        return None
    because = "without the guard no attempt is recorded that it could hold on to"
    if values.get("delivery") == Delivery.AT_MOST_ONCE:
        return ("enabled", "delivery"), (
            f"enabled=False cannot be combined with delivery='at_most_once': {because}"
        )
    if values.get("requires_approval") is True:
        return ("enabled", "requires_approval"), (
            f"enabled=False cannot be combined with requires_approval=True: {because}"
        )
    if has_verify:
        return ("enabled",), f"enabled=False cannot be combined with verify=: {because}"
    return None


def plain(value: object) -> object:
    """The JSON form of a normalised value."""
    return value.value if isinstance(value, StrEnum) else value


def _check_field(name: str, value: object) -> object:
    if name in GUARD_FIELDS:
        return _check_guard_field(name, value)
    if name == "requires_approval":
        if not isinstance(value, bool):
            raise ConfigError(f"requires_approval must be true or false, not {value!r}")
        return value
    if name == "timeout_s":
        return _check_timeout(value)
    if name == "idempotency_key":
        if value is None or value == KEY_FROM_CODE:
            return value
        return KEY_FROM_CODE if callable(value) else check_template(value)
    close = get_close_matches(name, SETTING_FIELDS, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(SETTING_FIELDS)}"
    raise ConfigError(f"{name!r} is not a setting{hint}")


def _check_guard_field(name: str, value: object) -> object:
    given: dict[str, object] = {name: value}
    if name == "heartbeat_s" and value is not None:  # judged against the TTL where layers meet
        if value == MAX_LEASE_TTL_S:
            raise ConfigError(f"heartbeat_s must be below {MAX_LEASE_TTL_S:g} seconds")
        given["lease_ttl_s"] = MAX_LEASE_TTL_S
    checked: object = getattr(GuardConfig(**given), name)  # type: ignore[arg-type]
    is_number = isinstance(checked, int) and not isinstance(checked, bool)
    return float(checked) if is_number and name.endswith("_s") else checked  # type: ignore[arg-type]


def _check_timeout(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"timeout_s must be a number of seconds, not {value!r}")
    if not MIN_TIMEOUT_S <= value <= MAX_TIMEOUT_S:  # NaN fails both comparisons
        raise ConfigError(
            f"timeout_s must be between {MIN_TIMEOUT_S:g} and {MAX_TIMEOUT_S:g} seconds, "
            f"not {value}"
        )
    return float(value)
