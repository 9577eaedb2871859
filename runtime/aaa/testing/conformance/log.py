"""The log: creating, appending, order, refusals that change nothing."""

from __future__ import annotations

from aaa import events as ev
from aaa.store import port
from aaa.store.port import Entry, Head, Refused, Why
from aaa.testing.conformance.cases import case
from aaa.testing.scene import LONG_MS, Scene, creates, note, opens, settles, terms, tool_requested


@case("L2", "L3")
async def events_get_dense_seqs_from_one(s: Scene) -> None:
    """Events of a run are numbered 1, 2, 3 … in the order of their entries."""
    run = s.run_id()
    first = await s.create(run)
    assert first.head == Head(1, first.events[0].id)
    assert first.dups == (False,)
    more = await s.append(run, *(Entry(note(run, ev.RUN_SUSPENDED, f"e{i}")) for i in range(3)))
    assert [event.seq for event in more.events] == [2, 3, 4]
    assert more.head == Head(4, "e2")
    assert len(await s.types(run)) == 4
    assert all(event.time > 0 for event in await s.store.read(run))


@case("L2", "L6")
async def an_event_appended_again_is_a_dup_without_a_second_bus_entry(s: Scene) -> None:
    """The same event again is answered with the stored one and can be claimed once only."""
    run = s.run_id()
    await s.create(run)
    entry = opens(tool_requested(run))
    first, again = await s.append(run, entry), await s.append(run, entry)
    assert (first.dups, again.dups) == ((False,), (True,))
    assert again.events == first.events
    assert again.head == first.head
    assert again.events[0].time == first.events[0].time
    await s.take_one("w1")
    await s.append(run, entry)
    assert not (await s.claim("w2")).claimed
    assert await s.types(run) == [ev.RUN_REQUESTED, ev.TOOL_REQUESTED, ev.TOOL_STARTED]


@case("L2")
async def an_append_that_is_partly_known_stores_the_rest(s: Scene) -> None:
    """Known entries are dups where they stand; new ones are appended after the head."""
    run = s.run_id()
    await s.create(run)
    old, new = note(run, ev.RUN_SUSPENDED, "old"), note(run, ev.RUN_RESUMED, "new")
    await s.append(run, Entry(old))
    both = await s.append(run, Entry(old), Entry(new))
    assert both.dups == (True, False)
    assert [event.seq for event in both.events] == [2, 3]


@case("L2")
async def an_id_twice_in_one_append_stands_once(s: Scene) -> None:
    """Two entries with one id in one operation are one event and one bus entry."""
    run = s.run_id()
    await s.create(run)
    entry = opens(tool_requested(run))
    both = await s.append(run, entry, entry)
    assert both.dups == (False, True)
    assert both.head.seq == 2
    assert len((await s.claim("w1")).claimed) == 1
    await s.types(run)


@case("L2", "L12")
async def creating_again_with_the_same_input_is_the_same_run(s: Scene) -> None:
    """The same run id and digest: a dup with the stored events and today's head."""
    run = s.run_id()
    first = await s.create(run, order=1)
    await s.append(run, Entry(note(run, ev.RUN_SUSPENDED, "x")))
    again = await s.create(run, order=1)
    assert again.dups == (True,)
    assert again.events == first.events
    assert again.head == Head(2, "x")
    assert len(await s.types(run)) == 2


@case("L2")
async def creating_again_with_other_input_is_refused(s: Scene) -> None:
    """A run id that is taken by other input is refused, with the digest that stands."""
    run = s.run_id()
    await s.create(run, order=1)
    refused = await s.refused(creates(run, order=2), Why.EXISTS)
    assert refused.detail == creates(run, order=1).digest
    assert len(await s.types(run)) == 1


@case("L6")
async def a_run_may_be_created_with_calls(s: Scene) -> None:
    """Entries of a Create have their effects like any other."""
    run = s.run_id()
    begin = creates(run)
    entries = (*begin.entries, opens(tool_requested(run)))
    create = port.Create(run_id=run, app="app", digest=begin.digest, entries=entries)
    created = await s.one(create, port.Appended)
    assert created.head.seq == 2
    assert (await s.take_one("w1")).request == created.events[1]


@case("L8")
async def a_decision_at_a_head_that_has_moved_is_refused(s: Scene) -> None:
    """``at`` must be the run's head, seq and id; nothing of a refused decision is stored."""
    run = s.run_id()
    head = (await s.create(run)).head
    term = await s.own("w1")
    await s.append(run, Entry(note(run, ev.RUN_SUSPENDED, "moved")))
    entry = opens(tool_requested(run))
    for at in (head, Head(2, head.last_id), Head(3, "moved")):
        decision = port.Append(run_id=run, entries=(entry,), at=at, term=term, worker="w1")
        await s.refused(decision, Why.MOVED)
    assert len(await s.types(run)) == 2
    assert not (await s.claim("w1")).claimed
    assert (await s.info(run)).cursor == 0
    now = port.Append(run_id=run, entries=(entry,), at=Head(2, "moved"), term=term, worker="w1")
    assert (await s.one(now, port.Appended)).head.seq == 3


