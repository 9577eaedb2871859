"""The events that the server-side library writes are those of the reference, byte for byte."""

from __future__ import annotations

from aaa import events as ev
from aaa.store import port
from aaa.store.memory import MemoryEventStore
from aaa.store.port import Entry
from aaa.testing.harness import Harness, MemoryHarness
from aaa.testing.scene import MODEL, Scene, completed, note, opens, terms, tool_requested
from stores.redis_words import opened

Story = list[tuple[str, str, bytes, str | None]]


async def test_both_stores_write_the_same_bytes(redis_url: str) -> None:
    memory = MemoryHarness(partitions=64)
    assert isinstance(memory, Harness)
    assert isinstance(memory.store, MemoryEventStore)
    expected = await told(Scene(memory))
    async with opened(redis_url) as s:
        assert await told(s) == expected
    types = {type_ for _, type_, _, _ in expected}
    assert {
        ev.TOOL_STARTED,
        ev.TOOL_FAILED,
        ev.LLM_FAILED,
        ev.TOOL_STALE_RESULT,
        ev.TIMER_FIRED,
    } <= types


async def told(s: Scene) -> Story:
    """A run in which the store writes every kind of event that it writes itself."""
    run = s.run_id()
    await s.create(run, order="é\u2028")
    policy = terms("at_most_once", ttl_ms=1, policy='p"ö\\\x01')
    odd = tool_requested(run, 'c"é\n')
    await s.request(run, 'c"é\n')
    lost = await s.take_one('w"1\tü/', policy)
    await s.harness.advance(5)
    await s.claim("w2")
    await s.settle(lost, 'w"1\tü/', completed(lost, {"ü": "\u0000", "big": 2**60}))
    await s.request(run, "c2")
    await s.take_one("w1", terms(cap=1, ttl_ms=1))
    await s.harness.advance(5)
    await s.claim("w3", queues=())
    await s.append(run, opens(note(run, ev.LLM_REQUESTED, "m", _MODEL), queue=MODEL))
    await s.claim("w1", terms("at_most_once", ttl_ms=1), queues=(MODEL,))
    await s.harness.advance(5)
    await s.claim("w3", queues=())
    await s.append(run, Entry(note(run, ev.TIMER_SET, "t 1 x"), port.StartTimer('"é "', 1)))
    await s.harness.advance(5)
    await s.take("w1", await s.own("w1"))
    assert odd.run_id == run
    return [(e.id, e.type, e.raw, e.parent) for e in await s.store.read(run)]


_MODEL = {"call_id": "m", "name": "model"}
