"""Settles: the first result stands; what comes later is kept or dropped, never applied."""

from __future__ import annotations

from dataclasses import replace

from aaa import events as ev
from aaa.ids import canonical, partition_of
from aaa.store import port
from aaa.store.port import Entry, Why
from aaa.testing.conformance.cases import case
from aaa.testing.harness import MemoryHarness
from aaa.testing.scene import MODEL, Scene, completed, note, settles, terms


@case("L5", "G6")
async def a_result_is_recorded_and_the_call_leaves_the_bus(s: Scene) -> None:
    """A settle writes the result under ``R:result`` and makes the run dirty."""
    request = await s.call()
    one = await s.take_one("w1")
    term = await s.own("w1")
    await s.fold(request.run_id, "w1", term)
    settled = await s.settle(one, "w1")
    assert settled.verdict == "applied"
    assert settled.event is not None
    assert (settled.event.id, settled.event.seq) == (f"{request.id}:result", 4)
    assert settled.head == port.Head(4, f"{request.id}:result")
    assert (await s.store.read(request.run_id))[-1] == settled.event
    runs = (await s.take("w1", term)).runs
    assert runs == ((request.run_id, settled.head),)
    assert not (await s.claim("w2")).claimed


@case("L5", "G15")
async def a_settle_repeated_after_a_lost_reply_is_a_dup(s: Scene) -> None:
    """The same settle again returns the event that stands and writes nothing."""
    await s.call()
    one = await s.take_one("w1")
    first, again = await s.settle(one, "w1"), await s.settle(one, "w1")
    assert (again.verdict, again.event, again.head) == ("dup", first.event, first.head)
    assert len(await s.types(one.run_id)) == 4


@case("L5", "G7")
async def a_second_outcome_is_kept_as_stale(s: Scene) -> None:
    """Another outcome of the same attempt does not replace the result; it is kept once."""
    request = await s.call()
    one = await s.take_one("w1")
    await s.settle(one, "w1")
    other = completed(one, "something else")
    for _ in range(2):
        stale = await s.settle(one, "w1", other)
        assert stale.verdict == "stale"
        assert stale.event is not None
        assert (stale.event.type, stale.event.id) == (
            ev.TOOL_STALE_RESULT,
            f"{request.id}:attempt:1:stale",
        )
    assert (await s.types(one.run_id))[2:] == [
        ev.TOOL_STARTED,
        ev.TOOL_COMPLETED,
        ev.TOOL_STALE_RESULT,
    ]


@case("G7", "G8")
async def a_superseded_attempts_outcome_is_stale(s: Scene) -> None:
    """Once attempt 2 exists, attempt 1's outcome is kept for audit; attempt 2's is the result."""
    request = await s.call()
    one = await s.take_one("w1", terms(ttl_ms=s.harness.ttl_ms))
    await s.harness.lose_lease("w1")
    two = await s.take_one("w2")
    stale = await s.settle(one, "w1", completed(one, "late ü"))
    assert stale.verdict == "stale"
    assert stale.event is not None
    assert stale.event.parent == request.id
    assert stale.event.data == {
        "attempt": 1,
        "call_id": "c1",
        "name": "refund",
        "outcome": {"attempt": 1, "result": "late ü"},
        "type": ev.TOOL_COMPLETED,
    }
    applied = await s.settle(two, "w2")
    assert applied.verdict == "applied"
    assert (await s.settle(two, "w2")).verdict == "dup"
    again = await s.settle(one, "w1", completed(one, "late ü"))
    assert (again.verdict, again.event) == ("stale", stale.event)


@case("L4", "G7")
async def stale_records_are_canonical_and_alike_on_every_backend(s: Scene) -> None:
    """The bytes of a stale result are canonical and those that the memory store writes."""

    async def record(scene: Scene) -> bytes:
        await scene.call('c "1" ü')
        one = await scene.take_one("w1")
        await scene.settle(one, "w1")
        stale = await scene.settle(one, "w1", completed(one, {"z": 1.5, "a": ["ü", None]}))
        assert stale.event is not None
        assert stale.event.raw == canonical(stale.event.data)
        return stale.event.raw

    memory = MemoryHarness(partitions=s.store.partitions)
    assert await record(s) == await record(Scene(memory))


@case("G6")
async def an_outcome_after_a_lapse_is_applied_while_nobody_took_over(s: Scene) -> None:
    """A lapsed lease alone loses no outcome: the attempt is still the current one."""
    await s.call()
    one = await s.take_one("w1", terms("at_most_once", ttl_ms=s.harness.ttl_ms))
    await s.harness.lose_lease("w1")
    assert (await s.settle(one, "w1")).verdict == "applied"
    assert not (await s.claim("w2")).settled_runs


@case("G8")
async def without_fencing_the_first_finisher_wins(s: Scene) -> None:
    """``fence=False``: attempt 1's outcome is the result though attempt 2 runs; 2's is stale."""
    await s.call()
    one = await s.take_one("w1", terms(ttl_ms=s.harness.ttl_ms))
    await s.harness.lose_lease("w1")
    two = await s.take_one("w2")
    assert (await s.settle(one, "w1", fence=False)).verdict == "applied"
    assert (await s.settle(one, "w1", fence=False)).verdict == "dup"
    assert (await s.settle(two, "w2", fence=False)).verdict == "stale"
    assert (await s.types(one.run_id))[2:] == [
        ev.TOOL_STARTED,
        ev.TOOL_STARTED,
        ev.TOOL_COMPLETED,
        ev.TOOL_STALE_RESULT,
    ]


