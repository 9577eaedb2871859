"""Lost attempts: unknown, retaken up to a cap, verified; policies only tighten."""

from __future__ import annotations

from aaa import events as ev
from aaa.ids import canonical
from aaa.store import port
from aaa.store.guard import MAX_VERIFIES, VERIFY_GRACE_TTLS
from aaa.testing.conformance.cases import case
from aaa.testing.harness import MemoryHarness
from aaa.testing.scene import Scene, completed, terms


@case("G4")
async def a_lost_at_most_once_attempt_is_unknown_written_by_anybody(s: Scene) -> None:
    """A worker without the tool's code finds the lease ended and writes ``OutcomeUnknown``."""
    request = await s.call()
    await s.take_one("w1", terms("at_most_once", ttl_ms=s.harness.ttl_ms))
    assert not (await s.claim("w2", queues=())).settled_runs
    await s.fold(request.run_id, "w2", await s.own("w2"))
    await s.harness.lose_lease("w1")
    got = await s.claim("w2", queues=())
    assert (got.claimed, got.settled_runs) == ((), (request.run_id,))
    failed = (await s.store.read(request.run_id))[-1]
    assert (failed.id, failed.type, failed.parent) == (
        f"{request.id}:result",
        ev.TOOL_FAILED,
        request.id,
    )
    assert failed.data["error"] == "OutcomeUnknown"
    assert failed.data["effect"] == "unknown"
    assert failed.data["attempt"] == 1
    assert (failed.data["call_id"], failed.data["name"]) == ("c1", "refund")
    info = await s.info(request.run_id)
    assert (info.unknown, info.status) == (1, "open")
    assert len((await s.take("w2", await s.own("w2"))).runs) == 1
    assert not (await s.claim("w3")).claimed
    assert (await s.types(request.run_id)).count(ev.TOOL_STARTED) == 1


@case("L4", "G4", "G5")
async def outcomes_of_lost_attempts_are_alike_on_every_backend(s: Scene) -> None:
    """The bytes of OutcomeUnknown and ExecutionAbandoned are canonical and the memory store's."""

    async def record(scene: Scene) -> list[bytes]:
        raws = []
        for run, delivery in (("a", "at_most_once"), ("b", "at_least_once")):
            request = await scene.call('c "1" ü', run=run)
            await scene.take_one("w1", terms(delivery, cap=1, ttl_ms=scene.harness.ttl_ms))
            await scene.harness.lose_lease("w1")
            await scene.claim("w2")
            failed = (await scene.store.read(request.run_id))[-1]
            assert failed.raw == canonical(failed.data)
            raws.append(failed.raw)
        return raws

    memory = MemoryHarness(partitions=s.store.partitions)
    assert await record(s) == await record(Scene(memory))


@case("G4", "G7")
async def a_late_outcome_after_unknown_is_kept_as_evidence(s: Scene) -> None:
    """The unknown outcome stands; what the lost worker reports later is a stale result."""
    await s.call()
    one = await s.take_one("w1", terms("at_most_once", ttl_ms=s.harness.ttl_ms))
    await s.harness.lose_lease("w1")
    await s.claim("w2")
    late = await s.settle(one, "w1")
    assert late.verdict == "stale"
    assert (await s.info(one.run_id)).unknown == 1
    assert (await s.types(one.run_id))[-2:] == [ev.TOOL_FAILED, ev.TOOL_STALE_RESULT]


