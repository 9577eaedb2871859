"""Reads: pages of a log, the index of runs, and a second instance on the same data."""

from __future__ import annotations

from aaa import events as ev
from aaa.store import port
from aaa.store.port import Entry
from aaa.testing.conformance.cases import case
from aaa.testing.scene import Scene, note, opens, terms, tool_requested


@case("L3")
async def a_log_is_read_in_pages(s: Scene) -> None:
    """``after`` and ``limit`` page through a log in order."""
    run = s.run_id()
    await s.create(run)
    await s.append(run, *(Entry(note(run, ev.RUN_SUSPENDED, f"e{i}")) for i in range(6)))
    assert [event.seq for event in await s.store.read(run, after=2, limit=3)] == [3, 4, 5]
    assert [event.seq for event in await s.store.read(run, after=5)] == [6, 7]
    assert await s.store.read(run, after=7) == []
    assert [event.seq for event in await s.store.read(run, limit=1)] == [1]


@case("L6")
async def another_instance_sees_what_was_committed(s: Scene) -> None:
    """Two instances on the same data are one store."""
    request = await s.call()
    other = await s.harness.another()
    assert other.partitions == s.store.partitions
    assert await other.read(request.run_id) == await s.store.read(request.run_id)
    assert await other.run(request.run_id) == await s.store.run(request.run_id)
    (got,) = await s.commit(s.claims("w2"), store=other)
    assert isinstance(got, port.Claims)
    assert [one.request for one in got.claimed] == [request]
    assert not (await s.claim("w1")).claimed


@case("L12")
async def runs_are_listed_by_status_and_app(s: Scene) -> None:
    """Newest first; filters by status, app, waiting and unknown; bounded by the limit."""
    names = ["open", "done", "bad", "waits", "lost"]
    runs = {name: s.run_id(name) for name in names}
    for name in names:
        await s.create(runs[name], app="b" if name == "bad" else "app")
        await s.harness.advance(3)

    async def end(name: str, status: str) -> None:
        event = note(runs[name], f"aaa.run.{status}", "end")
        await s.append(runs[name], Entry(event, port.CloseRun(status)))

    await end("done", "completed")
    await end("bad", "failed")
    await s.append(runs["waits"], opens(tool_requested(runs["waits"]), needs_approval=True))
    await s.append(runs["lost"], opens(tool_requested(runs["lost"])))
    one = await s.take_one("w1", terms("at_most_once"))
    await s.settle(one, "w1", unknown=True)

    async def listed(**how: object) -> list[str]:
        found = await s.store.runs(**how)  # type: ignore[arg-type]
        ids = {run: name for name, run in runs.items()}
        return [ids[info.run_id] for info in found]

    assert await listed() == names[::-1]
    assert await listed(limit=2) == ["lost", "waits"]
    assert await listed(status="open") == ["lost", "waits", "open"]
    assert await listed(status="completed") == ["done"]
    assert await listed(status="failed") == ["bad"]
    assert await listed(status="cancelled") == []
    assert await listed(status="waiting") == ["waits"]
    assert await listed(status="unknown") == ["lost"]
    assert await listed(app="b") == ["bad"]
    assert await listed(app="b", status="open") == []


@case("L3")
async def the_index_tells_what_the_log_says(s: Scene) -> None:
    """A run's entry has its app, digest, head and times."""
    run = s.run_id()
    created = await s.create(run, app="shop", order=7)
    info = await s.info(run)
    assert (info.run_id, info.app, info.status) == (run, "shop", "open")
    assert (info.head, info.cursor) == (created.head, 0)
    assert info.created_ms == created.events[0].time
    assert (info.closed_ms, info.deleted, info.awaiting, info.unknown) == (None, False, 0, 0)
    assert (info.cancelling, info.suspended, info.parked) == (False, False, False)


@case("L3")
async def opening_and_closing_twice_is_fine(s: Scene) -> None:
    """Another open tells the same identity; what was committed stays after a close."""
    run = s.run_id()
    await s.create(run)
    first, again = await s.store.open(), await s.store.open()
    assert (first.identity, first.partitions) == (again.identity, again.partitions)
    assert first.partitions == s.store.partitions
    other = await s.harness.another()
    assert (await other.open()).identity == first.identity
    if other is not s.store:
        await other.close()
        await other.close()
    assert len(await s.store.read(run)) == 1
