"""A worker's two answers to whoever keeps its process, and when a hung loop ends it."""

from __future__ import annotations

import asyncio
import threading
import urllib.error
import urllib.request
from typing import cast

import pytest

from aaa.cli.pod import Pod
from aaa.errors import ConfigError
from aaa.runtime import Engine
from aaa.store import MemoryEventStore
from aaa.worker.health import Health
from servers.process import free_port


def ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as reply:
            return reply.status, reply.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode().strip()


class Stalled(Engine):
    """Its loop has not come round for as long as it is told."""

    lag = 0.0

    @property
    def lag_s(self) -> float:
        return self.lag


async def test_readiness_follows_the_lease_and_the_drain() -> None:
    engine, port = Engine(MemoryEventStore()), free_port()
    with Pod(health_port=port) as pod:
        pod.attach(engine)
        assert await asyncio.to_thread(ask, port, "/readyz") == (503, "starting")
        async with asyncio.timeout(20), engine:
            while await asyncio.to_thread(ask, port, "/readyz") != (200, "ok"):
                await asyncio.sleep(0.01)
            engine._heartbeat._pulsed_s -= 2 * engine._heartbeat.ttl_s
            said = (503, "the worker's lease is not held")
            assert await asyncio.to_thread(ask, port, "/readyz") == said
            assert await asyncio.to_thread(ask, port, "/healthz") == (200, "ok")
        assert await asyncio.to_thread(ask, port, "/readyz") == (503, "draining")
        assert await asyncio.to_thread(ask, port, "/healthz") == (200, "ok")


async def test_a_hung_loop_is_said_to_hang_while_it_hangs() -> None:
    engine, port = Stalled(MemoryEventStore()), free_port()
    answers: list[tuple[int, str]] = []
    with Pod(health_port=port) as pod:
        pod.attach(engine)
        engine.lag = 7.0
        probe = threading.Thread(target=lambda: answers.append(ask(port, "/healthz")))
        probe.start()
        probe.join(timeout=10)  # the loop is blocked by this test itself
    assert answers == [(503, "the event loop has hung for 7 s")]


def test_a_loop_that_does_not_tick_is_seen_from_other_threads() -> None:
    async def main() -> float:
        async with Engine(MemoryEventStore()) as engine:
            engine._heartbeat._ticked_s -= 30
            return engine.lag_s

    assert asyncio.run(main()) >= 30


def test_a_hung_worker_ends_by_itself_before_its_probe_would_have_it_ended() -> None:
    probed = Pod(health_port=0)
    try:
        for ttl_s in (1, 3, 5, 10, 15, 30, 60):
            threshold = max(3, -(-3 * ttl_s // 5) + 1)  # as the pods are rendered
            assert probed.loop_block_limit_s(ttl_s) + 1 < 5 + 5 * threshold
    finally:
        probed.__exit__(None, None, None)
    assert Pod().loop_block_limit_s(15) == 60


def test_a_pods_worker_has_a_name_of_its_own_each_time() -> None:
    pod = Pod.from_environment({"AAA_POD_NAME": "pool-1-x", "AAA_POD_UID": "u"})
    names = {cast("str", pod.worker_name()) for _ in range(2)}
    assert len(names) == 2
    assert {name.rsplit("-", 2)[0] for name in names} == {"pool-1-x"}
    assert Pod.from_environment({}).worker_name() is None


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"AAA_HEALTH_PORT": "http"}, "must be a port's number"),
        ({"AAA_HEALTH_PORT": "99999"}, "must be a port's number"),
        ({"AAA_POLICY_FOLDER": "/nowhere"}, "is not a folder"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(
    environment: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        Pod.from_environment(environment)


def test_a_port_that_is_taken_is_named() -> None:
    first = Health(0, healthy=lambda: None, ready=lambda: None)
    try:
        with pytest.raises(ConfigError, match=f"cannot listen on port {first.port}"):
            Health(first.port, healthy=lambda: None, ready=lambda: None)
    finally:
        first.close()
