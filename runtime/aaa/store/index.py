"""The index of runs: rows as callers see them, and the filter that every backend shares."""

from __future__ import annotations

from collections.abc import Iterable

from aaa.store.port import Head, RunInfo
from aaa.store.rows import Run


def run_info(run: Run) -> RunInfo:
    """A row as the port's :class:`RunInfo`."""
    return RunInfo(
        run_id=run.run_id,
        app=run.app,
        digest=run.digest,
        status=run.status,
        head=Head(run.seq, run.last_id),
        cursor=run.cursor,
        cancelling=run.cancelling,
        suspended=run.suspended,
        parked=run.parked,
        awaiting=run.awaiting,
        unknown=run.unknown,
        created_ms=run.created_ms,
        closed_ms=run.closed_ms,
        deleted=run.deleted,
    )


def select(
    runs: Iterable[RunInfo], *, status: str | None, app: str | None, limit: int
) -> list[RunInfo]:
    """Filter and order a listing: newest first, tombstones left out."""
    found = [run for run in runs if not run.deleted and _matches(run, status, app)]
    found.sort(key=lambda run: (run.created_ms, run.run_id), reverse=True)
    return found[:limit]


def _matches(run: RunInfo, status: str | None, app: str | None) -> bool:
    if app is not None and run.app != app:
        return False
    match status:
        case None:
            return True
        case "waiting":
            return run.awaiting > 0
        case "unknown":
            return run.unknown > 0
        case _:
            return run.status == status
