"""``doctor``, ``policy explain``, ``runs``, ``delete``: looking after a store and its policies."""

from __future__ import annotations

import asyncio
import re

import pytest

from aaa.cli.stores import tail
from aaa.store import open_store
from aaa.store.port import Claim, Offer
from cli.desk import Desk

POLICY = """---
apiVersion: aaa.dev/v1alpha1
kind: ToolPolicy
metadata:
  name: digging
spec:
  selector: {}
  defaults:
    maxAttempts: 2
  tools:
  - name: blast
    requiresApproval: false
  - name: blasst
    timeoutSeconds: 3
"""


async def have_seen_more(url: str) -> None:
    """As a worker does that has seen writes which the store no longer holds."""
    store = open_store(url)
    await store.open()
    offer = Offer(worker="w", nonce="n", limit=0, queues={})
    await store.commit(3, [Claim(app="local", offer=offer)], seen=1_000_000)
    await store.close()


def test_a_store_that_went_back_in_time_is_named_until_its_loss_is_accepted(desk: Desk) -> None:
    assert desk.aaa("run", desk.manifest("look")).code == 0
    assert desk.aaa("doctor").code == 0
    asyncio.run(have_seen_more(f"sqlite:///{desk.folder}/.aaa/aaa.db"))
    behind = desk.aaa("doctor")
    assert behind.code == 3, behind
    assert "gone back in time in 1 partition" in behind.out
    assert "keep everything" not in behind.out
    accepted = desk.aaa("doctor", "--accept-loss", "--by", "ann")
    assert accepted.code == 0, accepted
    assert "loss accepted: 0 calls became OutcomeUnknown" in accepted.out
    assert desk.aaa("doctor", "--json").lines()[0]["behind"] == []


def test_strict_refuses_settings_that_lose_data(desk: Desk) -> None:
    url = "sqlite:///runs.db?synchronous=off"
    assert desk.aaa("run", desk.manifest("look"), "--store", url).code == 0
    assert desk.aaa("doctor", "--store", url).code == 0
    strict = desk.aaa("doctor", "--store", url, "--strict")
    assert strict.code == 3, strict
    assert "warning: " in strict.out
    worker = desk.aaa("worker", "--app", "shop_agent:app", "--store", url, "--strict")
    assert worker.code == 3
    assert "refused by --strict" in worker.err


def test_a_run_on_redis_is_followed_and_shown(desk: Desk, redis_url: str) -> None:
    done = desk.aaa("run", desk.manifest("look"), "--store", redis_url)
    assert done.code == 0, done
    assert "nothing is broken" in desk.aaa("check", "dig", "--store", redis_url).out


def test_the_origin_of_each_setting_is_shown_and_a_misspelt_tool_named(desk: Desk) -> None:
    file = desk.manifest("look", more=POLICY)
    told = desk.aaa("policy", "explain", file, "--tool", "blast")
    assert told.code == 0, told
    rows = {line.split()[0]: line.split()[1:] for line in told.out.splitlines() if line[:2] == "  "}
    assert rows["requires_approval"] == ["no", "policy", "digging", "entry", "'blast'"]
    assert rows["max_attempts"] == ["2", "policy", "digging", "defaults"]
    assert rows["timeout_s"] == ["none", "built-in"]
    assert "0.333333 (lease_ttl_s / 3)" in told.out
    assert rows["idempotency_key"] == ["<run", "id>/<call", "id>", "built-in"]
    assert "policy digging: no tool matches blasst" in told.out
    assert "blasst" in desk.aaa("run", file).err
    (machine,) = desk.aaa("policy", "explain", file, "--json").lines()
    assert machine["tools"]["blast"]["origins"]["max_attempts"] == "policy digging defaults"


def test_what_nobody_has_said_comes_from_no_handler(desk: Desk) -> None:
    agent = desk.folder / "shop_agent.py"
    agent.write_text(agent.read_text().replace("registry, guard=guard,", "registry,"))
    told = desk.aaa("policy", "explain", desk.manifest("look"), "--tool", "look")
    assert "handler" not in told.out, told
    assert "built-in" in told.out


