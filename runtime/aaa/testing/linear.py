"""Is there one order of what several workers did to a call that explains every answer?

A history of overlapping operations on one call, each with the moments of its request and its
reply, is *linearizable* if they can be put into an order that respects real time (what was answered
before another was asked stands before it) and in which each answer is the one that a single
lock-keeper would have given. That is G1, G2, G6 and G7 at once, seen from outside; leases must
outlast the history. The search is Wing and Gong's, which remembers where it has been.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operation and its answer; ``asked`` and ``told`` are moments of one monotonic clock.

    ``claim``: ``attempt`` and ``answer`` are the attempt's number, 0 if nothing was given.
    ``settle``: the verdict. ``release``: ``"1"`` if the lease was given back, else ``"0"``.
    ``renew``: ``"kept"`` or ``"lost"``.
    """

    kind: str
    worker: str
    attempt: int
    answer: str
    asked: float
    told: float


@dataclass(frozen=True, slots=True)
class _Call:
    """What the lock-keeper knows of the call."""

    attempt: int = 0
    holder: str = ""
    leased: bool = False
    result_of: int = 0


def linearizable(history: Sequence[Step]) -> bool:
    """Whether one order explains the history of one call. ``at_least_once``, fenced, no cap."""
    steps = sorted(history, key=lambda step: step.asked)
    everything = (1 << len(steps)) - 1
    ahead = [(0, _Call())]
    known = set(ahead)
    while ahead:
        done, call = ahead.pop()
        if done == everything:
            return True
        left = [at for at in range(len(steps)) if not done >> at & 1]
        first_told = min(steps[at].told for at in left)
        for at in left:
            if steps[at].asked > first_told:
                break  # it was asked after another one had been answered that isn't placed yet
            after = _next(call, steps[at])
            if after is not None and (place := (done | 1 << at, after)) not in known:
                known.add(place)
                ahead.append(place)
    return False


def _next(call: _Call, step: Step) -> _Call | None:
    """The call after this step, or ``None`` if it would have been answered otherwise."""
    mine = call.holder == step.worker and call.attempt == step.attempt and not call.result_of
    match step.kind:
        case "claim":
            free = not call.leased and not call.result_of
            if not step.attempt:
                return None if free else call
            claimed = _Call(attempt=step.attempt, holder=step.worker, leased=True)
            return claimed if free and step.attempt == call.attempt + 1 else None
        case "release":
            if step.answer == "1":
                return replace(call, leased=False) if mine else None
            return None if mine else call
        case "renew":
            return call if (step.answer == "kept") == (mine and call.leased) else None
        case "settle":
            return _settled(call, step)
    raise ValueError(f"a step of an unknown kind: {step.kind!r}")


def _settled(call: _Call, step: Step) -> _Call | None:
    expected = "applied"
    if call.result_of:
        expected = "dup" if call.result_of == step.attempt else "stale"
    elif step.attempt != call.attempt:
        expected = "stale"
    if step.answer != expected:
        return None
    applied = expected == "applied"
    return replace(call, leased=False, result_of=step.attempt) if applied else call
