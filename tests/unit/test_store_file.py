"""A store's URL in a file: read at the start, its user and password again for each connection."""

from __future__ import annotations

from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from aaa.cli.stores import UrlInFile, url_of
from aaa.store.postgres.address import parse as parse_postgres
from aaa.store.redis import RedisEventStore
from aaa.store.redis.nodes import sentinel_options


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "url"
    monkeypatch.setenv("AAA_STORE_FILE", str(path))
    return path


def test_a_url_that_is_given_goes_before_the_file(file: Path) -> None:
    file.write_text("redis://in-the-file/0\n")
    assert url_of("redis://given/0") == "redis://given/0"
    assert url_of(None) == "redis://in-the-file/0"


def test_redis_is_logged_in_to_with_what_the_file_says_by_then(file: Path) -> None:
    file.write_text("redis+sentinel://me:one@host/main?sentinel_password=a&prefix=aaa:b:")
    url = url_of(None)
    assert isinstance(url, UrlInFile)
    address = RedisEventStore.from_url(url, latest=url.latest)._address
    assert address.credentials() == {"username": "me", "password": "one"}
    file.write_text("redis+sentinel://you:two@elsewhere/main?sentinel_password=b&prefix=other:")
    assert address.credentials() == {"username": "you", "password": "two"}
    assert sentinel_options(address)["password"] == "b"
    assert (address.now().hosts[0][0], address.now().prefix) == ("host", "aaa:b:")


@pytest.mark.parametrize("text", ["", "redis://", "nonsense", "redis://a:b@host/0?no=such", "\x00"])
def test_a_file_in_the_middle_of_a_change_leaves_the_old_login(file: Path, text: str) -> None:
    file.write_text("redis://me:one@host/0")
    url = url_of(None)
    assert isinstance(url, UrlInFile)
    address = RedisEventStore.from_url(url, latest=url.latest)._address
    file.write_text(text)
    expected = {"username": "me", "password": "one"}
    if text == "redis://":  # a whole address, of a server that asks for nothing
        expected = {"username": None, "password": None}  # type: ignore[dict-item]
    assert address.credentials() == expected
    file.write_bytes(b"\xff\xfe")
    file.unlink()
    assert address.credentials() == {"username": "me", "password": "one"}


def test_postgres_is_logged_in_to_with_what_the_file_says_by_then(file: Path) -> None:
    file.write_text("postgresql://me:one@host/db?sslmode=require&schema=mine")
    url = url_of(None)
    assert isinstance(url, UrlInFile)
    address = parse_postgres(url, latest=url.latest)
    file.write_text("postgresql://you:two@elsewhere/other")
    now = conninfo_to_dict(address.login())
    assert (now["user"], now["password"], now["host"]) == ("you", "two", "host")
    assert (now["dbname"], now["sslmode"]) == ("db", "require")
    file.write_bytes(b"\xff\xfe")
    assert conninfo_to_dict(address.login())["password"] == "one"
