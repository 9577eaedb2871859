"""``aaa worker`` as a pod runs it: policies that change under it, probes, a URL in a file."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aaa import events as ev
from aaa.client import Client, acl_rule, catalogue_of, open_client
from aaa.policy import PolicyLayers, ToolEntry, ToolPolicyRules
from cli.desk import APP, Desk, read_until
from servers import RedisServer
from servers.process import free_port

ENOUGH_S = 60.0


def layers(**settings: object) -> PolicyLayers:
    entry = ToolEntry(name="blast", settings=settings)
    return PolicyLayers(policies=[ToolPolicyRules(name="p", tools=[entry])])


OLD, NEW = layers(max_attempts=2), layers(delivery="at_most_once")
BAD = layers(enabled=False)


class Mount:
    """A folder as the kubelet keeps one: files are links through ``..data``, swapped at once."""

    def __init__(self, path: Path) -> None:
        self.path, self._count = path, 0
        path.mkdir()

    def write(self, *policies: PolicyLayers, **more: str) -> None:
        self._count += 1
        data = self.path / f"..{self._count}"
        data.mkdir()
        files = {f"{one.hash}.json": json.dumps(one.to_json()) for one in policies} | more
        for name, text in files.items():
            (data / name).write_text(text)
        (self.path / "..new").symlink_to(data.name)
        (self.path / "..new").rename(self.path / "..data")
        for name in {path.name for path in self.path.iterdir()} ^ set(files):
            if name in files:
                (self.path / name).symlink_to(f"..data/{name}")
            elif not name.startswith(".."):
                (self.path / name).unlink()


class Pod:
    """A worker's process with what a pod would give it."""

    def __init__(self, desk: Desk, url: str) -> None:
        self.desk, self.url, self.port = desk, url, free_port()
        (desk.folder / "pod_agent.py").write_text((APP / "pod_agent.py").read_text())
        self.policies = Mount(desk.folder / "policies")
        self.secret = desk.folder / "url"
        self.secret.write_text(url + "\n")
        desk.env |= {
            "AAA_STORE_FILE": str(self.secret),
            "AAA_POLICY_FOLDER": str(self.policies.path),
            "AAA_HEALTH_PORT": str(self.port),
            "AAA_POD_NAME": "pool-abc-x1",
            "AAA_POD_UID": "uid-1",
        }
        self.app = ""

    def start(self) -> subprocess.Popen[str]:
        worker = self.desk.start(
            *("worker", "--app", "pod_agent:app", "--scope", "pool-abc", "--log-format", "json"),
            *("--worker-ttl-s", "3"),
        )
        seen = read_until(worker, "serves pool-abc/")
        self.app = re.findall(r"serves (pool-abc/\S+)", seen)[-1]
        return worker

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as reply:
                return reply.status, reply.read().decode().strip()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode().strip()


@pytest.fixture(params=["sqlite", "redis"])
def pod(desk: Desk, request: pytest.FixtureRequest) -> Pod:
    if request.param == "sqlite":
        return Pod(desk, f"sqlite:///{desk.folder}/runs.db")
    return Pod(desk, request.getfixturevalue("redis_url"))


