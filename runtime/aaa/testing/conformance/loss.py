"""Runs that are deleted, and stores that have gone back in time."""

from __future__ import annotations

from aaa import events as ev
from aaa import ids
from aaa.store import port
from aaa.store.port import Entry, Why
from aaa.testing.conformance.cases import case
from aaa.testing.scene import MODEL, Scene, creates, held, note, opens, settles, tool_requested

FAR = 1_000_000  # a mark that the store has never reached


@case("L12")
async def a_deleted_run_leaves_a_tombstone(s: Scene) -> None:
    """Its events are gone, its id is not: the index says deleted, a new Create is refused."""
    run = s.run_id()
    await s.create(run, order=1)
    await s.append(run, Entry(note(run, ev.RUN_COMPLETED, "end"), port.CloseRun("completed")))
    assert (await s.one(port.Delete(run_id=run), port.Done)).count == 1
    assert (await s.one(port.Delete(run_id=run), port.Done)).count == 0
    assert await s.store.read(run) == []
    info = await s.info(run)
    assert (info.deleted, info.status) == (True, "completed")
    assert info.digest == creates(run, order=1).digest
    assert await s.store.runs() == []
    for order in (1, 2):
        refused = await s.refused(creates(run, order=order), Why.DELETED)
        assert refused.detail == info.digest


@case("L12")
async def an_open_run_is_deleted_only_by_force(s: Scene) -> None:
    """Without force it is refused; with it, calls, timers and leases go as well."""
    request = await s.call("a")
    run = request.run_id
    await s.request(run, "b")
    one = await s.take_one("w1", limit=1)
    await s.append(run, Entry(note(run, ev.TIMER_SET, "t"), port.StartTimer('"t"', 1)))
    await s.refused(port.Delete(run_id=run), Why.OPEN)
    assert (await s.one(port.Delete(run_id=run, force=True), port.Done)).count == 1
    assert not (await s.claim("w2")).claimed
    assert (await s.pulse("w1", held(one))).lost_calls == (held(one),)
    await s.harness.advance(10)
    taken = await s.take("w1", await s.own("w1"))
    assert (taken.runs, taken.next_timer_ms) == ((), None)
    info = await s.info(run)
    assert (info.deleted, info.status, info.awaiting) == (True, "cancelled", 0)


@case("L12", "G6")
async def a_late_write_recreates_nothing(s: Scene) -> None:
    """Appends and settles of a deleted run are refused; it stays empty."""
    request = await s.call()
    one = await s.take_one("w1")
    run = request.run_id
    await s.one(port.Delete(run_id=run, force=True), port.Done)
    await s.refused(settles(one, "w1"), Why.DELETED)
    entry = Entry(note(run, ev.RUN_SUSPENDED, "late"))
    await s.refused(port.Append(run_id=run, entries=(entry,)), Why.DELETED)
    back = port.Release(run_id=run, request_id=request.id, attempt=1, worker="w1")
    await s.refused(back, Why.NO_CALL)
    assert await s.store.read(run) == []


@case("G23")
async def every_commit_raises_the_mark(s: Scene) -> None:
    """The mark rises with each batch, so that a process can remember what it has seen."""
    run = s.run_id()
    first = await s.store.commit(s.home, [creates(run)])
    second = await s.store.commit(s.home, [s.claims("w1")], seen=first.mark)
    assert 0 < first.mark < second.mark
    (verdict,) = second.verdicts
    assert isinstance(verdict, port.Claims)


@case("G23")
async def a_store_behind_what_was_seen_gives_no_claims_to_anybody(s: Scene) -> None:
    """One process that has seen more stops the claims of all; other work goes on."""
    request = await s.call()
    run = request.run_id
    await s.refused(s.claims("w1"), Why.BEHIND, seen=FAR)
    await s.refused(s.claims("w2"), Why.BEHIND)
    more = await s.append(run, opens(tool_requested(run, "c2")), offer=s.claims("w1").offer)
    assert (more.dups, more.claimed) == ((False,), ())
    await s.create(s.run_id("other"))
    assert await s.own("w1") == 1


@case("G23", "G4")
async def an_accepted_loss_makes_open_tool_calls_unknown(s: Scene) -> None:
    """Calls that may have been lost become OutcomeUnknown; then claims go on above the mark."""
    request = await s.call("ready")
    run = request.run_id
    one = await s.take_one("w1")
    await s.request(run, "never taken")
    await s.append(run, opens(note(run, ev.LLM_REQUESTED, "m", _MODEL), queue=MODEL))
    await s.request(run, "waiting", needs_approval=True)
    await s.refused(s.claims("w1"), Why.BEHIND, seen=FAR)
    assert (await s.one(port.AcceptLoss(by="me"), port.Done, seen=FAR)).count == 3
    failed = [event for event in await s.store.read(run) if event.type == ev.TOOL_FAILED]
    assert [event.data["error"] for event in failed] == ["OutcomeUnknown"] * 3
    assert [event.data["accepted_by"] for event in failed] == ["me"] * 3
    info = await s.info(run)
    assert (info.unknown, info.awaiting) == (3, 0)
    assert (await s.settle(one, "w1")).verdict == "stale"
    got = await s.one(s.claims("w2", queues=(MODEL,)), port.Claims, seen=FAR)
    assert [claimed.request.id for claimed in got.claimed] == ["m"]
    committed = await s.store.commit(s.home, [s.claims("w2")], seen=FAR)
    assert committed.mark > FAR


@case("G23")
async def there_is_no_loss_to_accept_in_a_sound_store(s: Scene) -> None:
    """AcceptLoss of a store that is not behind does nothing."""
    await s.call()
    assert (await s.one(port.AcceptLoss(by="me"), port.Done)).count == 0
    assert len((await s.claim("w1")).claimed) == 1


@case("G23", "G4")
async def a_loss_that_nobody_noticed_is_accepted_by_force(s: Scene) -> None:
    """A backup was restored while no worker ran: a person says so, and open calls are unknown."""
    request = await s.call()
    by = 'Åsa "the boss"'
    assert (await s.one(port.AcceptLoss(by=by, force=True), port.Done)).count == 1
    assert not (await s.claim("w1")).claimed
    failed = (await s.store.read(request.run_id))[-1]
    assert (failed.data["error"], failed.data["accepted_by"]) == ("OutcomeUnknown", by)
    assert failed.raw == ids.canonical(failed.data)


_MODEL = {"call_id": "m", "name": "model"}
