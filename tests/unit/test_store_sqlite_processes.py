"""Several processes on one SQLite file: killed in the middle of a commit, sharing the work."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from aaa import events as ev
from aaa.ids import partition_of
from aaa.store import port
from aaa.store.sqlite import SQLiteEventStore
from aaa.testing.harness import MemoryHarness
from aaa.testing.scene import Scene, creates, opens, tool_requested

BOUND_S = 60

#: Commits runs of three events, many at once, and says after each which are stored.
WRITER = """
import asyncio, sys
from aaa.ids import partition_of
from aaa.store import port
from aaa.store.sqlite import SQLiteEventStore
from aaa.testing.scene import creates, opens, terms, tool_requested

async def main(path, first):
    store = SQLiteEventStore(path)
    await store.open()
    offer = port.Offer(worker="w", nonce=first, limit=9, queues={"tool/refund": terms()})
    async def one(number):
        run = f"{first}-{number}"
        append = port.Append(run_id=run, entries=(opens(tool_requested(run)),), offer=offer)
        await store.commit(partition_of(run, store.partitions), [creates(run), append])
        print(run, flush=True)
    for start in range(0, 100_000, 8):
        await asyncio.gather(*(one(start + i) for i in range(8)))

asyncio.run(main(*sys.argv[1:]))
"""

#: Claims what it gets in one partition until nothing is ready, and says what it was.
CLAIMER = """
import asyncio, sys
from aaa.store import port
from aaa.store.sqlite import SQLiteEventStore
from aaa.testing.scene import settles, terms

async def main(path, worker, partition):
    store = SQLiteEventStore(path, synchronous="off")
    await store.open()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for number in range(1_000):
        offer = port.Offer(
            worker=worker, nonce=f"n{number}", limit=1, queues={"tool/refund": terms()}
        )
        claim = port.Claim(app="app", offer=offer)
        verdict = (await store.commit(int(partition), [claim])).verdicts[0]
        if not verdict.claimed:
            break
        for one in verdict.claimed:
            await store.commit(int(partition), [settles(one, worker)])
            print(one.request.id, flush=True)
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_writer_killed_in_mid_commit_leaves_nothing_half_written(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    acknowledged: list[str] = []
    async with asyncio.timeout(BOUND_S):
        for turn in range(4):
            writer = await _python(WRITER, str(path), f"t{turn}")
            assert writer.stdout is not None
            said = [await writer.stdout.readline() for _ in range(20 + turn * 7)]
            acknowledged += b"".join(said).decode().split()
            os.kill(writer.pid, signal.SIGKILL)
            acknowledged += (await writer.stdout.read()).decode().split()
            await writer.wait()

        store = SQLiteEventStore(path)
        await store.open()
        runs = {info.run_id for info in await store.runs(limit=100_000)}
        assert set(acknowledged) <= runs
        for run in runs:
            events = await store.read(run)
            assert [event.seq for event in events] == [1, 2, 3]
            assert [event.type for event in events] == [
                ev.RUN_REQUESTED,
                ev.TOOL_REQUESTED,
                ev.TOOL_STARTED,
            ]
        await store.close()
    checks = sqlite3.connect(path)
    assert checks.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    leased = checks.execute("SELECT count(*) FROM calls WHERE state = 'leased'").fetchone()
    assert leased == (len(runs),)
    checks.close()


async def test_processes_that_share_a_file_share_the_calls(tmp_path: Path) -> None:
    path, calls = tmp_path / "store.db", 60
    home = Scene(MemoryHarness()).home
    store = SQLiteEventStore(path, synchronous="off")
    async with asyncio.timeout(BOUND_S):
        await store.open()
        run = Scene(MemoryHarness()).run_id("shared")
        assert partition_of(run, store.partitions) == home
        requests = [tool_requested(run, f"c{number}") for number in range(calls)]
        append = port.Append(run_id=run, entries=tuple(opens(one) for one in requests))
        await store.commit(home, [creates(run), append])

        claimers = [await _python(CLAIMER, str(path), f"w{i}", str(home)) for i in range(3)]
        for claimer in claimers:
            assert claimer.stdout is not None
            assert await claimer.stdout.readline() == b"ready\n"
        answers = await asyncio.gather(*(one.communicate(b"go\n") for one in claimers))
        got = b"".join(answer for answer, _ in answers).decode().split()
        assert sorted(got) == sorted(request.id for request in requests)
        types = [event.type for event in await store.read(run)]
        assert types.count(ev.TOOL_STARTED) == types.count(ev.TOOL_COMPLETED) == calls
        await store.close()


async def _python(program: str, *arguments: str) -> Process:
    """A program that imports what this process imports."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, *arguments, stdin=PIPE, stdout=PIPE, env=env
    )