@case("L8")
async def a_decision_under_another_term_is_refused(s: Scene) -> None:
    """A decision of a worker that does not own the partition under that term stores nothing."""
    run = s.run_id()
    head = (await s.create(run)).head
    entry = (Entry(note(run, ev.RUN_SUSPENDED, "no")),)
    ownerless = port.Append(run_id=run, entries=entry, at=head, term=1, worker="w1")
    await s.refused(ownerless, Why.TERM)
    term = await s.own("w1")
    for worker, at in (("w2", term), ("w1", term + 1)):
        other = port.Append(run_id=run, entries=entry, at=head, term=at, worker=worker)
        await s.refused(other, Why.TERM)
    assert len(await s.types(run)) == 1


@case("L8", "L9")
async def a_decision_moves_the_cursor_and_other_appends_do_not(s: Scene) -> None:
    """After a decision the cursor is the head and the run is clean; an append makes it dirty."""
    run = s.run_id()
    head = (await s.create(run)).head
    term = await s.own("w1")
    assert (await s.take("w1", term)).runs == ((run, head),)
    decision = port.Append(
        run_id=run, entries=(opens(tool_requested(run)),), at=head, term=term, worker="w1"
    )
    head = (await s.one(decision, port.Appended)).head
    assert (await s.info(run)).cursor == head.seq == 2
    assert (await s.take("w1", term)).runs == ()
    head = (await s.append(run, Entry(note(run, ev.RUN_SUSPENDED, "x")))).head
    assert (await s.take("w1", term)).runs == ((run, head),)
    assert (await s.info(run)).cursor == 2
    nothing = port.Append(run_id=run, entries=(), at=head, term=term, worker="w1")
    await s.one(nothing, port.Appended)
    assert (await s.take("w1", term)).runs == ()
    assert (await s.info(run)).cursor == 3


@case("L2", "G2", "G15")
async def a_decision_repeated_after_a_lost_reply_answers_alike(s: Scene) -> None:
    """The same decision with the same offer returns the same events and the same claims."""
    run = s.run_id()
    head = (await s.create(run)).head
    term = await s.own("w1")
    entries = tuple(opens(tool_requested(run, name)) for name in ("a", "b", "c"))
    offer = s.claims("w1", limit=2).offer
    decision = port.Append(
        run_id=run, entries=entries, at=head, term=term, worker="w1", offer=offer
    )
    first = await s.one(decision, port.Appended)
    assert [one.request.id for one in first.claimed] == [e.event.id for e in entries[:2]]
    assert [one.started.seq for one in first.claimed if one.started] == [5, 6]
    again = await s.one(decision, port.Appended)
    assert again.claimed == first.claimed
    assert again.events == first.events
    assert again.dups == (True,) * 3
    assert again.head == first.head == Head(6, first.claimed[1].started.id)  # type: ignore[union-attr]
    assert (await s.info(run)).cursor == 6
    await s.settle(first.claimed[0], "w1")
    assert (await s.one(decision, port.Appended)).claimed == first.claimed[1:]
    other = port.Append(
        run_id=run, entries=entries, at=head, term=term, worker="w1", offer=s.claims("w1").offer
    )
    assert (await s.one(other, port.Appended)).claimed == ()


@case("G2")
async def an_inline_offer_takes_only_what_it_names(s: Scene) -> None:
    """An append's offer claims only calls that it opens, from queues that the offer names."""
    run = s.run_id()
    await s.create(run)
    await s.request(run, "before")
    entries = (
        opens(tool_requested(run, "a"), queue="tool/other"),
        opens(tool_requested(run, "b")),
        opens(tool_requested(run, "c"), needs_approval=True),
    )
    got = await s.append(run, *entries, offer=s.claims("w1").offer)
    assert [one.request.data["call_id"] for one in got.claimed] == ["b"]
    assert (await s.take_one("w2")).request.data["call_id"] == "before"


@case("L6")
async def a_decision_may_open_and_settle_a_call(s: Scene) -> None:
    """A call that is opened and settled by one append is nobody's to claim (G21)."""
    run = s.run_id()
    await s.create(run)
    request = tool_requested(run)
    result = request.named(f"{request.id}:result", ev.TOOL_FAILED, {"error": "RepeatedIntent"})
    got = await s.append(
        run,
        opens(request),
        Entry(result, port.SettleUnstarted(request.id)),
        offer=s.claims("w1").offer,
    )
    assert got.claimed == ()
    assert not (await s.claim("w1")).claimed
    assert await s.types(run) == [ev.RUN_REQUESTED, ev.TOOL_REQUESTED, ev.TOOL_FAILED]