@case("G3", "G5")
async def a_lost_at_least_once_attempt_is_retaken_up_to_the_cap(s: Scene) -> None:
    """Attempts are 1, 2, 3 … up to ``max_attempts``; then ``ExecutionAbandoned``."""
    request = await s.call()
    short = terms(cap=3, ttl_ms=s.harness.ttl_ms)
    for attempt in (1, 2, 3):
        one = await s.take_one(f"w{attempt}", short)
        assert one.attempt == attempt
        assert one.started is not None
        assert one.started.id == f"{request.id}:attempt:{attempt}"
        await s.harness.lose_lease(f"w{attempt}")
        if attempt < 3:
            assert not (await s.claim("codeless", queues=())).settled_runs
    got = await s.claim("w4", queues=())
    assert got.settled_runs == (request.run_id,)
    failed = (await s.store.read(request.run_id))[-1]
    assert (failed.type, failed.data["error"]) == (ev.TOOL_FAILED, "ExecutionAbandoned")
    assert (failed.data["effect"], failed.data["attempt"]) == ("unknown", 3)
    assert (await s.types(request.run_id)).count(ev.TOOL_STARTED) == 3


@case("G1")
async def a_live_lease_is_nobody_elses(s: Scene) -> None:
    """While the lease lasts no other claim gets the call, whatever it offers."""
    await s.call()
    one = await s.take_one("w1")
    await s.harness.advance(5)
    for queues in (("tool/refund",), ()):
        got = await s.claim("w2", queues=queues)
        assert (got.claimed, got.settled_runs) == ((), ())
    assert (await s.settle(one, "w1")).verdict == "applied"


@case("G14")
async def a_claim_tells_when_the_next_lease_can_end(s: Scene) -> None:
    """``next_expiry_ms`` is a time to look again, or nothing if no lease can end by itself."""
    await s.call()
    assert (await s.claim("w1", queues=())).next_expiry_ms is None
    await s.take_one("w1")
    due = (await s.claim("w2")).next_expiry_ms
    if s.harness.capabilities.leases == "ttl":
        assert due is not None
        assert 0 < due <= 60_000


@case("G22")
async def a_later_policy_may_make_a_call_at_most_once(s: Scene) -> None:
    """A call first claimed at_least_once is not repeated by a worker that offers at_most_once."""
    request = await s.call()
    await s.take_one("w1", terms("at_least_once", ttl_ms=s.harness.ttl_ms))
    await s.harness.lose_lease("w1")
    got = await s.claim("w2", terms("at_most_once"))
    assert (got.claimed, got.settled_runs) == ((), (request.run_id,))


@case("G22", "G4")
async def a_later_policy_never_loosens(s: Scene) -> None:
    """A call first claimed at_most_once stays so under a worker that offers at_least_once."""
    request = await s.call()
    await s.take_one("w1", terms("at_most_once", ttl_ms=s.harness.ttl_ms))
    await s.harness.lose_lease("w1")
    got = await s.claim("w2", terms("at_least_once", cap=9))
    assert (got.claimed, got.settled_runs) == ((), (request.run_id,))


@case("G22", "G3")
async def a_call_that_began_with_a_record_keeps_having_one(s: Scene) -> None:
    """A worker that offers to run it unguarded records its attempt all the same."""
    request = await s.call()
    await s.take_one("w1", terms(ttl_ms=s.harness.ttl_ms))
    await s.harness.lose_lease("w1")
    again = await s.take_one("w2", terms(guarded=False))
    assert again.started is not None
    assert (again.attempt, again.started.id) == (2, f"{request.id}:attempt:2")


@case("G22", "G3", "G18")
async def a_call_that_began_without_a_record_gets_none(s: Scene) -> None:
    """No attempt 2 is recorded where there is no attempt 1, whatever a later policy says."""
    request = await s.call()
    await s.take_one("w1", terms(guarded=False, ttl_ms=s.harness.ttl_ms))
    await s.harness.lose_lease("w1")
    again = await s.take_one("w2", terms())
    assert (again.attempt, again.started) == (2, None)
    assert (await s.settle(again, "w2")).verdict == "applied"
    assert ev.TOOL_STARTED not in await s.types(request.run_id)


