"""Claims of ready calls: one operation, dense attempts, nonces, order, limits."""

from __future__ import annotations

import asyncio

from aaa import events as ev
from aaa.ids import attempt_id, canonical, partition_of
from aaa.store import port
from aaa.store.port import Entry
from aaa.testing.conformance.cases import case
from aaa.testing.harness import MemoryHarness
from aaa.testing.scene import MODEL, REFUND, Scene, note, opens, terms, tool_requested


@case("G1", "G2", "G3")
async def a_claim_leases_counts_and_records_at_once(s: Scene) -> None:
    """A claim returns the request and its started record, which stands in the log."""
    request = await s.call()
    got = await s.claim("w1", terms(policy="hash"))
    (one,) = got.claimed
    assert (one.request, one.attempt, one.job, one.run_id) == (
        request,
        1,
        "run",
        request.run_id,
    )
    assert (one.delivery, one.lease_ttl_ms) == ("at_least_once", 60_000)
    assert one.started is not None
    stored = (await s.store.read(request.run_id))[-1]
    assert stored == one.started
    assert (stored.id, stored.type) == (attempt_id(request.id, 1), ev.TOOL_STARTED)
    assert stored.parent == request.id
    assert stored.data == {
        "attempt": 1,
        "call_id": "c1",
        "idempotency_key": f"{request.run_id}/c1",
        "name": "refund",
        "policy": "hash",
        "worker": "w1",
    }
    assert not (await s.claim("w2")).claimed


@case("L4", "G3")
async def started_records_are_canonical_and_alike_on_every_backend(s: Scene) -> None:
    """The bytes of a started record are canonical and those that the memory store writes."""

    async def record(scene: Scene) -> bytes:
        run = scene.run_id()
        await scene.create(run)
        request = tool_requested(run, 'c "1"\\ ü \n\u2028\U0001f9fe')
        await scene.append(run, opens(request))
        one = await scene.take_one('w/"ü"\\', terms(policy="p\n\u007f\u0001/"))
        assert one.started is not None
        assert one.started.raw == canonical(one.started.data)
        assert (await scene.store.read(run))[-1].raw == one.started.raw
        return one.started.raw

    memory = MemoryHarness(partitions=s.store.partitions)
    assert await record(s) == await record(Scene(memory))


@case("G2")
async def the_same_nonce_again_returns_the_same_claims(s: Scene) -> None:
    """An offer repeated after a lost reply gets the same attempts and takes nothing new."""
    request = await s.call()
    await s.request(request.run_id, "c2")
    offer = s.claims("w1", limit=1, nonce="offer")
    first = await s.one(offer, port.Claims)
    again = await s.one(offer, port.Claims)
    assert len(first.claimed) == 1
    assert again.claimed == first.claimed
    assert (await s.types(request.run_id)).count(ev.TOOL_STARTED) == 1
    await s.settle(first.claimed[0], "w1")
    assert (await s.one(offer, port.Claims)).claimed == ()
    assert (await s.take_one("w1")).request.data["call_id"] == "c2"


