"""Replays a run's log against docs/guarantees.md and names every statement that it breaks.

``check_run`` judges one log, ``check_store`` every run of a store, ``check_ledger`` an outside
ledger of effects. It finds what a history can show, and nothing else: a sound history is no
proof that, say, a lease was held by one worker only. It shares no code with the engine's fold
nor with the stores' logic, so that neither can vouch for itself.
"""

from aaa.check.finding import READABLE, Checker, Known, Terms, Violation
from aaa.check.history import History
from aaa.check.ledger import Effect, check_ledger
from aaa.check.statements import CHECKERS, check_run
from aaa.check.sweep import Report, check_store, check_stored

__all__ = [
    "CHECKERS",
    "READABLE",
    "Checker",
    "Effect",
    "History",
    "Known",
    "Report",
    "Terms",
    "Violation",
    "check_ledger",
    "check_run",
    "check_store",
    "check_stored",
]
