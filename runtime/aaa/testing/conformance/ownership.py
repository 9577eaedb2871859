"""Ownership of a partition: one owner, terms that only rise, what the owner takes."""

from __future__ import annotations

from aaa import events as ev
from aaa.store import port
from aaa.store.port import Entry, Why
from aaa.testing.conformance.cases import case
from aaa.testing.scene import LONG_MS, Scene, note


@case("L8")
async def a_partition_has_one_owner_an_app(s: Scene) -> None:
    """A second worker is told who owns it; the owner itself stays under its term."""
    term = await s.own("w1")
    (busy,) = await s.commit(port.Own(app="app", worker="w2", ttl_ms=LONG_MS))
    assert isinstance(busy, port.Busy)
    assert busy.owner == "w1"
    if s.harness.capabilities.leases == "ttl":
        assert 0 < busy.for_ms <= LONG_MS
    assert await s.own("w1") == term
    assert await s.own("w2", app="other") >= 1


@case("L8", "L9")
async def an_ownership_that_ran_out_has_a_new_term(s: Scene) -> None:
    """After its end another becomes owner under a higher term, and the old one decides nothing."""
    run = s.run_id()
    head = (await s.create(run)).head
    term = await s.own("w1", ttl_ms=s.harness.ttl_ms)
    await s.harness.lose_lease("w1")
    new = await s.own("w2")
    assert new == term + 1
    entries = (Entry(note(run, ev.RUN_SUSPENDED, "old")),)
    old = port.Append(run_id=run, entries=entries, at=head, term=term, worker="w1")
    await s.refused(old, Why.TERM)
    await s.refused(port.Take(app="app", worker="w1", term=term, limit=1), Why.TERM)
    assert (await s.take("w2", new)).runs == ((run, head),)


@case("L8")
async def an_ownership_that_ran_out_is_gone_for_its_own_worker_too(s: Scene) -> None:
    """The same worker may own again, under a new term."""
    term = await s.own("w1", ttl_ms=s.harness.ttl_ms)
    if s.harness.capabilities.leases == "ttl":
        await s.harness.lose_lease("w1")
        await s.refused(port.Take(app="app", worker="w1", term=term, limit=1), Why.TERM)
    else:
        await s.one(port.Disown(app="app", worker="w1"), port.Done)
    assert await s.own("w1") == term + 1


@case("L9")
async def a_partition_that_was_given_back_is_free_at_once(s: Scene) -> None:
    """Only the owner gives it back; the next owner has a higher term."""
    term = await s.own("w1")
    assert (await s.one(port.Disown(app="app", worker="w2"), port.Done)).count == 0
    assert (await s.one(port.Disown(app="none", worker="w1"), port.Done)).count == 0
    assert (await s.one(port.Disown(app="app", worker="w1"), port.Done)).count == 1
    await s.refused(port.Take(app="app", worker="w1", term=term, limit=1), Why.TERM)
    assert await s.own("w2") == term + 1


@case("L8", "L9")
async def only_the_owner_takes(s: Scene) -> None:
    """A take by another worker, under another term, or of an unowned app is refused."""
    await s.refused(port.Take(app="app", worker="w1", term=1, limit=1), Why.TERM)
    term = await s.own("w1")
    await s.refused(port.Take(app="app", worker="w2", term=term, limit=1), Why.TERM)
    await s.refused(port.Take(app="app", worker="w1", term=term + 1, limit=1), Why.TERM)
    await s.refused(port.Take(app="other", worker="w1", term=term, limit=1), Why.TERM)


@case("L9")
async def a_take_lists_dirty_runs_longest_waiting_first(s: Scene) -> None:
    """Runs are taken in the order in which they became dirty, up to the limit; ``more`` says."""
    runs = [s.run_id(name) for name in ("c", "a", "b")]
    heads = []
    for run in runs:
        heads.append((await s.create(run)).head)
        await s.harness.advance(3)
    await s.append(runs[0], Entry(note(runs[0], ev.RUN_SUSPENDED, "x")))
    heads[0] = port.Head(2, "x")
    await s.create(s.run_id("foreign"), app="other")
    term = await s.own("w1")
    two = await s.take("w1", term, limit=2)
    assert (two.runs, two.more) == (tuple(zip(runs[:2], heads[:2], strict=True)), True)
    again = await s.take("w1", term, limit=3)
    assert (again.runs, again.more) == (tuple(zip(runs, heads, strict=True)), False)
    fold = port.Append(run_id=runs[0], entries=(), term=term, worker="w1")
    await s.one(fold, port.Appended)
    assert [run for run, _ in (await s.take("w1", term)).runs] == runs[1:]
    await s.append(runs[0], Entry(note(runs[0], ev.RUN_RESUMED, "y")))
    assert [run for run, _ in (await s.take("w1", term)).runs] == [*runs[1:], runs[0]]


@case("L14")
async def a_take_fires_no_more_timers_than_its_limit(s: Scene) -> None:
    """Due timers beyond the limit fire with the next take, which is due at once."""
    run = s.run_id()
    await s.create(run)
    for number in range(3):
        timer = Entry(note(run, ev.TIMER_SET, f"t{number}"), port.StartTimer('"t"', number + 1))
        await s.append(run, timer)
    await s.harness.advance(20)
    term = await s.own("w1")
    first = await s.take("w1", term, limit=2)
    assert first.next_timer_ms == 0
    assert (await s.types(run)).count(ev.TIMER_FIRED) == 2
    assert (await s.take("w1", term, limit=2)).next_timer_ms is None
    assert (await s.types(run)).count(ev.TIMER_FIRED) == 3
