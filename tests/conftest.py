"""Fixtures that every test may ask for: real servers, started when the first test needs them.

``*_server`` is the session's server, to be killed, paused and restarted by the test that asks for
it; put it back as it was. ``*_url`` is an address with nothing stored behind it; it honours
``AAA_TEST_REDIS_URL`` and ``AAA_TEST_POSTGRES_URL``, whose data the tests delete.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

from servers import PostgresServer, RedisCluster, RedisServer, ReplicaPair


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[RedisServer]:
    with RedisServer(flavour="valkey") as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def replica_pair() -> Iterator[ReplicaPair]:
    """A pair of its own for each test: a failover is not undone."""
    with ReplicaPair() as pair:
        yield pair


@pytest.fixture
def redis_url(request: pytest.FixtureRequest) -> str:
    """An empty Redis. One that was named from outside is emptied one database a test process."""
    named = os.environ.get("AAA_TEST_REDIS_URL")
    if named:
        return _emptied(named, worker=_worker_number())
    server: RedisServer = request.getfixturevalue("redis_server")
    server.start().reset()
    return server.url


@pytest.fixture
def valkey_url(valkey_server: RedisServer) -> str:
    """An empty Valkey."""
    valkey_server.start().reset()
    return valkey_server.url


@pytest.fixture
def redis_cluster_url(redis_cluster: RedisCluster) -> str:
    """An empty Redis Cluster of three masters; the address is its first node's."""
    redis_cluster.start().reset()
    return redis_cluster.url


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of its own in Postgres, dropped after the test."""
    named = os.environ.get("AAA_TEST_POSTGRES_URL")
    if named:
        yield from _database_at(named)
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = server.start().create_database()
    yield server.url_of(name)
    if server.running:
        server.resume()
        server.drop_database(name)


def _worker_number() -> int:
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def _emptied(url: str, *, worker: int) -> str:
    own = urlsplit(url)._replace(path=f"/{worker}").geturl()
    with redis.Redis.from_url(own, socket_timeout=5, socket_connect_timeout=5) as client:
        client.flushdb()
    return own


def _database_at(url: str) -> Iterator[str]:
    name = f"aaa_test_{uuid.uuid4().hex}"
    with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("guarantees")
    group.addoption("--guarantee", metavar="ID", help="only tests that show this statement")
    group.addoption(
        "--list-guarantees", action="store_true", help="print which statements have tests"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose by the ids of docs/guarantees.md; stores that are not in this process are left out."""
    wanted = config.getoption("--guarantee")
    if config.getoption("--list-guarantees"):
        shown = {id_ for item in items for id_ in _shows(item)}
        print("\n".join(f"guarantee {id_}" for id_ in sorted(shown)))
    if wanted:
        chosen = [item for item in items if wanted in _shows(item) and _in_process(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


def _shows(item: pytest.Item) -> set[str]:
    return {id_ for mark in item.iter_markers("guarantee") for id_ in mark.args}


def _in_process(item: pytest.Item) -> bool:
    backend = (
        item.callspec.params.get("backend")
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else None
    )
    return backend in (None, "memory")
