"""Runs that are stopped: cancelled for good, suspended or parked until lifted."""

from __future__ import annotations

from aaa import events as ev
from aaa import ids
from aaa.store import port
from aaa.store.port import Entry
from aaa.testing.conformance.approvals import grant
from aaa.testing.conformance.cases import case
from aaa.testing.scene import MODEL, Scene, completed, held, note, terms


def flag(run_id: str, name: str, id_: str = "") -> Entry:
    """Stop or free the run."""
    types = {
        "cancel": ev.RUN_CANCEL_REQUESTED,
        "suspend": ev.RUN_SUSPENDED,
        "resume": ev.RUN_RESUMED,
        "park": ev.RUN_PARKED,
    }
    return Entry(note(run_id, types[name], id_ or name), port.Flag(name))


@case("L13")
async def a_suspended_or_parked_run_starts_nothing_until_it_is_resumed(s: Scene) -> None:
    """Its ready calls leave the queue, come back with the resume, and hold up nobody."""
    for name in ("suspend", "park"):
        request = await s.call(run=name)
        run = request.run_id
        await s.append(run, flag(run, name))
        info = await s.info(run)
        assert (info.suspended, info.parked) == (name == "suspend", name == "park")
        await s.request(run, "later")
        await s.harness.advance(3)
        other = await s.call(run=f"{name}-other")
        assert (await s.take_one("w1", limit=1)).request == other
        assert not (await s.claim("w1")).claimed
        await s.append(run, flag(run, "resume"))
        info = await s.info(run)
        assert (info.suspended, info.parked) == (False, False)
        got = (await s.claim("w1")).claimed
        assert [one.request.data["call_id"] for one in got] == ["c1", "later"]


@case("L13", "G19")
async def a_grant_in_a_suspended_run_waits_for_the_resume(s: Scene) -> None:
    """An approved call of a stopped run is not ready until the run goes on."""
    request = await s.call(needs_approval=True)
    second = await s.request(request.run_id, "c2", needs_approval=True)
    await s.append(request.run_id, flag(request.run_id, "suspend"))
    await s.append(request.run_id, grant(request), grant(second, id_="ok2"))
    await s.harness.advance(3)
    other = await s.call(run="other")
    assert (await s.take_one("w1", limit=1)).request == other
    assert not (await s.claim("w1")).claimed
    await s.append(request.run_id, flag(request.run_id, "resume"))
    got = (await s.claim("w1")).claimed
    assert {one.request for one in got} == {request, second}


@case("L13")
async def a_lost_attempt_of_a_suspended_run_is_not_retaken(s: Scene) -> None:
    """No new attempt begins in a paused run; an at_most_once loss is still written."""
    short = s.harness.ttl_ms
    paused = []
    for name in ("suspend", "park"):
        request = await s.call(run=name)
        await s.take_one("w1", terms(ttl_ms=short))
        await s.append(request.run_id, flag(request.run_id, name))
        paused.append(request.run_id)
    once = await s.call(run="once")
    await s.take_one("w1", terms("at_most_once", ttl_ms=short))
    await s.append(once.run_id, flag(once.run_id, "suspend"))
    await s.harness.lose_lease("w1")
    got = await s.claim("w2")
    assert (got.claimed, got.settled_runs) == ((), (once.run_id,))
    for run in paused:
        await s.append(run, flag(run, "resume"))
        one = await s.take_one("w3")
        assert (one.run_id, one.attempt) == (run, 2)


@case("L13", "G5")
async def a_lost_attempt_of_a_closed_run_is_not_retaken(s: Scene) -> None:
    """A call that was in flight when its run ended is not repeated: its outcome is unknown."""
    request = await s.call()
    await s.take_one("w1", terms(cap=5, ttl_ms=s.harness.ttl_ms))
    end = Entry(note(request.run_id, ev.RUN_FAILED, "end"), port.CloseRun("failed"))
    await s.append(request.run_id, end)
    await s.harness.lose_lease("w1")
    got = await s.claim("w2", terms(cap=5))
    assert (got.claimed, got.settled_runs) == ((), (request.run_id,))
    assert (await s.info(request.run_id)).unknown == 1


@case("L13")
async def a_cancelled_run_starts_nothing_and_is_not_resumed(s: Scene) -> None:
    """Cancelling is for good: ready calls stay out of the queue; those in flight may settle."""
    request = await s.call()
    one = await s.take_one("w1")
    waiting = await s.request(request.run_id, "c2")
    await s.append(request.run_id, flag(request.run_id, "cancel"))
    await s.append(request.run_id, flag(request.run_id, "resume"))
    assert (await s.info(request.run_id)).cancelling
    assert not (await s.claim("w1")).claimed
    assert (await s.settle(one, "w1")).verdict == "applied"
    result = note(request.run_id, ev.TOOL_FAILED, f"{waiting.id}:result")
    await s.append(request.run_id, Entry(result, port.SettleUnstarted(waiting.id)))


@case("L13", "G5")
async def a_lost_attempt_of_a_cancelled_run_is_unknown(s: Scene) -> None:
    """Nothing is repeated in a cancelled run, whatever the delivery: the outcome is unknown."""
    request = await s.call()
    await s.take_one("w1", terms(cap=5, ttl_ms=s.harness.ttl_ms))
    await s.append(request.run_id, flag(request.run_id, "cancel"))
    await s.harness.lose_lease("w1")
    got = await s.claim("w2", terms(cap=5))
    assert (got.claimed, got.settled_runs) == ((), (request.run_id,))
    assert (await s.store.read(request.run_id))[-1].data["error"] == "OutcomeUnknown"


@case("L13", "G9")
async def the_heartbeat_tells_what_is_to_be_cancelled(s: Scene) -> None:
    """A pulse names the held calls of cancelled runs, and still renews them."""
    request = await s.call()
    one = await s.take_one("w1")
    assert (await s.pulse("w1", held(one))).cancelled == ()
    await s.append(request.run_id, flag(request.run_id, "cancel"))
    beat = await s.pulse("w1", held(one))
    assert (beat.cancelled, beat.lost_calls) == ((held(one),), ())
    assert (await s.settle(one, "w1", completed(one))).verdict == "applied"


@case("L13", "G24")
async def a_model_request_is_dropped_even_while_it_is_asked(s: Scene) -> None:
    """Nobody wants the answer any more: it gets its result, and a late answer is dropped."""
    request = await s.call(queue=MODEL)
    one = await s.take_one("w1", queues=(MODEL,))
    failed = request.named(ids.result_id(request.id), ev.LLM_FAILED, {"error": "Cancelled"})
    await s.append(request.run_id, Entry(failed, port.SettleUnstarted(request.id)))
    late = await s.settle(one, "w1")
    assert (late.verdict, late.event) == ("dropped", None)
    assert (await s.store.read(request.run_id))[-1].type == ev.LLM_FAILED
