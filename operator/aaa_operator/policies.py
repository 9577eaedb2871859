"""What is said in the status of each ToolPolicy. Pure.

``Accepted`` judges the policy alone; ``Propagated`` says whether the workers of every run that it
binds have acknowledged it, and names the policy that it contradicts; ``ToolsMatched`` whether the
tools that it names are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from itertools import combinations
from typing import Any, Final

from aaa.policy import PolicyLayers, unmatched_tools
from aaa_operator import conditions
from aaa_operator.actions import Action, WriteStatus
from aaa_operator.binding import Bound, conflict
from aaa_operator.conditions import Judged, because, no, open_, yes
from aaa_operator.observe import PolicySeen, PoolCode, Problem, Snapshot

#: The condition that says whether the policy's entries name tools that there are.
MATCHED: Final = "ToolsMatched"
MAX_UNMATCHED: Final = 256


def plan_policies(snapshot: Snapshot, bound: Sequence[Bound]) -> list[Action]:
    """Status writes for the policies whose status is not what it should be."""
    conflicts = _conflicts(snapshot.policies, bound)
    code = snapshot.store.code
    found: list[Action] = []
    for policy in snapshot.policies:
        if policy.meta.deleting:
            continue
        status = policy_status(policy, bound, conflicts, code=code, now_ms=snapshot.now_ms)
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
    code: Mapping[str, PoolCode],
    now_ms: int,
) -> dict[str, Any]:
    """The whole status of a ToolPolicy."""
    mine = [each for each in bound if policy.meta.name in each.policies]
    status: dict[str, Any] = {
        "observedGeneration": policy.meta.generation,
        "boundRuns": len(mine),
    }
    if policy.rules is not None:
        status["hash"] = PolicyLayers(policies=[policy.rules]).hash
    matched, unmatched = _matched(policy, {each.pool for each in mine}, code)
    if unmatched:
        status["unmatchedTools"] = unmatched[:MAX_UNMATCHED]
    accepted = (
        because("Accepted", policy.problem) if policy.problem else yes("Accepted", "Accepted")
    )
    judged = [
        accepted,
        _propagated(policy, [each.acknowledged for each in mine], conflicts.get(policy.meta.name)),
        *matched,
    ]
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


def _matched(
    policy: PolicySeen, pools: Set[str], code: Mapping[str, PoolCode]
) -> tuple[list[Judged], list[str]]:
    """Whether each entry names a tool of some run: a misspelt name must not read as protection.

    Judged once the workers of every bound run have said which tools there are; until then, and
    when the last of them has gone, the verdict before stands.
    """
    if policy.rules is None or not policy.rules.tools:
        return [], []
    if not pools or not pools <= set(code):
        before = policy.status.get("conditions") or ()
        unjudged = open_(MATCHED, "AwaitingWorkers", "no worker has said yet which tools there are")
        known = any(found.get("type") == MATCHED for found in before)
        return [] if known else [unjudged], list(policy.status.get("unmatchedTools") or ())
    known_tools = sorted({tool.name for pool in pools for tool in code[pool].tools})
    unmatched = list(unmatched_tools([policy.rules], known_tools).get(policy.meta.name, ()))
    if not unmatched:
        return [yes(MATCHED, "Matched", "every entry matches a tool of a bound run")], []
    return [
        no(
            MATCHED,
            "UnmatchedTools",
            f"{', '.join(unmatched)}: no tool of a bound run has such a name, so that it says "
            f"nothing; mend it (their tools are {', '.join(known_tools) or 'none'})",
        )
    ], unmatched


def _conflicts(policies: Sequence[PolicySeen], bound: Sequence[Bound]) -> dict[str, Problem]:
    """By policy: the first contradiction with another one that binds one of the same runs."""
    rules = {policy.meta.name: policy.rules for policy in policies}
    pairs = {
        pair
        for names in {each.policies for each in bound}
        for pair in combinations(sorted(names), 2)
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
