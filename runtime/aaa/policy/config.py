"""GuardConfig: how one tool's calls are delivered, field by field.

A config is *partial* or *effective*. Partial ones (an override on a decorator, an entry of a
ToolPolicy) are plain mappings of field names; :mod:`aaa.policy.compile` merges them. A
:class:`GuardConfig` is always complete and always valid: construction refuses anything else.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from aaa.errors import ConfigError


class Delivery(StrEnum):
    """What happens to a call whose attempt was lost."""

    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"


class OnLostLease(StrEnum):
    """What a worker does with a running tool when it learns that its lease is gone."""

    CANCEL = "cancel"
    FINISH = "finish"


#: Longest lease that is accepted; a worker silent for a day is not coming back.
MAX_LEASE_TTL_S = 86_400.0
MIN_LEASE_TTL_S = 0.05
MAX_ATTEMPTS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """Delivery settings of a tool, or a handler's default for all its tools.

    Durations are seconds. Raises :class:`aaa.errors.ConfigError` naming the field and its bound.
    """

    #: ``False``: no lease and no attempt records; a lost call is still redelivered, unnoticed.
    enabled: bool = True
    #: ``at_least_once`` re-runs a lost call; ``at_most_once`` reports it as OutcomeUnknown.
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    #: Cap on executions of one call under ``at_least_once``; 3 survives two bad nodes in a row.
    max_attempts: int = 3
    #: How long a silent worker keeps its claim. Smaller is faster takeover, more false alarms.
    lease_ttl_s: float = 15.0
    #: Renewal period; ``None`` is a third of the TTL, so that two renewals may fail.
    heartbeat_s: float | None = None
    #: Seconds after a lease's end by which a worker has looked at the call again (G14).
    wait_poll_s: float = 0.5
    #: Whether a worker that lost its lease cancels the tool or lets it finish.
    on_lost_lease: OnLostLease = OnLostLease.CANCEL
    #: ``True``: the outcome of a superseded attempt is kept as ``aaa.tool.stale_result`` only.
    fence_results: bool = True

    def __post_init__(self) -> None:
        for name, enum in (("delivery", Delivery), ("on_lost_lease", OnLostLease)):
            _coerce_enum(self, name, enum)
        for name in ("enabled", "fence_results"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(
                    f"guard.{name} must be true or false, not {getattr(self, name)!r}"
                )
        _check_integer("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS)
        _check_seconds("lease_ttl_s", self.lease_ttl_s, MIN_LEASE_TTL_S, MAX_LEASE_TTL_S)
        _check_seconds("wait_poll_s", self.wait_poll_s, 0.001, 3_600.0)
        if self.heartbeat_s is not None:
            _check_seconds("heartbeat_s", self.heartbeat_s, 0.001, MAX_LEASE_TTL_S)
            if self.heartbeat_s >= self.lease_ttl_s:
                raise ConfigError(
                    f"guard.heartbeat_s ({self.heartbeat_s:g}) must be smaller than "
                    f"guard.lease_ttl_s ({self.lease_ttl_s:g}); leave it out for a third of the TTL"
                )
        if not self.enabled and self.delivery is Delivery.AT_MOST_ONCE:
            raise ConfigError(
                "guard.enabled=False cannot be combined with delivery='at_most_once': "
                "without a lease nothing can tell a first attempt from a second"
            )

    @property
    def renew_every_s(self) -> float:
        """The renewal period in force, in seconds."""
        return self.lease_ttl_s / 3 if self.heartbeat_s is None else self.heartbeat_s


GUARD_FIELDS: tuple[str, ...] = tuple(field.name for field in fields(GuardConfig))


def _coerce_enum(config: GuardConfig, name: str, enum: type[StrEnum]) -> None:
    value = getattr(config, name)
    try:
        object.__setattr__(config, name, enum(value))
    except ValueError:
        choices = " or ".join(repr(member.value) for member in enum)
        raise ConfigError(f"guard.{name} must be {choices}, not {value!r}") from None


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"guard.{name} must be a whole number, not {value!r}")
    if not low <= value <= high:
        raise ConfigError(f"guard.{name} must be between {low} and {high}, not {value}")


def _check_seconds(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"guard.{name} must be a number of seconds, not {value!r}")
    if not low <= value <= high:  # NaN fails both comparisons
        raise ConfigError(f"guard.{name} must be between {low:g} and {high:g} seconds, not {value}")