@pytest.fixture
def ended() -> Iterator[Callable[[subprocess.Popen[str]], subprocess.Popen[str]]]:
    """Sees to it that no worker outlives its test."""
    started: list[subprocess.Popen[str]] = []

    def remember(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        started.append(process)
        return process

    yield remember
    for process in started:
        process.kill()
        process.communicate(timeout=ENOUGH_S)


async def until(ask: Callable[[], Any]) -> Any:
    """The first answer that is one, within the bound."""
    async with asyncio.timeout(ENOUGH_S):
        while not (found := await ask()):
            await asyncio.sleep(0.02)
    return found


async def newest(client: Client, run_id: str, type_: str, count: int = 1) -> Any:
    async def look() -> Any:
        found = [event for event in await client.store.read(run_id) if event.type == type_]
        return found[-1] if len(found) >= count else None

    return await until(look)


Ended = Callable[[subprocess.Popen[str]], subprocess.Popen[str]]


@pytest.mark.guarantee("G22")
async def test_a_policy_that_changes_in_the_folder_holds_from_the_next_call_on(
    pod: Pod, ended: Ended
) -> None:
    pod.policies.write(OLD)
    worker = ended(await asyncio.to_thread(pod.start))
    client, _ = await open_client(pod.url)
    try:
        await client.submit(pod.app, {"task": "blast blast"}, run_id="r", policy=OLD.hash)
        asked = await newest(client, "r", ev.APPROVAL_REQUESTED)
        await client.approve("r", asked.data["call_id"], by="me")
        asked = await newest(client, "r", ev.APPROVAL_REQUESTED, 2)
        await client.require_policy("r", NEW.hash)
        await client.approve("r", asked.data["call_id"], by="me")
        pod.policies.write(OLD, NEW)

        async def acknowledged() -> bool:
            (member,) = (await client.members()).members
            said = catalogue_of(member)
            assert member.worker.rsplit("-", 2)[0] == "pool-abc-x1"
            assert (said.pod_uid, [each.name for each in said.tools]) == (
                "uid-1",
                ["work", "blast"],
            )
            return said.policies == {OLD.hash, NEW.hash}

        await until(acknowledged)
        await newest(client, "r", ev.RUN_COMPLETED)
        started = [e for e in await client.store.read("r") if e.type == ev.TOOL_STARTED]
        assert [event.data["policy"] for event in started] == [OLD.hash, NEW.hash]
        assert len({event.data["worker"] for event in started}) == 1
        assert await asyncio.to_thread(pod.ask, "/readyz") == (200, "ok")
        assert await asyncio.to_thread(pod.ask, "/healthz") == (200, "ok")
        assert (await asyncio.to_thread(pod.ask, "/"))[0] == 404
        worker.send_signal(signal.SIGTERM)
        out, _err = await asyncio.to_thread(worker.communicate, timeout=ENOUGH_S)
        assert worker.returncode == 0, out
        assert (await client.members()).members == ()
    finally:
        await client.close()


async def test_a_policy_that_cannot_be_read_or_does_not_fit_is_refused_by_name(
    pod: Pod, ended: Ended
) -> None:
    half = json.dumps(NEW.to_json())[:20]
    pod.policies.write(OLD, BAD, **{f"{NEW.hash}.json": half, "notes.json": "{}"})
    ended(await asyncio.to_thread(pod.start))
    client, _ = await open_client(pod.url)
    try:

        async def said() -> Any:
            members = (await client.members()).members
            return catalogue_of(members[0]) if members else None

        first = await until(said)
        assert first.policies == {OLD.hash}
        assert set(first.refused) == {BAD.hash, NEW.hash, "notes.json"}
        assert f"policy file {NEW.hash}.json is not JSON" in first.refused[NEW.hash]
        assert "enabled=False cannot be combined with requires_approval" in first.refused[BAD.hash]
        await client.submit(pod.app, {"task": "blast"}, run_id="r", policy=NEW.hash)
        pod.policies.write(OLD, NEW)
        await newest(client, "r", ev.APPROVAL_REQUESTED)
        second = await said()
        assert (second.policies, second.refused) == ({OLD.hash, NEW.hash}, {})
        (pod.policies.path / f"{OLD.hash}.json").unlink()
        (pod.policies.path / f"{OLD.hash}.json").write_text("edited")
        await until(lambda: _is_refused(said, OLD.hash))
        await client.submit(pod.app, {"task": "blast"}, run_id="old", policy=OLD.hash)
        await newest(client, "old", ev.APPROVAL_REQUESTED)  # what was read under that name holds
    finally:
        await client.close()


async def _is_refused(said: Callable[[], Any], policy: str) -> bool:
    return policy in (await said()).refused


async def test_an_outcome_outlives_a_password_that_is_rotated_under_the_worker(
    desk: Desk, redis_server: RedisServer, ended: Ended
) -> None:
    redis_server.start().reset()
    redis_url = redis_server.url
    with redis_server.client() as admin:
        rule = acl_rule("aaa:", owner=True)
        admin.execute_command("ACL", "SETUSER", "tenant", "on", ">first", *rule)
        try:
            pod = Pod(desk, redis_url.replace("//", "//tenant:first@"))
            pod.policies.write(OLD)
            worker = ended(await asyncio.to_thread(pod.start))
            client, _ = await open_client(redis_url)
            await client.submit(pod.app, {"task": "work"}, run_id="r", policy=OLD.hash)
            await newest(client, "r", ev.TOOL_STARTED)
            admin.execute_command("ACL", "SETUSER", "tenant", "resetpass", ">second")
            admin.execute_command("CLIENT", "KILL", "USER", "tenant")
            (desk.folder / "go").touch()
            await asyncio.to_thread(
                read_until, worker, "store unavailable, will try again", "refuses the user name"
            )
            other = pod.secret.with_suffix(".new")
            other.write_text(redis_url.replace("//", "//tenant:second@"))
            other.rename(pod.secret)
            await newest(client, "r", ev.RUN_COMPLETED)
            assert desk.effects() == ["work"]
            await client.close()
        finally:
            admin.execute_command("ACL", "DELUSER", "tenant")


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "cannot be read"), ("", "must hold one store URL"), ("nothing", "does not begin")],
)
def test_a_file_without_a_stores_address_is_a_setting_to_mend(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, text: str | None, says: str
) -> None:
    file = desk.folder / "url"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("AAA_STORE_FILE", str(file))
    done = desk.aaa("worker", "--app", "shop_agent:app")
    assert done.code == 2, done
    assert says in done.err


def test_sigterm_before_anything_has_begun_ends_the_process(desk: Desk, ended: Ended) -> None:
    os.mkfifo(desk.folder / "slow")
    (desk.folder / "slow_agent.py").write_text("open('slow').read()\n")
    worker = ended(desk.start("worker", "--app", "slow_agent:app"))
    with (desk.folder / "slow").open("w"):  # opened by both: the app is being imported
        worker.send_signal(signal.SIGTERM)
        worker.wait(timeout=ENOUGH_S)
    assert worker.returncode == 0
