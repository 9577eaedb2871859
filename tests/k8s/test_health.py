"""Liveness: a watch that delivers nothing any more is noticed, and nothing else is mistaken for it."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import aiohttp
import pytest
from starlette.responses import JSONResponse

from aaa.errors import ConfigError
from aaa_operator import names
from aaa_operator.api import ApiFailure
from aaa_operator.health import Heartbeat, health_app
from aaa_operator.main import Operator
from aaa_operator.serving import serve
from aaa_operator.settings import Settings
from k8s.fake_api import FakeApi
from k8s.scene import SETTINGS, StoppedClock


def _heartbeat(clock: StoppedClock) -> Heartbeat:
    return Heartbeat(namespace="shop", me="me", every_s=20, limit_s=60, clock=clock)


async def test_a_change_that_does_not_come_back_in_time_ends_the_process() -> None:
    api, clock = FakeApi(), StoppedClock()
    heart = _heartbeat(clock)
    for _ in range(3):
        await heart.beat(api.api())
        clock.boot += 20
    assert heart.problem() is None
    clock.boot += 1
    assert "has not come back through the watch" in (heart.problem() or "")
    heart.heard()
    assert heart.problem() is None
    assert heart.age_s == 0


async def test_while_the_api_server_takes_no_change_there_is_nothing_to_conclude() -> None:
    api, clock = FakeApi(), StoppedClock()
    heart = _heartbeat(clock)
    await heart.beat(api.api())
    heart.heard()
    for _ in range(5):
        gone = JSONResponse({"reason": "ServiceUnavailable"}, status_code=503)
        api.answers["PATCH", "ConfigMap"] = [gone]
        with pytest.raises(ApiFailure):
            await heart.beat(api.api())
        clock.boot += 20
    assert heart.problem() is None


async def test_every_beat_is_a_change_that_a_watch_must_deliver() -> None:
    api = FakeApi()
    heart = _heartbeat(StoppedClock())
    for _ in range(2):
        await heart.beat(api.api())
    told = [raw for kind, raw, _ in api.changes if kind == "ConfigMap"]
    assert len({raw["data"]["beat"] for raw in told}) == 2
    assert all(heart.is_ours("ConfigMap", raw) for raw in told)
    assert not heart.is_ours("Pod", told[0])
    other = {"metadata": {"name": names.HEARTBEAT, "namespace": "elsewhere"}}
    assert not heart.is_ours("ConfigMap", other)


async def test_the_watch_hands_the_heartbeat_to_health_and_to_no_namespace() -> None:
    operator = Operator(Settings(pools=SETTINGS, namespaces=("shop",)))
    raw = {"metadata": {"name": names.HEARTBEAT, "namespace": "shop"}, "data": {}}
    operator.heard("ConfigMap", raw, deleted=False)
    assert operator.heartbeat.age_s is not None
    assert operator.cluster.namespaces() == []


async def test_readiness_waits_for_the_watch_and_both_say_why() -> None:
    api, clock = FakeApi(), StoppedClock()
    heart = _heartbeat(clock)
    async with AsyncExitStack() as stack:
        (port,) = await serve(stack, [(0, health_app(heart))], host="127.0.0.1")
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def ask(path: str) -> tuple[int, str]:
            async with session.get(f"http://127.0.0.1:{port}{path}") as reply:
                return reply.status, await reply.text()

        assert await ask("/healthz") == (200, "ok")
        assert await ask("/readyz") == (503, "the watch has delivered nothing yet")
        await heart.beat(api.api())
        heart.heard()
        assert await ask("/readyz") == (200, "ok")
        await heart.beat(api.api())
        clock.boot += 61
        status, said = await ask("/healthz")
        assert status == 503
        assert "61 s ago" in said


async def test_the_process_serves_its_three_ports_as_long_as_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(
        "current-context: c\nclusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "contexts: [{name: c, context: {cluster: k, user: u}}]\nusers: [{name: u, user: {}}]\n"
    )
    monkeypatch.setenv("KUBECONFIG", str(config))
    read, health, metrics = _free_ports(3)
    settings = Settings(
        pools=SETTINGS, read_port=read, health_port=health, metrics_port=metrics, namespaces=("a",)
    )
    operator = Operator(settings)
    await operator.start()
    try:
        text = ""
        async with aiohttp.ClientSession() as session:
            for port, path, status in (
                (read, "/v1/namespaces/a/runs", 403),
                (read, "/metrics", 404),
                (health, "/healthz", 200),
                (health, "/readyz", 503),
                (metrics, "/metrics", 200),
            ):
                async with session.get(f"http://127.0.0.1:{port}{path}") as reply:
                    assert (port, path, reply.status) == (port, path, status)
                    text = await reply.text()
            assert "aaa_operator_leader 0.0" in text
            assert "aaa_operator_watch_age_seconds -1.0" in text
    finally:
        await operator.stop()
    for port in (read, health, metrics):
        with socket.create_server(("127.0.0.1", port)):
            pass


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in found]


@pytest.mark.parametrize(
    ("namespaces", "lease", "wanted"),
    [
        ((), "", "default"),
        ((), "aaa", "aaa"),
        (("shop", "aaa"), "aaa", "aaa"),
        (("shop",), "aaa", "shop"),
    ],
)
def test_the_heartbeat_is_in_a_namespace_that_is_watched(
    namespaces: tuple[str, ...], lease: str, wanted: str
) -> None:
    settings = Settings(pools=SETTINGS, namespaces=namespaces, lease_namespace=lease)
    assert settings.heartbeat_namespace == wanted


def test_ports_come_from_the_environment_and_differ() -> None:
    environment = {"AAA_OPERATOR_IMAGE": "i", "AAA_OPERATOR_READ_PORT": "8181"}
    settings = Settings.from_environment(environment)
    ports = (settings.read_port, settings.health_port, settings.metrics_port)
    assert ports == (8181, 8081, 9090)
    with pytest.raises(ConfigError, match="three different ports"):
        Settings.from_environment({**environment, "AAA_OPERATOR_HEALTH_PORT": "8181"})
