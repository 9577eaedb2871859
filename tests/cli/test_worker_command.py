"""``aaa worker``: serves until SIGTERM, and ends for good when it has become useless."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from aaa.app import App, load_app
from aaa.client import Client
from aaa.runtime import Engine
from aaa.runtime.submission import new_run
from aaa.store import open_store
from cli.desk import Desk, read_until

ENOUGH_S = 60.0


@pytest.fixture
def app(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setattr(sys, "path", [str(desk.folder), *sys.path])
    monkeypatch.delitem(sys.modules, "shop_agent", raising=False)
    return load_app("shop_agent:app", folder=desk.folder)


async def submit(store: Path, app: App, run_id: str, task: str) -> None:
    """Begin a run from a process that does not serve it."""
    engine = Engine(f"sqlite:///{store}")
    name = app.own().attach(engine)
    await engine.store.open()
    create = new_run(run_id, name, app.algorithm, {"task": task})
    from aaa.ids import partition_of

    await engine.store.commit(partition_of(run_id, engine.store.partitions), [create])
    await engine.store.close()


async def ending(store: Path, run_id: str) -> Any:
    """The run's result, once a worker has brought it there."""
    opened = open_store(f"sqlite:///{store}")
    await opened.open()
    changed = asyncio.Event()
    opened.on_wake(lambda _: changed.set())
    try:
        async with asyncio.timeout(ENOUGH_S):
            while (state := await Client(opened).state(run_id)).ending is None:
                await asyncio.wait({asyncio.ensure_future(changed.wait())}, timeout=0.1)
                changed.clear()
        return state.ending.data
    finally:
        await opened.close()


def test_a_worker_serves_runs_and_sigterm_drains_it(desk: Desk, app: App) -> None:
    store = desk.folder / "runs.db"
    asyncio.run(submit(store, app, "dig", "look look"))
    worker = desk.start(
        "worker", "--app", "shop_agent:app", "--store", "sqlite:///runs.db", "--name", "w-1"
    )
    read_until(worker, "worker w-1 serves local/aaa.tool_loop@1/")
    assert asyncio.run(ending(store, "dig"))["value"] == {"text": "done: seen it"}
    worker.send_signal(signal.SIGTERM)
    out, _ = worker.communicate(timeout=ENOUGH_S)
    assert worker.returncode == 0, out
    assert "drained" in out
    assert desk.aaa("show", "dig", "--store", "sqlite:///runs.db").code == 0


def test_a_second_sigterm_ends_a_draining_worker_at_once(desk: Desk, app: App) -> None:
    asyncio.run(submit(desk.folder / "runs.db", app, "dig", "hang"))
    worker = desk.start(
        *("worker", "--app", "shop_agent:app", "--store", "sqlite:///runs.db"),
        *("--drain-timeout-s", "3600", "--log-format", "json"),
    )
    follow = desk.start("events", "dig", "--follow", "--store", "sqlite:///runs.db")
    read_until(follow, "attempt 1 started")
    follow.kill()
    follow.communicate()
    worker.send_signal(signal.SIGTERM)
    seen = read_until(worker, "claiming nothing more")
    assert {"time", "level", "logger", "message"} <= set(json.loads(seen.splitlines()[-1]))
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=ENOUGH_S)
    assert worker.returncode == 130


def test_a_tool_that_cannot_be_stopped_has_its_worker_replaced(desk: Desk, app: App) -> None:
    asyncio.run(submit(desk.folder / "runs.db", app, "dig", "stuck"))
    worker = desk.start("worker", "--app", "shop_agent:app", "--store", "sqlite:///runs.db")
    out, _ = worker.communicate(timeout=ENOUGH_S)
    assert worker.returncode == 70, out
    assert "tool stuck could not be stopped" in out


POLICY = """---
apiVersion: aaa.dev/v1alpha1
kind: ToolPolicy
metadata:
  name: digging
spec:
  selector:
    matchLabels:
      team: {team}
  tools:
  - name: look
    requiresApproval: true
"""


def test_only_a_worker_with_a_runs_policies_takes_it_over(desk: Desk) -> None:
    other = POLICY.format(team="flying").replace("name: digging", "name: flying")
    file = desk.manifest("hang look", more=POLICY.format(team="digging") + other)
    process = desk.start("run", file)
    read_until(process, "hang c3-0", "attempt 1 started")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (desk.folder / "go").touch()
    assert (
        "aaa worker --app MODULE:ATTRIBUTE --scope run.dig --policy FILE"
        in desk.aaa("show", "dig").out
    )
    worker = ("worker", "--app", "shop_agent:app", "--scope", "run.dig", "--name")
    bare = desk.start(*worker, "bare")
    read_until(bare, "worker bare serves run.dig/")
    bound = desk.start(*worker, "bound", "--policy", file)
    read_until(bound, "worker bound serves run.dig+")
    follow = desk.start("events", "dig", "--follow")
    read_until(follow, "waits for approval")
    for each in (follow, bound, bare):
        each.terminate()
        each.communicate(timeout=ENOUGH_S)
    started = [e for e in desk.aaa("events", "dig", "--json").lines() if e["type"].endswith("rted")]
    assert [event["data"]["worker"] for event in started][1:] == ["bound"]
    assert desk.effects() == ["hang", "hang"]
    assert desk.aaa("run", file).code == 4


def test_a_scope_that_names_other_policies_than_its_files_is_refused(desk: Desk) -> None:
    desk.manifest("look", more=POLICY.format(team="digging"))
    done = desk.aaa("worker", "--app", "shop_agent:app", "--scope", "run.dig+0123456789ab")
    assert done.code == 2, done
    assert "names the policies 0123456789ab, and those of --policy are none" in done.err


def test_a_run_does_not_go_on_under_other_policies(desk: Desk) -> None:
    policy = POLICY.format(team="digging")
    file = desk.manifest("look", more=policy)
    assert desk.aaa("run", file).code == 4
    for more in ("", policy.replace("requiresApproval: true", "maxAttempts: 2")):
        desk.manifest("look", more=more)
        other = desk.aaa("run", file)
        assert other.code == 2, other
        assert "was begun under other policies than dig.yaml has for it now" in other.err
        assert "put those back, or 'aaa cancel dig'" in other.err
    assert desk.effects() == []
    desk.manifest("look", more=policy)
    assert desk.aaa("run", file).code == 4


@pytest.mark.parametrize("word", ["requiresApproval: true", "delivery: AtMostOnce"])
def test_a_protection_that_matches_no_tool_is_refused_before_anything_starts(
    desk: Desk, word: str
) -> None:
    policy = POLICY.format(team="digging").replace("name: look", "name: lok")
    file = desk.manifest("look", more=policy.replace("requiresApproval: true", word))
    sentence = (
        "policy digging protects lok, and shop_agent:app has no such tool; did you mean 'look'?"
    )
    for command in (["run", file], ["worker", "--app", "shop_agent:app", "--policy", file]):
        done = desk.aaa(*command)
        assert done.code == 2, done
        assert sentence in done.err
    assert desk.effects() == []
