"""What the SQLite store adds to the port: its file, its versions, its failures, its threads."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from aaa import events as ev
from aaa.errors import (
    ConfigError,
    CorruptHistory,
    StoreMismatch,
    StoreTooNew,
    StoreUnavailable,
)
from aaa.ids import partition_of
from aaa.store import logic, open_store, port
from aaa.store.port import Entry, StoreInfo
from aaa.store.sqlite import SQLiteEventStore
from aaa.testing.clock import ManualClock
from aaa.testing.harness import Harness
from aaa.testing.scene import Scene, creates, held, note, opens, terms, tool_requested

BOUND_S = 20


class Bench(Harness):
    def __init__(self, store: SQLiteEventStore, clock: ManualClock) -> None:
        self.store, self.clock = store, clock

    async def advance(self, ms: int) -> None:
        self.clock.advance(ms)

    async def another(self) -> port.EventStore:
        raise AssertionError("open a second store in the test")

    async def close(self) -> None:
        await self.store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteEventStore]:
    store = SQLiteEventStore(path, synchronous="off")
    async with asyncio.timeout(BOUND_S):
        await store.open()
        yield store
        await store.close()


def writing(store: SQLiteEventStore) -> apsw.Connection:
    assert store._open is not None
    return store._open.writer._connection


async def commit(store: SQLiteEventStore, run: str, *operations: port.Operation) -> port.Committed:
    return await store.commit(partition_of(run, store.partitions), operations)


async def opened(path: Path, **how: object) -> StoreInfo:
    store = SQLiteEventStore(path, **how)  # type: ignore[arg-type]
    try:
        return await store.open()
    finally:
        await store.close()


# ------------------------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("url", "expected", "partitions", "synchronous"),
    [
        ("sqlite:///rel.db", "rel.db", None, "full"),
        ("sqlite:///a/b%20c.db", "a/b c.db", None, "full"),
        ("sqlite:////abs/x.db?partitions=8", "/abs/x.db", 8, "full"),
        ("sqlite:///x.db?synchronous=EXTRA&partitions=1", "x.db", 1, "extra"),
    ],
)
def test_a_url_names_a_file_and_settings(
    url: str, expected: str, partitions: int | None, synchronous: str
) -> None:
    store = open_store(url)
    assert isinstance(store, SQLiteEventStore)
    settings = store._settings
    assert settings.path == Path(expected)
    assert (settings.partitions, settings.synchronous) == (partitions, synchronous)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://host/x.db", "must be sqlite:///relative.db"),
        ("sqlite:x.db", "must be sqlite:///relative.db"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "use memory:"),
        ("sqlite:///x.db?partitions=many", "partitions='many'"),
        ("sqlite:///x.db?partitions=0", "must be 1 to"),
        ("sqlite:///x.db?synchronous=never", "must be one of full"),
        ("sqlite:///x.db?cache=big", "cache='big'"),
    ],
)
def test_a_bad_url_is_refused_with_what_is_wrong(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        open_store(url)


# ------------------------------------------------------------------------------------ the file


async def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "store.db"
    info = await opened(path)
    assert path.exists()
    assert (info.backend, info.partitions, info.warnings) == ("sqlite", 64, ())
    assert await opened(path) == info


async def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match=r"store\.db cannot be made: .*file"):
        await opened(tmp_path / "file" / "store.db")


async def test_a_path_that_is_a_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        await opened(tmp_path)


async def test_settings_that_lose_writes_are_told(path: Path) -> None:
    for synchronous in ("off", "normal"):
        (warning,) = (await opened(path, synchronous=synchronous)).warnings
        assert f"synchronous={synchronous.upper()}" in warning


async def test_many_can_open_a_new_file_at_once(path: Path) -> None:
    infos = await asyncio.gather(*(opened(path) for _ in range(6)))
    assert len({info.identity for info in infos}) == 1


async def test_other_partitions_than_the_files_are_refused(path: Path) -> None:
    assert (await opened(path, partitions=8)).partitions == 8
    assert (await opened(path)).partitions == 8
    with pytest.raises(StoreMismatch, match="has 8 partitions and 64 were asked for"):
        await opened(path, partitions=64)


async def test_another_hash_function_is_refused(path: Path) -> None:
    await opened(path)
    _sql(path, "UPDATE meta SET value = 'md5' WHERE key = 'hash'")
    with pytest.raises(StoreMismatch, match="spreads runs by md5"):
        await opened(path)


async def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    await opened(path)
    _sql(path, "UPDATE meta SET value = 99 WHERE key IN ('schema', 'min_reader')")
    with pytest.raises(StoreTooNew, match="has schema 99"):
        await opened(path)
    assert _sql(path, "SELECT value FROM meta WHERE key = 'schema'") == [(99,)]


async def test_an_event_of_a_newer_schema_is_refused_by_name(store: SQLiteEventStore) -> None:
    await commit(store, "run", creates("run"))
    writing(store).execute("UPDATE events SET schema = 99")
    with pytest.raises(StoreTooNew, match="run run, event 1"):
        await store.read("run")


async def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    _sql(path, "CREATE TABLE theirs (x)")
    before = path.read_bytes()
    with pytest.raises(StoreMismatch, match="database of another program"):
        await opened(path)
    assert path.read_bytes() == before


async def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"not a database at all, but long enough to be read as one" * 40)
    with pytest.raises(StoreMismatch, match="is not an SQLite database"):
        await opened(path)


async def test_a_damaged_file_is_named(path: Path) -> None:
    store = SQLiteEventStore(path)
    await store.open()
    for number in range(200):
        await commit(store, f"r{number}", creates(f"r{number}", text="x" * 500))
    await store.close()
    data = bytearray(path.read_bytes())
    for page in range(len(data) // 8192, len(data) // 4096):
        data[page * 4096 : page * 4096 + 200] = b"\xee" * 200
    path.write_bytes(data)
    store = SQLiteEventStore(path)

    async def read_all() -> None:
        await store.open()
        for number in range(200):
            await store.read(f"r{number}")

    with pytest.raises(CorruptHistory, match=r"store\.db is damaged"):
        await read_all()
    await store.close()


# ---------------------------------------------------------------------------------------- reboots


async def test_a_reboot_ends_every_lease_of_the_older_boot(path: Path) -> None:
    clock = ManualClock(boot_ms=10**12)
    store = SQLiteEventStore(path, clock=clock, synchronous="off", boot_id="one")
    await store.open()
    s = Scene(Bench(store, clock))
    lost = await s.call("c1")
    await s.take_one("w1")
    term = await s.own("w1")
    await s.pulse("w1", owned=("app",))
    older = await s.request(lost.run_id, "older")
    await s.close()
    await store.close()

    clock.reboot(down_ms=5_000)
    store = SQLiteEventStore(path, clock=clock, synchronous="off", boot_id="two")
    await store.open()
    s = Scene(Bench(store, clock))
    assert await s.own("w2") == term + 1
    assert (await s.pulse("w2")).workers == {"app": ("w2",)}
    clock.advance(5)
    newer = await s.request(lost.run_id, "newer")
    got = [(await s.take_one("w2", limit=1)).request for _ in range(3)]
    assert got == [lost, older, newer]
    await s.close()
    await store.close()

    again = SQLiteEventStore(path, clock=clock, synchronous="off", boot_id="two")
    await again.open()
    s = Scene(Bench(again, clock))
    assert not (await s.claim("w3")).claimed
    await again.close()


# --------------------------------------------------------------------------------- what goes wrong


async def test_a_locked_file_is_unavailable_and_then_works_again(
    store: SQLiteEventStore, path: Path
) -> None:
    writing(store).set_busy_timeout(20)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match=r"store\.db is locked by another process"):
        await commit(store, "run", creates("run"))
    other.execute("ROLLBACK")
    other.close()
    await commit(store, "run", creates("run"))
    assert len(await store.read("run")) == 1


async def test_a_full_disk_refuses_only_what_does_not_fit(store: SQLiteEventStore) -> None:
    for run in ("big", "small"):
        await commit(store, run, creates(run))
    connection = writing(store)
    pages = connection.execute("PRAGMA page_count").fetchone()
    assert pages is not None
    connection.execute(f"PRAGMA max_page_count = {int(pages[0]) + 8}")
    more = port.Append(
        run_id="big", entries=(Entry(note("big", ev.RUN_RESUMED, "y", {"t": "y" * 10**6})),)
    )
    also = port.Append(run_id="small", entries=(Entry(note("small", ev.RUN_RESUMED, "y")),))
    refused, stored = await asyncio.gather(
        commit(store, "big", more), commit(store, "small", also), return_exceptions=True
    )
    assert isinstance(refused, StoreUnavailable)
    assert "the disk is full" in str(refused)
    assert isinstance(stored, port.Committed)
    assert [event.seq for event in await store.read("big")] == [1]
    connection.execute("PRAGMA max_page_count = 1000000")
    await commit(store, "big", more)
    assert [event.seq for event in await store.read("big")] == [1, 2]


async def test_an_operation_that_raises_is_undone_alone(
    store: SQLiteEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = logic.apply

    def raising(rows: object, operation: port.Operation) -> port.Verdict:
        verdict = apply(rows, operation)  # type: ignore[arg-type]
        if isinstance(operation, port.Append):
            raise CorruptHistory("after everything was written")
        return verdict

    await commit(store, "bad", creates("bad"))
    monkeypatch.setattr(logic, "apply", raising)
    timer = Entry(note("bad", ev.TIMER_SET, "t"), port.StartTimer('"t"', 1))  # written at once
    bad = port.Append(run_id="bad", entries=(opens(tool_requested("bad")), timer))
    with pytest.raises(CorruptHistory, match="after everything"):
        await commit(store, "bad", bad, creates("bad", other=1))
    monkeypatch.setattr(logic, "apply", apply)
    assert len(await store.read("bad")) == 1
    assert writing(store).execute("SELECT count(*) FROM timers").get == 0
    run = await store.run("bad")
    assert run is not None
    assert run.head.seq == 1
    assert (await commit(store, "bad", bad)).verdicts[0].dups == (False,) * 2  # type: ignore[union-attr]


async def test_what_queues_up_is_committed_together(store: SQLiteEventStore, path: Path) -> None:
    commits: list[int] = []
    connection = writing(store)
    connection.set_busy_timeout(BOUND_S * 1000)

    def count() -> bool:
        commits.append(1)
        return False  # True would roll back

    connection.set_commit_hook(count)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    waiting = [asyncio.ensure_future(commit(store, f"r{i}", creates(f"r{i}"))) for i in range(50)]
    await asyncio.sleep(0)
    other.execute("ROLLBACK")
    other.close()
    await asyncio.gather(*waiting)
    assert len(commits) <= 3
    assert len(await store.runs()) == 50


async def test_a_cancelled_commit_leaves_the_store_working(store: SQLiteEventStore) -> None:
    task = asyncio.ensure_future(commit(store, "run", creates("run")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    again = (await commit(store, "run", creates("run"))).verdicts[0]
    assert isinstance(again, port.Appended)
    assert len(await store.read("run")) == 1


# ---------------------------------------------------------------------------- threads, processes


async def test_closing_ends_the_threads_and_what_was_committed_stays(path: Path) -> None:
    store = SQLiteEventStore(path)
    await store.open()
    pending = [asyncio.ensure_future(commit(store, f"r{i}", creates(f"r{i}"))) for i in range(9)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*pending)
    assert not [t for t in threading.enumerate() if t.name.startswith("aaa-sqlite")]
    with pytest.raises(StoreUnavailable, match="is not open"):
        await commit(store, "late", creates("late"))
    await store.open()
    assert len(await store.runs()) == 9
    await store.close()
    assert not path.with_name("store.db-wal").exists()


async def test_a_store_from_before_a_fork_is_refused(
    store: SQLiteEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(StoreUnavailable, match="opened before a fork"):
        await commit(store, "run", creates("run"))
    with pytest.raises(StoreUnavailable, match="opened before a fork"):
        await store.read("run")
    monkeypatch.undo()
    await commit(store, "run", creates("run"))


async def test_the_heartbeat_renews_while_the_event_loop_is_blocked(
    store: SQLiteEventStore,
) -> None:
    clock = ManualClock()
    s = Scene(Bench(store, clock))
    await s.call()
    one = await s.take_one("w1", terms(ttl_ms=60_000))
    pulse = port.Pulse(worker="w1", apps=("app",), ttl_ms=60_000, calls={s.home: (held(one),)})
    renewer = store.renewer()
    beats: list[port.Beat] = []
    thread = threading.Thread(target=lambda: beats.append(renewer.pulse(pulse)))
    thread.start()
    thread.join(BOUND_S)  # the loop does not turn meanwhile
    renewer.close()
    assert [beat.lost_calls for beat in beats] == [()]


async def test_what_a_store_remembers_gives_way_to_what_another_has_written(
    store: SQLiteEventStore, path: Path
) -> None:
    other = SQLiteEventStore(path, synchronous="off")
    await other.open()
    await commit(store, "run", creates("run"))
    for number in range(3):
        for writer in (other, store):
            events = [note("run", ev.RUN_SUSPENDED, f"{number}.{id(writer)}")]
            append = port.Append(run_id="run", entries=tuple(map(Entry, events)))
            verdict = (await commit(writer, "run", append)).verdicts[0]
            assert isinstance(verdict, port.Appended)
            assert verdict.dups == (False,)
    assert [event.seq for event in await store.read("run")] == list(range(1, 8))
    await other.close()


async def test_no_step_of_a_run_reads_a_whole_table(store: SQLiteEventStore) -> None:
    seen: set[str] = set()

    def trace(_: object, sql: str, __: object) -> bool:
        seen.add(sql)
        return True

    writing(store).exec_trace = trace
    clock = ManualClock()
    s = Scene(Bench(store, clock))
    request = await s.call()
    term = await s.own("w1")
    await s.take("w1", term)
    await s.append(
        request.run_id, Entry(note(request.run_id, ev.TIMER_SET, "t"), port.StartTimer('"t"', 1))
    )
    one = await s.take_one("w1")
    await s.settle(one, "w1")
    end = Entry(note(request.run_id, ev.RUN_COMPLETED, "end"), port.CloseRun("completed"))
    await s.append(request.run_id, end)
    await s.one(port.Delete(run_id=request.run_id), port.Done)
    writing(store).exec_trace = None
    plans = sqlite3.connect(f"file:{store._settings.path}?mode=ro", uri=True)
    checked = 0
    for sql in sorted(seen):
        if sql.startswith(("SELECT", "UPDATE", "DELETE")):
            values = [1] * sql.count("?") if "?1" not in sql else [1]
            for *_, detail in plans.execute(f"EXPLAIN QUERY PLAN {sql}", values):
                assert "SCAN" not in detail or "CONSTANT" in detail, (sql, detail)
            checked += 1
    plans.close()
    assert checked >= 10


def _sql(path: Path, sql: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        found = connection.execute(sql).fetchall()
        connection.commit()
        return found
    finally:
        connection.close()
