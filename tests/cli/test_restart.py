"""A run that waits for a person survives a restart of everything, its store included."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from cli.desk import Desk, read_until
from servers import PostgresServer, RedisServer

Restart = Callable[[], object]


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def store(request: pytest.FixtureRequest, desk: Desk) -> tuple[str, Restart]:
    """A store's address, and what kills its server and starts it again."""
    if request.param == "sqlite":
        return f"sqlite:///{desk.folder}/kept.db", lambda: None
    if request.param == "redis":
        redis: RedisServer = request.getfixturevalue("redis_server")
        redis.start().reset()
        return redis.url, lambda: killed_and_started(redis)
    postgres: PostgresServer = request.getfixturevalue("postgres_server")
    url = postgres.start().url_of(postgres.create_database())
    return url, lambda: killed_and_started(postgres)


def killed_and_started(server: RedisServer | PostgresServer) -> None:
    """As after a power cut."""
    server.kill()
    server.start()


@pytest.mark.guarantee("G19")
def test_an_approval_is_given_after_everything_was_killed_and_started_again(
    desk: Desk, store: tuple[str, Restart]
) -> None:
    url, restart = store
    file = desk.manifest("blast")
    process = desk.start("run", file, "--store", url, "--wait")
    read_until(process, "aaa reject dig")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    restart()

    again = desk.start("run", file, "--store", url, "--wait")
    (view,) = desk.aaa("pending", "--store", url, "--json").lines()
    wrong = desk.aaa("approve", "dig", "c3-0", "--digest", "0" * 32, "--store", url)
    assert (wrong.code, desk.effects()) == (2, [])
    assert "is for other arguments" in wrong.err
    digest = view["args_digest"]
    assert desk.aaa("approve", "dig", "c3-0", "--digest", digest, "--store", url).code == 0
    out, _ = again.communicate(timeout=60)
    assert (again.returncode, out.splitlines()[-1]) == (0, "done: blasted 1")
    assert desk.effects() == ["blast"]