@case("G1", "G6")
async def anothers_attempt_is_not_settled(s: Scene) -> None:
    """A worker that does not hold the attempt is a stranger; nothing is written."""
    await s.call()
    one = await s.take_one("w1")
    await s.refused(settles(one, "w2"), Why.STRANGER)
    assert (await s.settle(one, "w1")).verdict == "applied"


@case("G3", "G6")
async def an_attempt_that_never_began_is_not_settled(s: Scene) -> None:
    """A settle of a later attempt, of none, or of a call that nobody started is refused."""
    request = await s.call()
    ready = port.Settle(
        run_id=request.run_id,
        request_id=request.id,
        attempt=1,
        worker="w1",
        outcome=request.named(f"{request.id}:result", ev.TOOL_COMPLETED, {}),
    )
    await s.refused(ready, Why.NO_CALL)
    one = await s.take_one("w1")
    for attempt in (0, 2):
        wrong = port.Settle(
            run_id=one.run_id,
            request_id=request.id,
            attempt=attempt,
            worker="w1",
            outcome=completed(one),
        )
        await s.refused(wrong, Why.NO_CALL)
    assert len(await s.types(one.run_id)) == 3


@case("G4")
async def an_unknown_outcome_is_counted_until_it_is_resolved(s: Scene) -> None:
    """``unknown=True`` shows in the index; a Resolve lifts it once, even in a closed run."""
    request = await s.call()
    one = await s.take_one("w1", terms("at_most_once"))
    await s.settle(one, "w1", unknown=True)
    assert (await s.info(one.run_id)).unknown == 1
    end = port.Entry(one.request.named("end", ev.RUN_FAILED, {}), port.CloseRun("failed"))
    await s.append(one.run_id, end)
    found = one.request.named(f"{request.id}:resolved", ev.TOOL_RESOLVED, {"done": True})
    await s.append(one.run_id, port.Entry(found, port.Resolve(request.id)))
    assert (await s.info(one.run_id)).unknown == 0
    more = one.request.named("twice", ev.TOOL_RESOLVED, {"done": False})
    again = port.Append(run_id=one.run_id, entries=(port.Entry(more, port.Resolve(request.id)),))
    await s.refused(again, Why.NOT_WAITING)


@case("G9")
async def a_released_lease_is_free_at_once(s: Scene) -> None:
    """A release ends the lease now; the attempt counts as lost; only its holder may."""
    request = await s.call()
    one = await s.take_one("w1")

    def release(worker: str, attempt: int) -> port.Release:
        return port.Release(
            run_id=one.run_id, request_id=request.id, attempt=attempt, worker=worker
        )

    assert (await s.one(release("w2", 1), port.Done)).count == 0
    assert (await s.one(release("w1", 2), port.Done)).count == 0
    assert not (await s.claim("w2")).claimed
    assert (await s.one(release("w1", 1), port.Done)).count == 1
    two = await s.take_one("w2")
    assert (two.attempt, two.request) == (2, request)
    assert (await s.one(release("w1", 1), port.Done)).count == 0
    await s.settle(two, "w2")
    assert (await s.one(release("w2", 2), port.Done)).count == 0


@case("L8", "G6", "G24")
async def a_decision_falls_with_the_settle_that_it_rests_on(s: Scene) -> None:
    """The head alone does not tell whose answer stands: a model's late one leaves no trace."""
    short = terms(ttl_ms=s.harness.ttl_ms)
    request = await s.call(queue=MODEL)
    run_id = request.run_id
    first = await s.take_one("w1", short, queues=(MODEL,))
    await s.harness.lose_lease("w1")
    second = await s.take_one("w2", queues=(MODEL,))
    term = await s.own("w1")
    assert (await s.settle(second, "w2")).verdict == "applied"
    at = (await s.info(run_id)).head

    def decides(worker: str, attempt: int) -> port.Append:
        entry = Entry(note(run_id, "decided", f"by-{worker}"))
        rests_on = ((request.id, attempt),)
        return port.Append(
            run_id=run_id, entries=(entry,), at=at, term=term, worker=worker, rests_on=rests_on
        )

    assert (await s.settle(first, "w1")).verdict == "dropped"
    await s.refused(decides("w1", 1), Why.MOVED)
    await s.refused(decides("w1", 2), Why.MOVED)
    assert (await s.info(run_id)).head == at
    mine = await s.call("c2", queue=MODEL)
    third = await s.take_one("w1", queues=(MODEL,))
    settle = settles(third, "w1")
    operation = replace(decides("w1", 1), rests_on=((mine.id, 1),), at=None)
    partition = partition_of(run_id, s.store.partitions)
    done = await s.store.commit(partition, [settle, operation])
    assert isinstance(done.verdicts[1], port.Appended)
