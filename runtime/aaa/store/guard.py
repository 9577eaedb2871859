"""The guard's state machine: one call, from request to result. Pure.

A call is always in one of five states, and :data:`TRANSITIONS` is the whole of what may happen.
:func:`judge` says what a worker's offer does to a call at a moment; the backends apply it inside
their atomic operation (memory and SQLite by calling it, Redis and Postgres by functions that the
conformance suite holds to the same replies).

::

    WAITING ──grant──▶ READY ──start──▶ LEASED ──settle──▶ SETTLED
       ▲                │  ▲              │  ▲                ▲
       └──────hold──────┘  └─(never)      │  └──start n+1     │
                                          ├──lost─────────────┤
                                          └──verify─▶ VERIFYING
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from aaa.policy.config import Delivery
from aaa.store.port import ToolTerms

#: How often ``verify=`` may be asked for one lost attempt before its outcome is unknown.
MAX_VERIFIES: Final = 3
#: A lost call with ``verify=`` waits so many of its TTLs for a worker that has the tool's code.
VERIFY_GRACE_TTLS: Final = 10


class State(StrEnum):
    """Where a call stands."""

    WAITING = "waiting"  # for a person's approval
    READY = "ready"  # on the bus, nobody's
    LEASED = "leased"  # attempt n runs, or its worker is gone
    VERIFYING = "verifying"  # attempt n was lost; verify= is asked, leased, nothing is started
    SETTLED = "settled"  # R:result stands


class Step(StrEnum):
    """What happens to a call."""

    SKIP = "skip"  # nothing, for this worker at this moment
    GRANT = "grant"
    HOLD = "hold"
    START = "start"  # the next attempt begins
    VERIFY = "verify"
    LOST = "lost"  # OutcomeUnknown is written
    ABANDON = "abandon"  # ExecutionAbandoned is written
    SETTLE = "settle"
    DROP = "drop"  # settled without an attempt: NotExecuted, rejected


TRANSITIONS: Final[dict[tuple[State, Step], State]] = {
    (State.WAITING, Step.GRANT): State.READY,
    (State.WAITING, Step.DROP): State.SETTLED,
    (State.READY, Step.HOLD): State.WAITING,
    (State.READY, Step.START): State.LEASED,
    (State.READY, Step.DROP): State.SETTLED,
    (State.LEASED, Step.START): State.LEASED,
    (State.LEASED, Step.VERIFY): State.VERIFYING,
    (State.LEASED, Step.LOST): State.SETTLED,
    (State.LEASED, Step.ABANDON): State.SETTLED,
    (State.LEASED, Step.SETTLE): State.SETTLED,
    (State.LEASED, Step.DROP): State.SETTLED,  # a model's answer that nobody wants any more
    (State.VERIFYING, Step.VERIFY): State.VERIFYING,
    (State.VERIFYING, Step.LOST): State.SETTLED,
    (State.VERIFYING, Step.ABANDON): State.SETTLED,
    (State.VERIFYING, Step.SETTLE): State.SETTLED,
}


@dataclass(slots=True, kw_only=True)
class Call:
    """A call's row. ``due_ms``: ready since, or the lease's end, by the store's clock."""

    run_id: str
    request_id: str
    seq: int
    app: str
    queue: str
    call_json: str
    name_json: str
    key_json: str
    args_digest: str
    state: State
    due_ms: int
    verify: bool
    #: Ready, but its run is suspended, parked or being cancelled: kept out of its queue.
    shelved: bool = False
    attempt: int = 0
    holder: str = ""
    nonce: str = ""
    lease_ttl_ms: int = 0
    delivery: str = ""
    cap: int = 0
    guarded: bool = True
    verifies: int = 0
    #: "" none asked, "needed", "granted", "used" (G19)
    approval: str = ""
    approval_until_ms: int = 0
    #: The result says that the effect is unknown, and nobody has resolved it.
    unknown: bool = False

    def take(self, step: Step) -> None:
        """Make a legal step; an illegal one is a programming error."""
        self.state = TRANSITIONS[self.state, step]


def judge(
    call: Call,
    terms: ToolTerms | None,
    *,
    now_ms: int,
    wall_ms: int,
    cancelled: bool,
    paused: bool,
) -> Step:
    """What an offer does to ``call``. ``terms`` is ``None`` for a worker without the tool's code."""
    if call.state is State.READY:
        return _judge_ready(call, terms, wall_ms, stopped=cancelled or paused)
    if call.state in (State.LEASED, State.VERIFYING) and call.due_ms <= now_ms:
        return _judge_lost(call, terms, now_ms, cancelled=cancelled, paused=paused)
    return Step.SKIP


def _judge_ready(call: Call, terms: ToolTerms | None, wall_ms: int, *, stopped: bool) -> Step:
    if terms is None or stopped:
        return Step.SKIP
    if terms.needs_approval and call.approval == "":
        return Step.HOLD
    if call.approval == "granted" and call.approval_until_ms <= wall_ms:
        return Step.HOLD
    return Step.START


def _judge_lost(
    call: Call, terms: ToolTerms | None, now_ms: int, *, cancelled: bool, paused: bool
) -> Step:
    guarded = call.guarded or (terms is not None and terms.guarded)  # tightened, never loosened
    if not guarded and not cancelled:
        return Step.START if terms and not paused else Step.SKIP
    once = in_force(call, terms)[0] == Delivery.AT_MOST_ONCE
    spent = call.attempt >= in_force(call, terms)[1]
    if not (once or spent or cancelled):
        return Step.START if terms and not paused else Step.SKIP
    end = Step.LOST if once or (cancelled and not spent) else Step.ABANDON
    if not call.verify or call.verifies >= MAX_VERIFIES:
        return end
    if terms is not None:
        return Step.VERIFY
    waited = now_ms - call.due_ms
    return end if waited > VERIFY_GRACE_TTLS * call.lease_ttl_ms else Step.SKIP


def in_force(call: Call, terms: ToolTerms | None) -> tuple[str, int]:
    """Delivery and cap: what the call was first claimed with, tightened by later terms (G22)."""
    if call.attempt == 0:
        return (terms.delivery, terms.max_attempts) if terms else (call.delivery, call.cap)
    if terms is None:
        return call.delivery, call.cap
    once = Delivery.AT_MOST_ONCE in (call.delivery, terms.delivery)
    delivery = Delivery.AT_MOST_ONCE if once else Delivery.AT_LEAST_ONCE
    return delivery.value, min(call.cap, terms.max_attempts)