@case("L8")
async def two_effects_on_one_call_are_judged_in_order(s: Scene) -> None:
    """The second of two results for one call in one append refuses the whole append."""
    request = await s.call()
    entries = tuple(
        Entry(note(request.run_id, ev.TOOL_FAILED, id_), port.SettleUnstarted(request.id))
        for id_ in ("one", "two")
    )
    await s.refused(port.Append(run_id=request.run_id, entries=entries), Why.SETTLED)
    assert len(await s.types(request.run_id)) == 2
    assert (await s.claim("w1")).claimed


@case("L6")
async def a_member_of_a_batch_that_is_refused_fails_alone(s: Scene) -> None:
    """In one batch the refused operation changes nothing; those around it stand."""
    good, bad, last = s.run_id("good"), s.run_id("bad"), s.run_id("last")
    await s.create(bad, order=1)
    verdicts = await s.commit(creates(good), creates(bad, order=2), creates(last))
    kinds = [type(verdict) for verdict in verdicts]
    assert kinds == [port.Appended, Refused, port.Appended]
    assert len(await s.types(good)) == len(await s.types(bad)) == len(await s.types(last)) == 1


@case("L6")
async def later_members_of_a_batch_see_earlier_ones(s: Scene) -> None:
    """A batch may create, open, claim and settle in its order."""
    run = s.run_id()
    request = tool_requested(run)
    opened, claimed = (
        await s.commit(
            creates(run),
            port.Append(run_id=run, entries=(opens(request),)),
            s.claims("w1"),
        )
    )[1:]
    assert isinstance(opened, port.Appended)
    assert isinstance(claimed, port.Claims)
    assert [one.request.id for one in claimed.claimed] == [request.id]
    settle = settles(claimed.claimed[0], "w1")
    first, again = await s.commit(settle, settle)
    assert isinstance(first, port.Settled)
    assert isinstance(again, port.Settled)
    assert (first.verdict, again.verdict) == ("applied", "dup")


@case("L5", "L13")
async def a_closed_run_takes_no_decision_and_no_effect(s: Scene) -> None:
    """After its end a run takes plain events only; decisions and effects are refused."""
    run = s.run_id()
    head = (await s.create(run)).head
    term = await s.own("w1")
    end = Entry(note(run, ev.RUN_COMPLETED, "end"), port.CloseRun("completed"))
    decision = port.Append(run_id=run, entries=(end,), at=head, term=term, worker="w1")
    head = (await s.one(decision, port.Appended)).head
    info = await s.info(run)
    assert (info.status, info.cursor) == ("completed", 2)
    assert info.closed_ms is not None
    assert (await s.take("w1", term)).runs == ()
    late = (Entry(note(run, ev.RUN_SUSPENDED, "late")),)
    decision = port.Append(run_id=run, entries=late, at=head, term=term, worker="w1")
    await s.refused(decision, Why.CLOSED)
    opening = port.Append(run_id=run, entries=(opens(tool_requested(run)),))
    await s.refused(opening, Why.CLOSED)
    await s.append(run, *late)
    assert (await s.take("w1", term)).runs == ()


@case("L13", "G2")
async def a_closed_run_leaves_nothing_in_the_queues(s: Scene) -> None:
    """Calls that are still ready when their run ends are not claimed and stand before nobody."""
    run = s.run_id()
    await s.create(run)
    for name in ("a", "b"):
        await s.request(run, name)
    await s.append(run, Entry(note(run, ev.RUN_FAILED, "end"), port.CloseRun("failed")))
    await s.harness.advance(3)
    other = await s.call(run="other")
    assert (await s.take_one("w1", limit=1)).request == other
    term = await s.own("w1")
    await s.one(
        port.Append(run_id=other.run_id, entries=(), term=term, worker="w1"),
        port.Appended,
    )
    beat = await s.pulse("w2")
    assert s.home not in beat.hot


@case("L12")
async def an_unknown_run_is_refused_by_name(s: Scene) -> None:
    """Appends, settles, releases and deletes of a run that is not there say so."""
    request = await s.call()
    claimed = await s.take_one("w1")
    nowhere = s.run_id("nowhere")
    entries = (Entry(note(nowhere, ev.RUN_SUSPENDED, "x")),)
    await s.refused(port.Append(run_id=nowhere, entries=entries), Why.NO_RUN)
    await s.refused(port.Delete(run_id=nowhere), Why.NO_RUN)
    lost = port.Release(run_id=nowhere, request_id=request.id, attempt=1, worker="w1")
    await s.refused(lost, Why.NO_CALL)
    settle = port.Settle(
        run_id=nowhere,
        request_id=request.id,
        attempt=1,
        worker="w1",
        outcome=note(nowhere, ev.TOOL_COMPLETED, "r"),
    )
    await s.refused(settle, Why.NO_RUN)
    for effect in (
        port.SettleUnstarted("none"),
        port.Grant("none", "d1", 1_000),
        port.Hold("none"),
        port.Resolve("none"),
    ):
        entry = Entry(note(request.run_id, ev.REJECTED, "x"), effect)
        await s.refused(port.Append(run_id=request.run_id, entries=(entry,)), Why.NO_CALL)
    assert claimed.attempt == 1
    assert await s.store.read(nowhere) == []
    assert await s.store.run(nowhere) is None


