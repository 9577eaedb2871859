"""Submitting: the operation that begins a run, and what the store's answer to it means. Pure."""

from __future__ import annotations

from typing import Any

from aaa import events as ev
from aaa import ids
from aaa.algos import Algorithm
from aaa.errors import ConfigError, RunConflict, RunDeleted
from aaa.runtime.decide import DEADLINE, MAX_TIMER_MS
from aaa.runtime.outcome import Run
from aaa.store import port
from aaa.store.port import Why


def new_run(
    run_id: str,
    app: str,
    algorithm: Algorithm,
    input: Any,  # noqa: A002
    *,
    deadline_s: float | None = None,
) -> port.Create:
    """The operation that begins a run, with everything that it is pinned to (L11)."""
    try:
        digest = ids.digest_of(ids.canonical(input))
    except ValueError as error:
        raise ConfigError(f"the input of run {run_id} is {error}") from None
    data = {
        "algorithm": algorithm.name,
        "app": app,
        "input": input,
        "version": algorithm.version,
    }
    root = ev.run_requested(run_id, data)
    entries = [port.Entry(root)]
    if deadline_s is not None:
        if not 0 <= deadline_s * 1000 <= MAX_TIMER_MS:
            raise ConfigError(f"run {run_id}: deadline_s must be 0 to 100 years, not {deadline_s}")
        after_ms = round(deadline_s * 1000)
        timer = root.caused(ev.TIMER_SET, {"after_ms": after_ms, "name": DEADLINE})
        effect = port.StartTimer(ids.json_text(DEADLINE), after_ms)
        entries.append(port.Entry(timer, effect))
    return port.Create(run_id=run_id, app=app, digest=digest, entries=tuple(entries))


def submitted(run_id: str, verdict: port.Verdict) -> Run:
    """What the store's answer means for the caller. Raises RunConflict or RunDeleted."""
    match verdict:
        case port.Appended():
            return Run(run_id, dup=verdict.dups[0])
        case port.Refused(why=Why.DELETED):
            raise RunDeleted(f"run {run_id} was deleted; submit it under another run id")
        case port.Refused(why=Why.EXISTS):
            raise RunConflict(
                f"run {run_id} exists with other input; use the same input or another run id"
            )
    raise AssertionError(f"unexpected verdict {verdict!r}")
