"""Approvals: bound to the arguments, with an end, used up by the first claim."""

from __future__ import annotations

from aaa import events as ev
from aaa.events import Event
from aaa.store import port
from aaa.store.port import Entry, Why
from aaa.testing.conformance.cases import case
from aaa.testing.scene import LONG_MS, Scene, note, terms


def grant(request: Event, *, digest: str = "d1", for_ms: int = LONG_MS, id_: str = "ok") -> Entry:
    """A person's approval of the request."""
    return Entry(note(request.run_id, ev.APPROVED, id_), port.Grant(request.id, digest, for_ms))


def hold(request: Event, id_: str = "hold") -> Entry:
    """Ask a person."""
    return Entry(note(request.run_id, ev.APPROVAL_REQUESTED, id_), port.Hold(request.id))


def reject(request: Event) -> Entry:
    """A person's no: the call's one result, without an attempt."""
    result = note(request.run_id, ev.TOOL_FAILED, f"{request.id}:result", {"error": "Rejected"})
    return Entry(result, port.SettleUnstarted(request.id))


@case("G19")
async def a_call_that_needs_approval_is_not_claimed_before_it(s: Scene) -> None:
    """It waits, is listed as waiting, and is claimed after the grant."""
    request = await s.call(needs_approval=True)
    assert not (await s.claim("w1")).claimed
    assert (await s.info(request.run_id)).awaiting == 1
    assert [run.run_id for run in await s.store.runs(status="waiting")] == [request.run_id]
    await s.append(request.run_id, grant(request))
    assert (await s.info(request.run_id)).awaiting == 0
    assert (await s.take_one("w1", terms(needs_approval=True))).request == request


@case("G19")
async def a_granted_call_waits_its_turn_from_the_grant(s: Scene) -> None:
    """What became ready before the grant goes before it."""
    granted = await s.call("a", needs_approval=True)
    await s.harness.advance(3)
    ready = await s.request(granted.run_id, "b")
    await s.harness.advance(3)
    await s.append(granted.run_id, grant(granted))
    got = [(await s.take_one("w1", limit=1)).request for _ in range(2)]
    assert got == [ready, granted]


@case("G19")
async def a_grant_for_other_arguments_is_refused(s: Scene) -> None:
    """The digest must be that of the request's arguments; nothing is stored otherwise."""
    request = await s.call(needs_approval=True)
    other = port.Append(run_id=request.run_id, entries=(grant(request, digest="d2"),))
    await s.refused(other, Why.DIGEST)
    assert not (await s.claim("w1")).claimed
    assert len(await s.types(request.run_id)) == 2


@case("G19")
async def only_a_waiting_call_is_granted(s: Scene) -> None:
    """A second grant, or one for a call that waits for nobody, is refused; a repeat is a dup."""
    request = await s.call(needs_approval=True)
    await s.append(request.run_id, grant(request))
    second = port.Append(run_id=request.run_id, entries=(grant(request, id_="ok2"),))
    await s.refused(second, Why.NOT_WAITING)
    assert (await s.append(request.run_id, grant(request))).dups == (True,)
    await s.take_one("w1")
    await s.refused(second, Why.NOT_WAITING)


@case("G19")
async def an_approval_that_has_ended_is_held_again(s: Scene) -> None:
    """A ready call whose approval has run out is reported as held, not claimed; ask again."""
    request = await s.call(needs_approval=True)
    await s.append(request.run_id, grant(request, for_ms=s.harness.ttl_ms))
    await s.harness.advance(s.harness.ttl_ms + 5)
    got = await s.claim("w1")
    assert got.claimed == ()
    assert [one.request for one in got.held] == [request]
    assert (got.held[0].attempt, got.held[0].started) == (0, None)
    await s.append(request.run_id, hold(request))
    got = await s.claim("w1")
    assert (got.claimed, got.held) == ((), ())
    assert (await s.info(request.run_id)).awaiting == 1
    await s.append(request.run_id, grant(request, id_="again"))
    assert (await s.take_one("w1")).attempt == 1


