"""Store URLs of Redis."""

from __future__ import annotations

import pytest

from aaa.errors import ConfigError
from aaa.store import open_store
from aaa.store.redis.address import parse


def test_a_plain_url_names_one_server() -> None:
    address = parse("redis://me:p%40ss@db.example:7000/3?prefix=shop:&timeout_s=1.5")
    assert (address.mode, address.hosts, address.database) == (
        "single",
        (("db.example", 7000),),
        3,
    )
    assert (address.username, address.password, address.tls) == ("me", "p@ss", False)
    assert (address.base(7), address.timeout_s) == ("shop:{p7}:", 1.5)


def test_a_password_needs_no_user() -> None:
    address = parse("redis://:secret@localhost")
    assert (address.username, address.password) == (None, "secret")


def test_tls_takes_the_files_to_trust() -> None:
    address = parse("rediss://[::1]:6380/0?ssl_ca_certs=/ca.pem&ssl_check_hostname=false")
    assert (address.tls, address.hosts) == (True, (("::1", 6380),))
    assert address.tls_arguments() == {"ssl_ca_certs": "/ca.pem", "ssl_check_hostname": False}


def test_a_cluster_has_several_ways_in() -> None:
    address = parse("rediss+cluster://a,b:7001/")
    assert (address.mode, address.tls, address.hosts) == (
        "cluster",
        True,
        (("a", 6379), ("b", 7001)),
    )


def test_sentinels_name_the_service_and_the_database() -> None:
    address = parse("redis+sentinel://me:pw@s1,s2:26380/mymaster/2?sentinel_password=x")
    assert (address.mode, address.hosts) == ("sentinel", (("s1", 26379), ("s2", 26380)))
    assert (address.service, address.database, address.sentinel_password) == ("mymaster", 2, "x")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://h:0", "host:port"),
        ("redis://h:sixty", "host:port"),
        ("redis://h/zero", "number of a database"),
        ("redis://h,i/0", "redis\\+cluster://"),
        ("redis+cluster://h/1", "database 0 only"),
        ("redis+sentinel://h/", "name the service"),
        ("redis+mirror://h/", "scheme"),
        ("redis://h?prefx=a", "'prefx' is not known"),
        ("redis://h?prefix=a&prefix=b", "twice"),
        ("redis://h?prefix={p1}", "prefix="),
        ("redis://h?prefix=", "prefix="),
        ("redis://h?partitions=0", "from 1 to 4096"),
        ("redis://h?wait_replicas=-1", "from 0 to 100"),
        ("redis://h?timeout_s=nan", "0.05 to 600"),
        ("rediss://h?ssl_check_hostname=perhaps", "true or false"),
    ],
)
def test_a_wrong_url_is_refused_in_a_sentence(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse(url.replace("://", "://user:s3cret@"))


def test_no_error_and_no_repr_shows_the_password() -> None:
    url = "redis://user:s3cret@h:1/0"
    assert "s3cret" not in repr(parse(url)) + parse(url).shown
    with pytest.raises(ConfigError) as caught:
        parse(url + "?nothing=1")
    assert "s3cret" not in str(caught.value)


def test_open_store_finds_the_backend() -> None:
    assert type(open_store("redis+cluster://h")).__name__ == "RedisEventStore"
