"""What "tighter" means for each field, and what holds for a call that has already begun.

The measure is the harm of a repeated or unwatched effect, never speed:

=================== ====================================================================
field               tighter is
=================== ====================================================================
enabled             ``True``: there is a lease and a record
delivery            ``at_most_once``
max_attempts        smaller: fewer possible repeats
lease_ttl_s         larger: a slow heartbeat is mistaken for a death less often
heartbeat_s         a shorter renewal period: a worker learns of its loss sooner
wait_poll_s         smaller: a lost call is seen, and reported, sooner
on_lost_lease       ``cancel``
fence_results       ``True``
requires_approval   ``True``
timeout_s           smaller; any limit is tighter than none
idempotency_key     a key where there was none; one key is never tighter than another
=================== ====================================================================
"""

from __future__ import annotations

from dataclasses import replace

from aaa.policy.config import GUARD_FIELDS, Delivery, GuardConfig, OnLostLease

#: The tightest value of the fields that have one.
_TIGHTEST: dict[str, object] = {
    "enabled": True,
    "delivery": Delivery.AT_MOST_ONCE,
    "on_lost_lease": OnLostLease.CANCEL,
    "fence_results": True,
    "requires_approval": True,
}


def tightens(old: GuardConfig, new: GuardConfig) -> bool:
    """Whether ``new`` is at least as tight as ``old`` in every field (G22)."""
    return all(
        not looser(name, old=_period(old, name), new=_period(new, name)) for name in GUARD_FIELDS
    )


def pin(first: GuardConfig, later: GuardConfig) -> GuardConfig:
    """What is in force for a call that was first claimed under ``first`` (G22).

    A later policy cannot turn an attempt that has begun into one that may be repeated: delivery
    stays ``at_most_once`` if either says so, the cap is the smaller one, and a call that was
    claimed with a lease keeps having one. The other fields (lease and heartbeat periods, what to
    do on a lost lease, fencing) follow ``later``.
    """
    at_most_once = Delivery.AT_MOST_ONCE in (first.delivery, later.delivery)
    return replace(
        later,
        enabled=first.enabled or later.enabled,
        delivery=Delivery.AT_MOST_ONCE if at_most_once else Delivery.AT_LEAST_ONCE,
        max_attempts=min(first.max_attempts, later.max_attempts),
    )


def looser(name: str, *, old: object, new: object) -> bool:
    """Whether setting the field ``name`` from ``old`` to ``new`` would loosen it."""
    if old == new:
        return False
    if name in _TIGHTEST:
        return new != _TIGHTEST[name]
    if name == "idempotency_key":
        return old is not None
    if old is None:  # no limit yet: any limit is tighter
        return False
    if not isinstance(old, (int, float)) or not isinstance(new, (int, float)):
        return True  # taking a limit away
    return new < old if name == "lease_ttl_s" else new > old


def _period(config: GuardConfig, name: str) -> object:
    return config.renew_every_s if name == "heartbeat_s" else getattr(config, name)
