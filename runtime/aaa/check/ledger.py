"""Checks an outside ledger of effects against the logs: what really ran, and how often.

A ledger is kept by the system that the tools act on, apart from the store: one record for each
execution that reached it. It is the only witness of what the log cannot see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aaa.check.finding import Terms, Violation
from aaa.check.history import Call, History
from aaa.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One execution as the outside saw it. ``at`` is its own time or place, for people."""

    key: str
    run_id: str
    call_id: str
    attempt: int
    at: float = 0.0


#: Results that say that nothing was executed, with the statement that an effect then breaks.
_NEVER_RUN: Final = {
    "NotExecuted": "G4",
    "ApprovalRejected": "G19",
    "RepeatedIntent": "G21",
    "InvalidArguments": "G3",
    "UnknownTool": "G3",
}


def check_ledger(
    events_by_run: Mapping[str, Sequence[Event]],
    ledger: Iterable[Effect],
    *,
    terms: Mapping[str, Terms] | None = None,
) -> list[Violation]:
    """What the ledger's effects break. ``terms``: by the policy hash that attempts record."""
    effects: dict[str, list[Effect]] = {}
    for effect in ledger:
        effects.setdefault(effect.run_id, []).append(effect)
    found: list[Violation] = []
    for run_id, seen in effects.items():
        history = History(run_id, events_by_run.get(run_id, ()))
        calls = {call.call_id: call for call in history.calls.values()}
        per_call: dict[str, list[Effect]] = {}
        for effect in seen:
            per_call.setdefault(effect.call_id, []).append(effect)
        for call_id, done in per_call.items():
            known = calls.get(call_id)
            if known is None:
                sentence = f"an effect of call {call_id}, which the log does not have"
                found.append(Violation("L1", run_id, None, sentence))
                continue
            for statement, sentence in _of_call(known, done, terms or {}):
                found.append(Violation(statement, run_id, known.request.seq, sentence))
    return found


def _of_call(
    call: Call, done: Sequence[Effect], terms: Mapping[str, Terms]
) -> Iterator[tuple[str, str]]:
    name, begun = call.call_id, {start.data["attempt"]: start for start in call.starts}
    error = None if call.result is None else call.result.data.get("error")
    if error in _NEVER_RUN and not (error == "NotExecuted" and call.starts):
        yield _NEVER_RUN[error], f"call {name} failed as {error}, and yet had an effect"
    seen: set[int] = set()
    for effect in done:
        if call.starts and effect.attempt not in begun:
            yield "G2", f"an effect of attempt {effect.attempt} of call {name}, which never began"
        if call.starts and effect.attempt in seen:
            yield "G2", f"attempt {effect.attempt} of call {name} ran more than once"
        if effect.key != call.key:
            yield "G13", f"an effect of call {name} carries the key {effect.key!r}, not its own"
        seen.add(effect.attempt)
    known = [terms[s.settings] for s in call.starts if s.settings in terms]
    if any(each.once for each in known) and len(done) > 1:
        yield "G4", f"call {name} may happen once, and happened {len(done)} times"
    elif known and len(done) > (cap := min(each.max_attempts for each in known)):
        yield "G5", f"call {name} may run {cap} times, and ran {len(done)} times"