@case("G19", "G2")
async def an_approval_covers_every_attempt_of_its_call(s: Scene) -> None:
    """It is used up by the first claim; later attempts need no other, even after its end."""
    request = await s.call(needs_approval=True)
    ttl = s.harness.ttl_ms
    await s.append(request.run_id, grant(request, for_ms=ttl))
    offer = s.claims("w1", terms(ttl_ms=ttl, needs_approval=True), nonce="n")
    assert (await s.one(offer, port.Claims)).claimed == (await s.one(offer, port.Claims)).claimed
    await s.harness.lose_lease("w1")
    await s.harness.advance(ttl + 5)
    assert (await s.take_one("w2", terms(needs_approval=True))).attempt == 2


@case("G19")
async def an_approval_covers_no_other_call(s: Scene) -> None:
    """Two calls with the same arguments need a grant each."""
    request = await s.call(needs_approval=True)
    other = await s.request(request.run_id, "c2", needs_approval=True)
    await s.append(request.run_id, grant(request))
    assert [one.request for one in (await s.claim("w1")).claimed] == [request]
    assert (await s.info(other.run_id)).awaiting == 1


@case("G19", "G22")
async def a_policy_that_asks_for_approval_holds_a_ready_call(s: Scene) -> None:
    """A worker whose policy needs approval does not start a call that was opened without."""
    request = await s.call()
    strict = terms(needs_approval=True)
    got = await s.claim("w1", strict)
    assert (got.claimed, [one.request for one in got.held]) == ((), [request])
    assert (got.held[0].run_id, got.held[0].job) == (request.run_id, "run")
    await s.append(request.run_id, hold(request))
    assert (await s.info(request.run_id)).awaiting == 1
    await s.append(request.run_id, grant(request))
    assert (await s.take_one("w1", strict)).attempt == 1


@case("G19")
async def a_started_call_is_not_held(s: Scene) -> None:
    """A hold comes too late for a call that has begun, waits already, or has its result."""
    request = await s.call()
    late = port.Append(run_id=request.run_id, entries=(hold(request),))
    one = await s.take_one("w1")
    await s.refused(late, Why.STARTED)
    await s.settle(one, "w1")
    await s.refused(late, Why.STARTED)
    waiting = await s.request(request.run_id, "c2", needs_approval=True)
    twice = port.Append(run_id=request.run_id, entries=(hold(waiting),))
    await s.refused(twice, Why.STARTED)


@case("G19", "L5")
async def a_rejected_call_has_its_result_and_no_attempt(s: Scene) -> None:
    """A rejection settles a waiting call; it is never claimed and waits no more."""
    request = await s.call(needs_approval=True)
    await s.append(request.run_id, reject(request))
    assert (await s.info(request.run_id)).awaiting == 0
    assert not (await s.claim("w1")).claimed
    late = port.Append(run_id=request.run_id, entries=(grant(request),))
    await s.refused(late, Why.NOT_WAITING)
    assert (await s.types(request.run_id))[-1] == ev.TOOL_FAILED


@case("G4", "L5")
async def a_ready_call_may_be_settled_unstarted(s: Scene) -> None:
    """A result without an attempt (a repeated intent, a cancellation) takes it off the bus."""
    request = await s.call()
    await s.append(request.run_id, reject(request))
    assert not (await s.claim("w1")).claimed
    other = Entry(note(request.run_id, ev.TOOL_FAILED, "x"), port.SettleUnstarted(request.id))
    await s.refused(port.Append(run_id=request.run_id, entries=(other,)), Why.SETTLED)


@case("G4", "L5")
async def a_started_call_is_not_settled_as_unstarted(s: Scene) -> None:
    """Once an attempt has begun, "not executed" would be a lie: refused."""
    request = await s.call()
    one = await s.take_one("w1")
    late = port.Append(run_id=request.run_id, entries=(reject(request),))
    await s.refused(late, Why.STARTED)
    await s.settle(one, "w1")
    other = Entry(note(request.run_id, ev.TOOL_FAILED, "x"), port.SettleUnstarted(request.id))
    await s.refused(port.Append(run_id=request.run_id, entries=(other,)), Why.SETTLED)