@case("L3")
async def payloads_come_back_as_the_bytes_that_were_stored(s: Scene) -> None:
    """Payloads are never decoded: unicode, big numbers, NULs and odd texts stay byte for byte."""
    run = s.run_id()
    await s.create(run)
    raws = [
        '{"text":"naïve — 退款 🧾 \\u0000 \\"quoted\\" \\\\ \u2028"}'.encode(),
        b'{"big":12345678901234567890123456789,"float":1e400,"neg":-0.0,"b":1,"a":1.0}',
        b'{ "spaces" : [ 1 , 2 ] }',
        b"{}",
        b'{"long":"' + b"x" * 100_000 + b'"}',
    ]
    for number, raw in enumerate(raws):
        event = note(run, ev.RUN_SUSPENDED, f"p{number}:ü")
        event.raw, event.parent = raw, f"parent {number} ü"
        await s.append(run, Entry(event))
    stored = (await s.store.read(run))[1:]
    assert [event.raw for event in stored] == raws
    assert [event.id for event in stored] == [f"p{number}:ü" for number in range(len(raws))]
    assert stored[1].parent == "parent 1 ü"
    assert (await s.store.read(run))[0].parent is None


@case("L14")
async def timers_fire_once_when_due(s: Scene) -> None:
    """A due timer becomes one event with a fixed id when the owner looks; the run is dirty."""
    run = s.run_id()
    await s.create(run)
    wait_ms = s.harness.ttl_ms
    name_json = '"ping \\"ü\\""'
    entry = Entry(note(run, ev.TIMER_SET, "t"), port.StartTimer(name_json, wait_ms))
    term = await s.own("w1", ttl_ms=LONG_MS)
    decision = port.Append(run_id=run, entries=(entry,), term=term, worker="w1")
    await s.one(decision, port.Appended)
    await s.one(decision, port.Appended)
    taken = await s.take("w1", term)
    assert taken.next_timer_ms is not None
    assert 0 < taken.next_timer_ms <= wait_ms
    await s.harness.advance(wait_ms + 5)
    assert s.home in (await s.pulse("w1", owned=("app",))).hot
    taken = await s.take("w1", term)
    assert [run_id for run_id, _ in taken.runs] == [run]
    assert taken.next_timer_ms is None
    assert taken.runs[0][1] == Head(3, "t:fired")
    fired = (await s.store.read(run))[-1]
    assert (fired.type, fired.parent, fired.id) == (ev.TIMER_FIRED, "t", "t:fired")
    assert fired.raw == b'{"name":' + name_json.encode() + b"}"
    await s.take("w1", term)
    assert len(await s.types(run)) == 3


@case("L14")
async def a_timer_of_a_closed_run_does_not_fire(s: Scene) -> None:
    """What is due after its run's end is dropped."""
    run = s.run_id()
    await s.create(run)
    entry = Entry(note(run, ev.TIMER_SET, "t"), port.StartTimer('"t"', 1))
    end = Entry(note(run, ev.RUN_COMPLETED, "end"), port.CloseRun("completed"))
    await s.append(run, entry)
    await s.append(run, end)
    await s.harness.advance(10)
    taken = await s.take("w1", await s.own("w1"))
    assert (taken.runs, taken.next_timer_ms) == ((), None)
    assert len(await s.types(run)) == 3


@case("G2")
async def apps_and_queues_do_not_see_each_other(s: Scene) -> None:
    """A claim takes from its app and the queues that it names, and from no other."""
    run, foreign = s.run_id("mine"), s.run_id("foreign")
    await s.create(run)
    await s.create(foreign, app="other")
    await s.request(run, "a")
    await s.request(run, "b", queue="tool/other")
    await s.request(foreign, "c")
    assert [c.request.data["call_id"] for c in (await s.claim("w1")).claimed] == ["a"]
    assert not (await s.claim("w1", queues=("tool/none",))).claimed
    other = await s.claim("w2", terms(), app="other")
    assert [c.request.data["call_id"] for c in other.claimed] == ["c"]
    both = await s.claim("w3", queues=("tool/refund", "tool/other"))
    assert [c.request.data["call_id"] for c in both.claimed] == ["b"]
