"""The table of what a history can show: one checker for each statement of docs/guarantees.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from aaa.check import attempts, decisions, intents, log, people
from aaa.check.finding import READABLE, Checker, Known, Terms, Violation
from aaa.check.history import History
from aaa.events import Event
from aaa.store.port import RunInfo

CHECKERS: Final[Mapping[str, Checker]] = {
    READABLE: log.readable,
    "L1": log.causes,
    "L2": log.stands_once,
    "L3": log.dense,
    "L4": log.same_everywhere,
    "L5": decisions.one_result,
    "L6": log.index_agrees,
    "L7": decisions.nothing_dropped,
    "L8": decisions.one_decision_at_a_time,
    "L11": log.pinned,
    "L12": log.tombstone,
    "L13": decisions.cancelling,
    "L14": log.timers,
    "G2": attempts.claimed_once,
    "G3": attempts.dense_attempts,
    "G4": attempts.at_most_once,
    "G5": attempts.bounded_attempts,
    "G6": attempts.settled_once,
    "G7": attempts.fenced_results,
    "G9": attempts.fenced_workers,
    "G13": intents.keys,
    "G15": attempts.one_outcome_an_attempt,
    "G16": attempts.rejected_results,
    "G18": attempts.unguarded,
    "G19": people.approvals,
    "G20": attempts.not_run_again,
    "G21": intents.repeats,
    "G22": attempts.only_tightened,
    "G24": decisions.models,
}


def check_run(
    events: Sequence[Event],
    info: RunInfo | None = None,
    *,
    run_id: str | None = None,
    terms: Mapping[str, Terms] | None = None,
) -> list[Violation]:
    """Every statement that this log breaks, in the order of the log; none if it is sound.

    ``info`` is the run's index entry, read while the log stood still; ``terms`` are the settings
    behind the policy hashes that attempts record. Without one, what needs it is not checked.
    ``run_id`` is needed only where neither ``info`` nor an event can tell it.
    """
    if run_id is None:
        run_id = info.run_id if info is not None else events[0].run_id if events else ""
    history, known = History(run_id, events), Known(info=info, terms=terms or {})
    found = [
        Violation(statement, run_id, seq, sentence)
        for statement, check in CHECKERS.items()
        for seq, sentence in check(history, known)
    ]
    return sorted(found, key=lambda each: (each.seq is None, each.seq or 0))
