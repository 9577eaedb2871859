"""Opening: what is refused, in one sentence, and what the store says about its server."""

from __future__ import annotations

import asyncio
import re

import psycopg
import pytest

from aaa.errors import ConfigError, StoreMismatch, StoreTooNew, StoreUnavailable
from aaa.events import run_requested
from aaa.ids import partition_of
from aaa.store.port import Create, Entry
from aaa.store.postgres import PostgresEventStore
from aaa.store.postgres.server import shares_sessions
from postgres.lines import transaction_pooler
from servers import PostgresServer
from servers.process import free_port


async def opened(url: str) -> PostgresEventStore:
    store = PostgresEventStore.from_url(url)
    await store.open()
    return store


async def open_and_close(url: str) -> None:
    store = await opened(url)
    await store.close()


async def execute(url: str, statement: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as admin:
        await admin.execute(statement.encode())


def named(server: PostgresServer, url: str, *, user: str) -> str:
    return url.replace("postgres@", f"{user}@")


@pytest.mark.guarantee("G23")
async def test_the_same_data_has_the_same_identity_and_another_schema_another(
    postgres_url: str,
) -> None:
    stores = [
        PostgresEventStore.from_url(postgres_url + query)
        for query in ("", "?schema=aaa", "?schema=other&partitions=8")
    ]
    infos = await asyncio.gather(*(store.open() for store in stores))
    assert infos[0].identity == infos[1].identity != infos[2].identity
    assert [info.partitions for info in infos] == [64, 64, 8]
    assert re.fullmatch(r"PostgreSQL \d+\..*", infos[0].server)
    assert infos[0].warnings == ()
    for store in stores:
        await store.close()


async def test_a_store_of_a_newer_version_opens_if_it_still_serves_old_readers(
    postgres_url: str,
) -> None:
    await open_and_close(postgres_url)
    await execute(postgres_url, "UPDATE aaa.store SET version = 99")
    await open_and_close(postgres_url)
    await execute(postgres_url, "UPDATE aaa.store SET min_reader = 99")
    with pytest.raises(StoreTooNew, match="knows version 99"):
        await open_and_close(postgres_url)


async def test_a_store_that_was_laid_out_otherwise_is_refused(postgres_url: str) -> None:
    await open_and_close(postgres_url + "?partitions=16")
    with pytest.raises(StoreMismatch, match="laid out with 16 partitions"):
        await open_and_close(postgres_url + "?partitions=64")
    await execute(postgres_url, "UPDATE aaa.store SET hash = 'md5'")
    with pytest.raises(StoreMismatch, match="md5"):
        await open_and_close(postgres_url)


async def test_a_user_that_owns_only_the_schema_is_enough(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    await execute(postgres_url, "CREATE ROLE tenant LOGIN")
    try:
        await execute(postgres_url, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        tenant = named(postgres_server, postgres_url, user="tenant")
        with pytest.raises(ConfigError, match="CREATE SCHEMA aaa AUTHORIZATION"):
            await open_and_close(tenant)
        await execute(postgres_url, "CREATE SCHEMA aaa AUTHORIZATION tenant")
        store = await opened(tenant)
        request = run_requested("run", {})
        create = Create(run_id="run", app="app", digest="d", entries=(Entry(request),))
        await store.commit(partition_of("run", store.partitions), [create])
        assert [event.raw for event in await store.read("run")] == [request.raw]
        await store.close()
        await execute(postgres_url, "CREATE ROLE stranger LOGIN")
        with pytest.raises(ConfigError, match="right"):
            await open_and_close(named(postgres_server, postgres_url, user="stranger"))
    finally:
        await execute(postgres_url, "DROP SCHEMA IF EXISTS aaa CASCADE")
        await execute(postgres_url, "DROP ROLE IF EXISTS tenant")
        await execute(postgres_url, "DROP ROLE IF EXISTS stranger")


async def test_a_pooler_in_transaction_mode_is_refused(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    database = postgres_url.rpartition("/")[2]
    async with transaction_pooler(postgres_server.port, database) as port, asyncio.timeout(20):
        with pytest.raises(ConfigError, match="set it to session mode"):
            await open_and_close(f"postgresql://postgres@127.0.0.1:{port}/{database}")


@pytest.mark.parametrize(
    ("first", "second", "again", "shared"),
    [
        ((1, "t1"), (2, "t2"), (1, "t1"), False),
        ((1, "t1"), (1, "t2"), (1, "t1"), False),  # two hosts may have the same process id
        ((1, "t1"), (1, "t1"), (1, "t1"), True),
        ((1, "t1"), (2, "t2"), (3, "t3"), True),
    ],
)
def test_shared_sessions_show_in_the_servers_processes(
    first: tuple[int, str], second: tuple[int, str], again: tuple[int, str], shared: bool
) -> None:
    assert shares_sessions(first, second, again) is shared


async def test_settings_that_lose_acknowledged_writes_are_named() -> None:
    settings = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
    with PostgresServer(settings=settings) as server:
        store = PostgresEventStore.from_url(server.url)
        info = await store.open()
        await store.close()
    assert [warning.partition("=")[0] for warning in info.warnings] == list(settings)


async def test_a_server_that_is_not_there_is_unavailable_and_no_password_is_shown(
    postgres_server: PostgresServer,
) -> None:
    nowhere = f"postgresql://me:hunter2@127.0.0.1:{free_port()}/db"
    with pytest.raises(StoreUnavailable) as refused:
        await open_and_close(nowhere)
    assert "hunter2" not in str(refused.value)
    missing = f"postgresql://postgres:hunter2@127.0.0.1:{postgres_server.start().port}/missing"
    with pytest.raises(ConfigError, match="missing") as wrong:
        await open_and_close(missing)
    assert "hunter2" not in str(wrong.value)
    with pytest.raises(ConfigError, match="cannot be read") as unreadable:
        PostgresEventStore.from_url("postgresql://me:hunter2@host/db?sslmode=require&nonsense=1")
    assert "hunter2" not in str(unreadable.value)
