"""The test servers themselves: what the conformance and crash tests take for granted of them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from servers import PostgresServer, RedisCluster, RedisServer, ReplicaPair
from servers.process import wait_until


@pytest.fixture(params=["redis_server", "valkey_server"])
def server(request: pytest.FixtureRequest) -> RedisServer:
    found: RedisServer = request.getfixturevalue(request.param)
    found.start().reset()
    return found


def test_an_acknowledged_write_survives_a_killed_redis_on_the_same_address(
    server: RedisServer,
) -> None:
    url = server.url
    with server.client() as client:
        assert client.set("refund", "A-100")
    server.kill()
    assert not server.running
    server.start()
    assert server.url == url
    with server.client() as client:
        assert client.get("refund") == b"A-100"


def test_a_paused_redis_answers_nothing_until_it_is_resumed(server: RedisServer) -> None:
    with server.client(socket_timeout=0.2, retry=None) as client:
        client.ping()
        server.pause()
        try:
            with pytest.raises(redis.TimeoutError):
                client.ping()
        finally:
            server.resume()
    with server.client() as client:
        assert client.ping()


def test_redis_runs_server_side_functions_and_forgets_them_when_reset(server: RedisServer) -> None:
    with server.client() as client:
        client.function_load(
            "#!lua name=t\nredis.register_function('one', function() return 1 end)"
        )
        assert client.fcall("one", 0) == 1
        server.reset()
        assert client.function_list() == []


def test_each_redis_test_has_an_empty_database(redis_url: str, valkey_url: str) -> None:
    for url in (redis_url, valkey_url):
        with redis.Redis.from_url(url) as client:
            assert client.dbsize() == 0
            client.set("left", "behind")


def test_redis_keeps_every_acknowledged_write_unless_asked_otherwise() -> None:
    with RedisServer() as durable, RedisServer(fsync="off") as careless:
        with durable.client() as client:
            assert client.config_get("append*")["appendfsync"] == "always"
            assert client.config_get("appendonly") == {"appendonly": "yes"}
        with careless.client() as client:
            assert client.config_get("appendonly") == {"appendonly": "no"}
            client.set("refund", "A-100")
        careless.kill()
        with careless.start().client() as client:
            assert client.get("refund") is None


def test_a_cluster_spreads_keys_over_three_masters_and_comes_back_after_a_kill(
    redis_cluster: RedisCluster, redis_cluster_url: str
) -> None:
    client = redis_cluster.client()
    for partition in range(64):
        client.set(f"{{p{partition}}}:run", partition)
    kept = [node.client().dbsize() for node in redis_cluster.nodes]
    assert sum(kept) == 64
    assert all(kept)
    redis_cluster.nodes[1].kill()
    redis_cluster.start()
    client = redis_cluster.client()
    assert [client.get(f"{{p{n}}}:run") for n in range(64)] == [b"%d" % n for n in range(64)]
    assert redis_cluster.url == redis_cluster_url


def test_a_failover_loses_what_the_replica_had_not_received(replica_pair: ReplicaPair) -> None:
    with replica_pair.primary.client() as client:
        client.set("copied", 1)
        assert client.wait(1, 5_000) == 1
        replica_pair.replica.pause()
        client.set("lost", 1)
    old = replica_pair.primary
    old.kill()
    replica_pair.replica.resume()
    replica_pair.failover()
    assert replica_pair.url != old.url
    with replica_pair.primary.client() as client:
        assert client.get("copied") == b"1"
        client.set("new", 1)


def test_a_committed_row_survives_a_killed_postgres_on_the_same_address(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE refunds (id text)")
        connection.execute("INSERT INTO refunds VALUES ('A-100')")
    postgres_server.kill()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(postgres_url, connect_timeout=2)
    postgres_server.start()
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT id FROM refunds").fetchall() == [("A-100",)]


def test_a_paused_postgres_stops_open_sessions_too(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        backend = psutil.Process(connection.info.backend_pid)
        postgres_server.pause()
        try:
            assert wait_until(lambda: backend.status() == psutil.STATUS_STOPPED, timeout_s=5)
        finally:
            postgres_server.resume()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_postgres_never_runs_as_root(postgres_server: PostgresServer) -> None:
    assert psutil.Process(postgres_server.start().pid).uids().real != 0


def test_each_postgres_test_has_an_empty_database(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        tables = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
        assert tables.fetchone() == (0,)


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's own")
def test_servers_end_with_a_killed_test_process() -> None:
    program = (
        "from servers import PostgresServer, RedisServer\n"
        "servers = RedisServer().start(), PostgresServer().start()\n"
        "print(*(f'{server.pid} {server.home}' for server in servers), flush=True)\n"
        "import signal; signal.pause()\n"
    )
    tests = Path(__file__).parents[1]
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tests)},
    )
    assert child.stdout is not None
    words = child.stdout.readline().split()
    servers = [psutil.Process(int(pid)) for pid in words[::2]]
    assert len(servers) == 2
    child.send_signal(signal.SIGKILL)
    child.wait(10)
    _, alive = psutil.wait_procs(servers, timeout=10)
    for process in alive:
        process.kill()
    assert alive == []
    for home in words[1::2]:  # a killed process cannot clean up
        shutil.rmtree(home)
