"""What is said in the status of each ToolPolicy. Pure.

``Accepted`` judges the policy alone; ``Propagated`` says whether the workers of every run that it
binds have acknowledged it, and names the policy that it contradicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from aaa.policy import PolicyLayers
from aaa_operator import conditions
from aaa_operator.actions import Action, WriteStatus
from aaa_operator.binding import conflict
from aaa_operator.conditions import Judged, because, no, open_, yes
from aaa_operator.observe import PolicySeen, Problem, Snapshot

#: Of one active run: the names of its policies, and whether its workers acknowledged them.
Bound = tuple[tuple[str, ...], bool]


def plan_policies(snapshot: Snapshot, bound: Sequence[Bound]) -> list[Action]:
    """Status writes for the policies whose status is not what it should be."""
    conflicts = _conflicts(snapshot.policies, bound)
    found: list[Action] = []
    for policy in snapshot.policies:
        if policy.meta.deleting:
            continue
        status = policy_status(policy, bound, conflicts, now_ms=snapshot.now_ms)
        if status == policy.status:
            continue
        found.append(
            WriteStatus(
                kind="ToolPolicy",
                name=policy.meta.name,
                uid=policy.meta.uid,
                resource_version=policy.meta.resource_version,
                status=status,
                reason="; ".join(
                    f"{each['type']}={each['status']}/{each['reason']}"
                    for each in status["conditions"]
                ),
            )
        )
    return found


def policy_status(
    policy: PolicySeen,
    bound: Sequence[Bound],
    conflicts: dict[str, Problem],
    *,
    now_ms: int,
) -> dict[str, Any]:
    """The whole status of a ToolPolicy."""
    mine = [acknowledged for names, acknowledged in bound if policy.meta.name in names]
    status: dict[str, Any] = {
        "observedGeneration": policy.meta.generation,
        "boundRuns": len(mine),
    }
    if policy.rules is not None:
        status["hash"] = PolicyLayers(policies=[policy.rules]).hash
    if "unmatchedTools" in policy.status:
        status["unmatchedTools"] = policy.status["unmatchedTools"]
    accepted = (
        because("Accepted", policy.problem) if policy.problem else yes("Accepted", "Accepted")
    )
    judged = [accepted, _propagated(policy, mine, conflicts.get(policy.meta.name))]
    status["conditions"] = conditions.merged(
        policy.status.get("conditions") or (),
        judged,
        now_ms=now_ms,
        generation=policy.meta.generation,
    )
    return status


def _propagated(policy: PolicySeen, mine: Sequence[bool], problem: Problem | None) -> Judged:
    if policy.problem is not None:
        return no("Propagated", "NotAccepted", "a policy that is not accepted reaches no worker")
    if problem is not None:
        return because("Propagated", problem)
    if not mine:
        return open_("Propagated", "NoRuns", "it binds no active run")
    missing = mine.count(False)
    if missing:
        return no(
            "Propagated",
            "AwaitingWorkers",
            f"the workers of {missing} runs have not acknowledged it",
        )
    return yes("Propagated", "Acknowledged", "the workers of every bound run have acknowledged it")


def _conflicts(policies: Sequence[PolicySeen], bound: Sequence[Bound]) -> dict[str, Problem]:
    """By policy: the first contradiction with another one that binds one of the same runs."""
    rules = {policy.meta.name: policy.rules for policy in policies}
    pairs = {
        pair for names in {names for names, _ in bound} for pair in combinations(sorted(names), 2)
    }
    found: dict[str, Problem] = {}
    for one, other in sorted(pairs):
        first, second = rules.get(one), rules.get(other)
        if first is None or second is None:
            continue
        problem = conflict(PolicyLayers(policies=[first, second]))
        if problem is not None:
            found.setdefault(one, problem)
            found.setdefault(other, problem)
    return found
