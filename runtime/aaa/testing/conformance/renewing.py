"""Heartbeats: renew what is held, tell what is lost, who lives, and where to look."""

from __future__ import annotations

import asyncio

from aaa.store import port
from aaa.store.port import HeldCall
from aaa.testing.conformance.cases import case
from aaa.testing.scene import LONG_MS, Scene, held, terms


@case("G1", "G12")
async def a_pulse_extends_a_call_lease(s: Scene) -> None:
    """A renewed lease outlasts its first end."""
    await s.call()
    ttl = s.harness.ttl_ms
    await s.pulse("w1")  # connects: a first beat may take longer than the lease on a busy machine
    one = await s.take_one("w1", terms(ttl_ms=ttl))
    beat = await s.pulse("w1", held(one))
    assert (beat.lost_calls, beat.cancelled) == ((), ())
    await s.harness.advance(ttl + 5)
    assert not (await s.claim("w2")).claimed
    assert (await s.settle(one, "w1")).verdict == "applied"


@case("G1")
async def a_lease_that_has_ended_is_lost_and_not_revived(s: Scene) -> None:
    """A pulse after the end names the call as lost; the next claim takes it over."""
    await s.call()
    one = await s.take_one("w1", terms(ttl_ms=s.harness.ttl_ms))
    await s.harness.lose_lease("w1")
    assert (await s.pulse("w1", held(one))).lost_calls == (held(one),)
    two = await s.take_one("w2")
    assert two.attempt == 2
    assert (await s.pulse("w2", held(two))).lost_calls == ()


@case("G1", "G9")
async def a_pulse_renews_only_what_its_worker_holds(s: Scene) -> None:
    """Another's call, another attempt, a settled or unknown call are lost."""
    request = await s.call()
    one = await s.take_one("w1")
    assert (await s.pulse("w2", held(one))).lost_calls == (held(one),)
    wrong = HeldCall(one.run_id, request.id, 2, LONG_MS)
    nowhere = HeldCall(one.run_id, "none", 1, LONG_MS)
    beat = await s.pulse("w1", wrong, held(one), nowhere)
    assert beat.lost_calls == (wrong, nowhere)
    await s.settle(one, "w1")
    assert (await s.pulse("w1", held(one))).lost_calls == (held(one),)


@case("L9", "G1")
async def a_pulse_renews_ownerships(s: Scene) -> None:
    """An ownership that is renewed outlasts its first end; another's is lost."""
    ttl = s.harness.ttl_ms
    term = await s.own("w1", ttl_ms=ttl)
    assert (await s.pulse("w1", owned=("app",))).lost_owned == ()
    await s.harness.advance(ttl + 5)
    assert isinstance((await s.commit(port.Own(app="app", worker="w2", ttl_ms=ttl)))[0], port.Busy)
    assert (await s.take("w1", term)).runs == ()
    beat = await s.pulse("w2", owned=("app", "none"))
    assert set(beat.lost_owned) == {(s.home, "app"), (s.home, "none")}


@case("L9", "G1")
async def an_ownership_that_has_ended_is_lost_and_not_revived(s: Scene) -> None:
    """A pulse after the end says so, and another may become the owner."""
    ttl = s.harness.ttl_ms
    term = await s.own("w1", ttl_ms=ttl)
    await s.harness.lose_lease("w1")
    assert (await s.pulse("w1", owned=("app",))).lost_owned == ((s.home, "app"),)
    assert await s.own("w2") == term + 1


@case("G14")
async def a_pulse_tells_who_is_alive(s: Scene) -> None:
    """Live workers are listed by app; one that left, or fell silent, is not."""
    ttl = s.harness.ttl_ms
    await s.pulse("w1", apps=("app", "other"))
    await s.pulse("w2", ttl_ms=ttl)
    beat = await s.pulse("w3", apps=("app", "other"))
    assert beat.workers == {"app": ("w1", "w2", "w3"), "other": ("w1", "w3")}
    await asyncio.to_thread(s.renewer("w1").leave, "w1")
    await s.harness.lose_lease("w2")
    assert (await s.pulse("w3")).workers == {"app": ("w3",)}


@case("G14", "L9")
async def a_pulse_names_the_partitions_that_wait_for_a_visit(s: Scene) -> None:
    """Something ready, unfolded or lost makes a partition hot for its app; nothing else does."""
    assert s.home not in (await s.pulse("w1")).hot
    run, term = s.run_id(), await s.own("w1")
    await s.create(run)
    assert s.home in (await s.pulse("w1")).hot  # unfolded
    assert s.home not in (await s.pulse("w1", apps=("other",))).hot
    await s.fold(run, "w1", term)
    assert s.home not in (await s.pulse("w1")).hot
    await s.request(run)
    await s.fold(run, "w1", term)
    assert s.home in (await s.pulse("w1")).hot  # ready
    one = await s.take_one("w1", terms(ttl_ms=s.harness.ttl_ms))
    await s.harness.lose_lease("w1")
    assert s.home in (await s.pulse("w2")).hot
    two = await s.take_one("w2")
    assert two.attempt == one.attempt + 1
    assert s.home not in (await s.pulse("w2", held(two))).hot


@case("L9")
async def what_a_worker_said_of_itself_stands_until_it_says_something_else(s: Scene) -> None:
    """A pulse need not repeat it; one that comes after the worker had gone has to."""

    async def said() -> list[bytes]:
        return [member.info for member in (await s.store.members()).members]

    await s.pulse("w1", info=b'{"a":1}')
    await s.pulse("w1", info=None)
    assert await said() == [b'{"a":1}']
    await s.pulse("w1", info=b'{"a":2}')
    assert await said() == [b'{"a":2}']
    await asyncio.to_thread(s.renewer("w1").leave, "w1")
    await s.pulse("w1", info=None)
    assert await said() == [b"{}"]


@case("L9")
async def members_are_the_workers_that_live(s: Scene) -> None:
    """Who looks on is told who lives, what they serve and say, without a pulse of its own."""
    before = await s.store.members()
    assert before.members == ()
    await s.pulse("w1", apps=("app", "other"), ttl_ms=s.harness.ttl_ms)
    await s.pulse("w2")
    (one, two) = (await s.store.members()).members
    assert (one.worker, one.apps, one.info) == ("w1", ("app", "other"), b"{}")
    assert (two.worker, two.apps) == ("w2", ("app",))
    await s.harness.lose_lease("w1")
    after = await s.store.members()
    assert [member.worker for member in after.members] == ["w2"]
    assert after.server == before.server
    assert after.now_ms >= before.now_ms
