"""A snapshot into actions: pure, and the same snapshot always gives the same plan.

Three parts: the pools that the runs need (:mod:`aaa_operator.pools`), each AgentRun by itself
(:mod:`aaa_operator.runs`), and what policies and decisions have to be told. A plan of a world that
is as it should be is empty, so that nothing is written without a change. The order of the actions
is the order in which they are carried out: a pool's ConfigMap before its Deployment, an id before
its run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aaa_operator.actions import Action
from aaa_operator.decisions import plan_decisions
from aaa_operator.observe import Snapshot
from aaa_operator.orphans import plan_orphans
from aaa_operator.policies import plan_policies
from aaa_operator.pools import crowded_pools, plan_pools
from aaa_operator.restart import plan_restarts
from aaa_operator.runs import plan_run
from aaa_operator.settings import PoolSettings


@dataclass(slots=True)
class Plan:
    """What to do now, and when to look again although nothing was heard."""

    actions: list[Action] = field(default_factory=list)
    again_in_ms: int | None = None

    def again(self, in_ms: int) -> None:
        wait = max(0, in_ms)
        self.again_in_ms = wait if self.again_in_ms is None else min(self.again_in_ms, wait)


def plan(snapshot: Snapshot, settings: PoolSettings) -> Plan:
    """Everything that a namespace needs now."""
    found = Plan()
    plans = [plan_run(run, snapshot, settings) for run in snapshot.runs]
    full = crowded_pools(each.demand for each in plans if each.demand is not None)
    if full:
        plans = [plan_run(run, snapshot, settings, crowded=full) for run in snapshot.runs]
    cancels, kept = plan_orphans(snapshot)
    demands = [*(each.demand for each in plans if each.demand is not None), *kept]
    pools = plan_pools(snapshot, demands, settings)
    found.actions += pools.actions
    found.actions += plan_restarts(snapshot)
    found.actions += cancels
    for each in plans:
        found.actions += each.actions
        if each.again_in_ms is not None:
            found.again(each.again_in_ms)
    if pools.again_in_ms is not None:
        found.again(pools.again_in_ms)
    bound = [each.bound for each in plans if each.bound is not None and each.bound.policies]
    found.actions += plan_policies(snapshot, bound)
    found.actions += plan_decisions(snapshot)
    return found
