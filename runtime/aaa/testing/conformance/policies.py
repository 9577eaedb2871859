"""A run that requires a policy: its calls are claimed under that one, or not at all (G22)."""

from __future__ import annotations

from aaa import events as ev
from aaa.store import port
from aaa.store.port import Entry
from aaa.testing.conformance.cases import case
from aaa.testing.scene import REFUND, Scene, completed, note, terms

NEW = port.under_policy(REFUND, "new")
OLD = port.under_policy(REFUND, "old")


def requires(run_id: str, policy: str) -> Entry:
    """From now on this policy and no other."""
    event = note(run_id, ev.RUN_POLICY, f"needs-{policy}", {"policy": policy})
    return Entry(event, port.Require(policy))


@case("G22")
async def a_call_is_claimed_under_the_policy_that_its_run_requires(s: Scene) -> None:
    """An offer of another policy, or of none, gets nothing; no other run is held up by it."""
    request = await s.call()
    run = request.run_id
    await s.append(run, requires(run, "old"))
    later = await s.request(run, "later", queue=OLD)
    other = await s.call(run="other")
    assert [one.request for one in (await s.claim("w1", limit=1)).claimed] == [other]
    assert not (await s.claim("w1", queues=(REFUND, NEW))).claimed
    got = (await s.claim("w1", queues=(OLD,))).claimed
    assert {one.request for one in got} == {request, later}
    assert {one.queue for one in got} == {OLD}


@case("G22")
async def a_changed_policy_moves_what_has_not_begun(s: Scene) -> None:
    """Ready, shelved and waiting calls of the run are under the new one; what was asked stays."""
    ready = await s.call(queue=OLD)
    run = ready.run_id
    waiting = await s.request(run, "waiting", queue=OLD, needs_approval=True)
    await s.append(run, Entry(note(run, ev.RUN_SUSPENDED, "stop"), port.Flag("suspend")))
    await s.append(run, requires(run, "new"))
    await s.append(run, Entry(note(run, ev.RUN_RESUMED, "go"), port.Flag("resume")))
    assert not (await s.claim("w1", queues=(OLD,))).claimed
    assert (await s.take_one("w1", queues=(NEW,))).request == ready
    granted = note(run, ev.APPROVED, "yes")
    await s.append(run, Entry(granted, port.Grant(waiting.id, "d1", 60_000)))
    assert not (await s.claim("w1", queues=(OLD,))).claimed
    assert (await s.take_one("w1", queues=(NEW,))).request == waiting


@case("G22")
async def a_call_that_runs_keeps_its_lease_and_is_retaken_under_the_new_policy(s: Scene) -> None:
    """The next attempt needs an offer of the new policy, and is as tight as the first was."""
    request = await s.call(queue=OLD)
    run, ttl = request.run_id, s.harness.ttl_ms
    await s.take_one("w1", terms(cap=2, ttl_ms=ttl), queues=(OLD,))
    await s.append(run, requires(run, "new"))
    assert not (await s.claim("w2", queues=(NEW,))).claimed
    await s.harness.lose_lease("w1")
    assert not (await s.claim("w2", queues=(OLD, REFUND))).claimed
    second = await s.take_one("w2", terms(cap=9, ttl_ms=ttl), queues=(NEW,))
    assert (second.request, second.attempt, second.queue) == (request, 2, NEW)
    await s.harness.lose_lease("w2")
    assert (await s.claim("w3", terms(cap=9), queues=(NEW,))).settled_runs == (run,)
    assert (await s.store.read(run))[-1].data["error"] == "ExecutionAbandoned"


@case("G22", "L8")
async def a_call_that_runs_is_settled_whatever_is_required_meanwhile(s: Scene) -> None:
    """Its outcome counts; a decision from before the change does not."""
    request = await s.call(queue=OLD)
    run, term = request.run_id, await s.own("w1")
    one = await s.take_one("w1", queues=(OLD,))
    head = (await s.info(run)).head
    await s.append(run, requires(run, "new"))
    late = port.Append(run_id=run, entries=(), at=head, term=term, worker="w1")
    await s.refused(late, port.Why.MOVED)
    assert (await s.settle(one, "w1", completed(one))).verdict == "applied"
    await s.append(run, requires(run, "old"))
    assert not (await s.claim("w2", queues=(OLD, NEW))).claimed