@case("G2")
async def the_same_nonce_again_does_not_extend_the_lease(s: Scene) -> None:
    """A repeated offer leaves the lease's end where it was."""
    await s.call()
    short = terms(ttl_ms=s.harness.ttl_ms)
    offer = s.claims("w1", short, nonce="offer")
    await s.one(offer, port.Claims)
    if s.harness.capabilities.leases == "ttl":
        await s.harness.advance(s.harness.ttl_ms // 2)
        await s.one(offer, port.Claims)
        await s.harness.advance(s.harness.ttl_ms // 2 + 5)
    else:
        await s.one(offer, port.Claims)
        await s.harness.lose_lease("w1")
    assert (await s.take_one("w2")).attempt == 2
    assert (await s.one(offer, port.Claims)).claimed == ()


@case("G1")
async def of_many_claims_at_once_one_wins(s: Scene) -> None:
    """Concurrent claims of several workers through two instances share out the calls."""
    run = s.run_id()
    await s.create(run)
    await s.append(run, *(opens(tool_requested(run, f"c{i}")) for i in range(6)))
    stores = (s.store, await s.harness.another())
    verdicts = await asyncio.gather(
        *(s.commit(s.claims(f"w{i}", limit=2), store=stores[i % 2]) for i in range(6))
    )
    got = [one for (v,) in verdicts if isinstance(v, port.Claims) for one in v.claimed]
    assert len(got) == len({one.request.id for one in got}) == 6
    assert {one.attempt for one in got} == {1}
    assert (await s.types(run)).count(ev.TOOL_STARTED) == 6


@case("L5")
async def of_many_settles_at_once_one_is_applied(s: Scene) -> None:
    """The same settle sent many times at once is applied once and a dup else."""
    await s.call()
    one = await s.take_one("w1")
    other = await s.harness.another()
    settled = await asyncio.gather(
        *(Scene.settle(s if i % 2 else _through(s, other), one, "w1") for i in range(6))
    )
    assert sorted(v.verdict for v in settled) == ["applied"] + ["dup"] * 5
    assert len(await s.types(one.run_id)) == 4


def _through(s: Scene, store: port.EventStore) -> Scene:
    scene = Scene(s.harness)
    scene.store = store
    return scene


@case("G2")
async def ready_calls_are_taken_longest_waiting_first(s: Scene) -> None:
    """Across runs and queues the order is that of becoming ready."""
    order = []
    for number in range(6):
        queue = (REFUND, "tool/other")[number % 2]
        request = await s.call(f"c{number}", run=f"run{number % 3}", queue=queue)
        order.append(request.id)
        await s.harness.advance(3)
    queues = (REFUND, "tool/other")
    got = [(await s.take_one("w1", limit=1, queues=queues)).request.id for _ in range(len(order))]
    assert got == order


@case("G2")
async def a_claim_takes_no_more_than_its_limit_and_says_if_more_is_ready(s: Scene) -> None:
    """``limit`` bounds what is claimed; ``more`` says whether ready calls are left."""
    request = await s.call()
    for name in ("c2", "c3"):
        await s.request(request.run_id, name)
    two = await s.claim("w1", limit=2)
    assert (len(two.claimed), two.more) == (2, True)
    none = await s.claim("w1", limit=0)
    assert (none.claimed, none.more) == ((), True)
    last = await s.claim("w1", limit=2)
    assert (len(last.claimed), last.more) == (1, False)
    assert (await s.claim("w1", limit=0)).more is False


@case("G18")
async def an_unguarded_call_keeps_no_records(s: Scene) -> None:
    """``guarded=False``: no started record, no stale result; a lost one is simply redone."""
    request = await s.call()
    ttl = s.harness.ttl_ms
    one = await s.take_one("w1", terms(guarded=False, cap=1, ttl_ms=ttl))
    assert one.started is None
    await s.harness.lose_lease("w1")
    two = await s.take_one("w2", terms(guarded=False, cap=1))
    assert (two.attempt, two.started) == (2, None)
    assert (await s.settle(two, "w2")).verdict == "applied"
    assert (await s.settle(one, "w1")).verdict == "dropped"
    assert await s.types(request.run_id) == [
        ev.RUN_REQUESTED,
        ev.TOOL_REQUESTED,
        ev.TOOL_COMPLETED,
    ]


@case("G24")
async def a_model_request_is_leased_and_bounded_without_records(s: Scene) -> None:
    """A model's call keeps no started record; after its cap it is ``aaa.llm.failed``, known."""
    run = s.run_id()
    await s.create(run)
    request = note(run, ev.LLM_REQUESTED, "llm", {"call_id": "m", "name": "model"})
    await s.append(run, opens(request, queue=MODEL))
    short = terms(cap=2, ttl_ms=s.harness.ttl_ms)
    for worker, attempt in (("w1", 1), ("w2", 2)):
        one = await s.take_one(worker, short, queues=(MODEL,))
        assert (one.attempt, one.started) == (attempt, None)
        await s.harness.lose_lease(worker)
    got = await s.claim("w3", short, queues=(MODEL,))
    assert (got.claimed, got.settled_runs) == ((), (run,))
    failed = (await s.store.read(run))[-1]
    assert (failed.type, failed.id) == (ev.LLM_FAILED, "llm:result")
    assert failed.data["error"] == "ExecutionAbandoned"
    assert (await s.info(run)).unknown == 0


@case("G24", "L5")
async def a_models_late_answer_is_dropped(s: Scene) -> None:
    """A model's answer is recorded once; a superseded one is kept nowhere."""
    run = s.run_id()
    await s.create(run)
    request = note(run, ev.LLM_REQUESTED, "llm", {"call_id": "m", "name": "model"})
    await s.append(run, opens(request, queue=MODEL))
    one = await s.take_one("w1", terms(ttl_ms=s.harness.ttl_ms), queues=(MODEL,))
    await s.harness.lose_lease("w1")
    two = await s.take_one("w2", queues=(MODEL,))
    assert (await s.settle(one, "w1")).verdict == "dropped"
    assert (await s.settle(two, "w2")).verdict == "applied"
    assert (await s.types(run))[-2:] == [ev.LLM_REQUESTED, ev.TOOL_COMPLETED]


@case("L6", "L7")
async def a_commit_wakes_other_instances(s: Scene) -> None:
    """A hint for the partition reaches another instance on the same data, in its loop."""
    woken: asyncio.Queue[int] = asyncio.Queue()
    other = await s.harness.another()
    other.on_wake(woken.put_nowait)
    await asyncio.sleep(0)
    run = s.run_id()
    await s.create(run)
    async with asyncio.timeout(5):
        while await woken.get() != s.home:
            pass
    await s.append(run, Entry(note(run, ev.RUN_SUSPENDED, "x")))
    async with asyncio.timeout(5):
        while await woken.get() != s.home:
            pass


@case("L6", "G14")
async def looking_for_work_wakes_nobody(s: Scene) -> None:
    """A batch says that something is left to do only if it may have made it so."""
    request = await s.call()
    partition = partition_of(request.run_id, s.store.partitions)
    looked = await s.store.commit(partition, [s.claims("w1", queues=())])
    assert not looked.hot
    more = opens(tool_requested(request.run_id, "c2"))
    assert (
        await s.store.commit(partition, [port.Append(run_id=request.run_id, entries=(more,))])
    ).hot