@case("G22", "G4", "G18")
async def a_policy_that_forbids_a_repeat_holds_for_a_call_that_began_without_a_guard(
    s: Scene,
) -> None:
    """The first attempt may have acted: under ``at_most_once`` its outcome is unknown."""
    request = await s.call()
    await s.take_one("w1", terms(guarded=False, ttl_ms=s.harness.ttl_ms))
    await s.harness.lose_lease("w1")
    got = await s.claim("w2", terms("at_most_once"))
    assert (got.claimed, got.settled_runs) == ((), (request.run_id,))
    failed = (await s.store.read(request.run_id))[-1]
    assert (failed.data["error"], failed.data["attempt"]) == ("OutcomeUnknown", 1)


@case("G22", "G5")
async def the_smallest_cap_seen_is_in_force(s: Scene) -> None:
    """A later, larger cap does not raise the first one; a smaller one lowers it for good."""
    request = await s.call()
    ttl = s.harness.ttl_ms
    for worker, cap in (("w1", 9), ("w2", 3), ("w3", 9)):
        await s.take_one(worker, terms(cap=cap, ttl_ms=ttl))
        await s.harness.lose_lease(worker)
    got = await s.claim("w4", terms(cap=9))
    assert (got.claimed, got.settled_runs) == ((), (request.run_id,))


@case("G4")
async def verify_is_asked_before_an_outcome_is_unknown(s: Scene) -> None:
    """A lost call with ``verify`` is leased as a verify job: nothing is started."""
    request = await s.call(verify=True)
    lost = await s.take_one("w1", terms("at_most_once", ttl_ms=s.harness.ttl_ms))
    await s.harness.lose_lease("w1")
    job = await s.take_one("w2", terms("at_most_once"))
    assert (job.job, job.attempt, job.started) == ("verify", 1, None)
    assert job.request == lost.request
    assert not (await s.claim("w3")).claimed
    settled = await s.settle(job, "w2", completed(job, "it had happened"))
    assert settled.verdict == "applied"
    assert (await s.settle(job, "w2", completed(job, "it had happened"))).verdict == "dup"
    assert (await s.types(request.run_id))[2:] == [ev.TOOL_STARTED, ev.TOOL_COMPLETED]


@case("G4")
async def verify_is_asked_a_bounded_number_of_times(s: Scene) -> None:
    """Verifiers that are lost too are replaced so many times; then the outcome is unknown."""
    request = await s.call(verify=True)
    short = terms("at_most_once", ttl_ms=s.harness.ttl_ms)
    await s.take_one("w0", short)
    await s.harness.lose_lease("w0")
    for number in range(1, MAX_VERIFIES + 1):
        job = await s.take_one(f"w{number}", short)
        assert job.job == "verify"
        await s.harness.lose_lease(f"w{number}")
    got = await s.claim("last", short)
    assert (got.claimed, got.settled_runs) == ((), (request.run_id,))
    failed = (await s.store.read(request.run_id))[-1]
    assert failed.data["error"] == "OutcomeUnknown"


@case("G2", "G4")
async def a_verify_job_is_repeatable_and_released_like_a_run(s: Scene) -> None:
    """The same nonce again returns the verify job; a release hands it to the next verifier."""
    request = await s.call(verify=True)
    await s.take_one("w1", terms("at_most_once", ttl_ms=s.harness.ttl_ms))
    await s.harness.lose_lease("w1")
    offer = s.claims("w2", terms("at_most_once"), nonce="v")
    first, again = await s.one(offer, port.Claims), await s.one(offer, port.Claims)
    assert first.claimed == again.claimed
    back = port.Release(run_id=request.run_id, request_id=request.id, attempt=1, worker="w2")
    assert (await s.one(back, port.Done)).count == 1
    assert (await s.take_one("w3", terms("at_most_once"))).job == "verify"


@case("G4", "G6")
async def the_lost_workers_own_outcome_is_accepted_while_verifying(s: Scene) -> None:
    """While verify is asked the original attempt may still report: its outcome is the result."""
    await s.call(verify=True)
    one = await s.take_one("w1", terms("at_most_once", ttl_ms=s.harness.ttl_ms))
    await s.harness.lose_lease("w1")
    job = await s.take_one("w2", terms("at_most_once"))
    assert (await s.settle(one, "w1")).verdict == "applied"
    assert (await s.settle(one, "w1")).verdict == "dup"
    assert (await s.settle(job, "w2", completed(job, "seen"))).verdict == "stale"


