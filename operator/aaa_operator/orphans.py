"""What nobody claims any more: open runs in the store whose AgentRun is gone. Pure.

A deletion always ends, also while the store is out of reach, with the chart uninstalled or by a hand
that takes the finalizer off; the run goes on in the store then. It is found there again and cancelled,
and its pool stays until it has ended. Only what is certainly ours is touched: a run whose id is one of
those that the operator makes up, of an app whose scope is a pool that stands in this namespace (a
pool's name is a hash over the namespace's UID).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from aaa.client import RunInfo
from aaa_operator.actions import Action, Control
from aaa_operator.binding import layers_in
from aaa_operator.ending import BY, calls_of
from aaa_operator.observe import Progress, RunSeen, Snapshot
from aaa_operator.pools import Demand, pool_state
from aaa_operator.render import pool_of_revision
from aaa_operator.submit import run_id_of

_OURS: Final = ("run.", "key.")
#: Why a pool may have no worker that is no reason to give it up.
_COMES_UP: Final = (None, "Starting", "ScaledToZero")


def unclaimed(
    found: Iterable[RunInfo], runs: Iterable[RunSeen], pools: Collection[str]
) -> frozenset[str]:
    """The ids of the runs among ``found`` that none of these AgentRuns is, or would become."""
    claimed = {name for run in runs for name in (run.run_id, run_id_of(run))}
    return frozenset(
        info.run_id
        for info in found
        if info.run_id.startswith(_OURS)
        and info.app.partition("/")[0] in pools
        and info.run_id not in claimed
    )


def plan_orphans(snapshot: Snapshot) -> tuple[list[Action], list[Demand]]:
    """Cancel each, and keep workers for it until it has ended."""
    actions: list[Action] = []
    demands: list[Demand] = []
    for run_id in sorted(snapshot.orphans):
        progress = snapshot.store.runs.get(run_id)
        if progress is None or progress.ended or snapshot.store.problem is not None:
            continue
        if not progress.cancelling:
            reason = "its AgentRun is gone"
            actions.append(Control(run_id=run_id, verb="cancel", by=BY, reason=reason))
        demand = _demand(progress, snapshot)
        if demand is not None:
            demands.append(demand)
    return actions, demands


def _demand(progress: Progress, snapshot: Snapshot) -> Demand | None:
    """A worker, unless the pool can have none: then nobody would ever see why it stands."""
    standing = snapshot.pools.get(progress.app.partition("/")[0])
    if standing is None or standing.revision is None:
        return None
    problem = pool_state(standing).problem
    if (None if problem is None else problem.reason) not in _COMES_UP:
        return None
    layers = layers_in(standing.config, progress.policy)
    return Demand(
        pool=pool_of_revision(standing.revision),
        layers=() if layers is None else (layers,),
        calls=max(1, calls_of(progress, needs=True)),
    )