def test_a_deleted_run_is_gone_and_its_id_stays_taken(desk: Desk) -> None:
    file = desk.manifest("blast")
    assert desk.aaa("run", file).code == 4
    early = desk.aaa("delete", "dig")
    assert (early.code, "has not ended; cancel it first" in early.err) == (2, True)
    assert desk.aaa("delete", "dig", "--force").code == 0
    assert desk.aaa("show", "dig").code == 2
    again = desk.aaa("run", file)
    assert (again.code, "its id stays taken" in again.err) == (2, True)


def test_runs_are_listed_by_status(desk: Desk) -> None:
    assert desk.aaa("run", desk.manifest("look", name="one")).code == 0
    assert desk.aaa("run", desk.manifest("blast", name="two")).code == 4
    assert [told["run_id"] for told in desk.aaa("runs", "--json").lines()] == ["two", "one"]
    assert [
        told["run_id"] for told in desk.aaa("runs", "--status", "waiting", "--json").lines()
    ] == ["two"]
    assert "waiting for approval" in desk.aaa("runs").out


def test_commands_to_type_name_the_store_unless_it_is_found_anyway(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, url = desk.manifest("blast"), "sqlite:///runs.db"
    waiting = desk.aaa("run", file, "--store", url)
    assert f"--reason '…' --store {url}\n" in waiting.out
    assert f"go on with: aaa run {file} --store {url}\n" in waiting.err
    assert f" --store {url}\n" in desk.aaa("pending", "--store", url).out
    monkeypatch.setenv("AAA_STORE", url)
    assert "--store" not in desk.aaa("pending").out


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://me@db/0", "redis://me@db/0"),
        ("redis://me:s@cret@db/0", "'redis://me:***@db/0'  (your --store)"),
        ("redis://:secret@db/0", "'redis://:***@db/0'  (your --store)"),
        ("rediss+sentinel://a:secret@b,c/0", "'rediss+sentinel://a:***@b,c/0'  (your --store)"),
        (
            "postgres://db/x?password=secret&a=1",
            "'postgres://db/x?password=***&a=1'  (your --store)",
        ),
    ],
)
def test_commands_to_type_keep_the_store_and_hide_its_password(given: str, shown: str) -> None:
    assert tail(given) == f" --store {shown}"


@pytest.mark.parametrize(
    ("lasts", "words", "status"),
    [
        ("0.001s", "expired; it is asked for again", "approval expired"),
        ("1h", "waits for a worker", "approved"),
    ],
)
def test_an_approval_that_nobody_has_used_is_shown(
    desk: Desk, lasts: str, words: str, status: str
) -> None:
    file = desk.manifest("blast")
    assert desk.aaa("run", file).code == 4
    assert desk.aaa("approve", "dig", "c3-0", "--by", "ann", "--for", lasts).code == 0
    for done in (desk.aaa("pending"), desk.aaa("show", "dig")):
        assert re.search(
            rf"call c3-0 of dig is approved by ann until .*{words}", done.out + done.err
        )
    assert status in desk.aaa("runs").out
    again = desk.aaa("run", file)
    assert again.code == (4 if lasts != "1h" else 0), again
    assert "approved by ann until" not in desk.aaa("pending").err


@pytest.mark.parametrize("command", [["runs"], ["show", "dig"], ["pending"], ["doctor"]])
def test_looking_makes_no_store(desk: Desk, command: list[str]) -> None:
    before = sorted(desk.folder.iterdir())
    for store in (
        [],
        ["--store", "sqlite:///none.db"],
        ["--store", "sqlite:///.aaa/none.db?partitions=4"],
    ):
        assert desk.aaa(*command, *store).code == 2
    assert sorted(desk.folder.iterdir()) == before