@case("G6", "G4")
async def what_a_late_verify_says_hides_no_outcome(s: Scene) -> None:
    """Of a lost attempt both may come late, a verify job's word and the attempt's: both are kept."""
    await s.call(verify=True)
    one = await s.take_one("w1", terms("at_most_once", ttl_ms=s.harness.ttl_ms))
    await s.harness.lose_lease("w1")
    first = await s.take_one("w2", terms("at_most_once", ttl_ms=s.harness.ttl_ms))
    await s.harness.lose_lease("w2")
    second = await s.take_one("w3", terms("at_most_once"))
    assert (first.job, second.job) == ("verify", "verify")
    assert (await s.settle(second, "w3", completed(second, "seen"))).verdict == "applied"
    late = await s.settle(first, "w2", completed(first, "looked up"))
    own = await s.settle(one, "w1", completed(one, "refunded"))
    assert (late.verdict, own.verdict) == ("stale", "stale")
    assert late.event is not None
    assert own.event is not None
    assert own.event.data["outcome"]["result"] == "refunded"
    assert (late.event.id, own.event.id) == (
        f"{one.request.id}:attempt:1:stale",
        f"{one.request.id}:attempt:1:stale:2",
    )
    for which, worker, kept in ((one, "w1", own), (first, "w2", late)):
        result = kept.event.data["outcome"]["result"] if kept.event else None
        again = await s.settle(which, worker, completed(which, result))
        assert (again.verdict, again.event) == ("stale", kept.event)


@case("G4")
async def a_verify_waits_a_grace_for_a_worker_with_the_code(s: Scene) -> None:
    """A worker without the tool's code leaves a verifiable call alone for a while, not for ever."""
    request = await s.call(verify=True)
    ttl = s.harness.ttl_ms
    await s.take_one("w1", terms("at_most_once", ttl_ms=ttl))
    await s.harness.lose_lease("w1")
    assert not (await s.claim("codeless", queues=())).settled_runs
    await s.harness.advance(ttl * VERIFY_GRACE_TTLS + 20)
    assert (await s.claim("codeless", queues=())).settled_runs == (request.run_id,)


@case("G4", "G5")
async def a_spent_at_least_once_call_is_verified_before_it_is_abandoned(s: Scene) -> None:
    """At the cap, ``verify`` is asked; without an answer the call is abandoned."""
    request = await s.call(verify=True)
    short = terms(cap=1, ttl_ms=s.harness.ttl_ms)
    await s.take_one("w1", short)
    await s.harness.lose_lease("w1")
    job = await s.take_one("w2", short)
    assert (job.job, job.attempt) == ("verify", 1)
    unknown = completed(job)
    assert (await s.settle(job, "w2", unknown, unknown=True)).verdict == "applied"
    assert (await s.info(request.run_id)).unknown == 1


@case("G2", "G14")
async def takeovers_respect_the_limit_but_outcomes_do_not(s: Scene) -> None:
    """``limit`` bounds what is run; every lost at_most_once call found is written all the same."""
    first = await s.call("a", run="a")
    await s.call("b", run="b")
    short = terms(ttl_ms=s.harness.ttl_ms)
    assert len((await s.claim("w1", short)).claimed) == 2
    once = await s.call("c", run="c")
    await s.take_one("w1", terms("at_most_once", ttl_ms=s.harness.ttl_ms))
    await s.harness.lose_lease("w1")
    got = await s.claim("w2", limit=1)
    assert len(got.claimed) == 1
    assert got.settled_runs == (once.run_id,)
    assert {one.attempt for one in got.claimed} == {2}
    assert len((await s.claim("w3")).claimed) == 1
    assert len(await s.types(first.run_id)) == 4
