"""Which store is a namespace's, and which files an address that a namespace brings may name."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest

from aaa_operator import names
from aaa_operator.observe import Problem, run_of
from aaa_operator.places import Place, place_of, with_own_files
from aaa_operator.settings import Settings
from k8s.fake_api import FakeApi
from k8s.scene import SETTINGS, raw_run
from k8s.shop import Shop
from servers import RedisServer
from stores.redis_words import Wire

TLS = Path(__file__).parents[1] / "stores" / "tls"
CA = base64.b64encode((TLS / "test-only.pem").read_bytes()).decode()
OURS = f"rediss://h/0?ssl_ca_certs={names.CA_FILE}"


@pytest.mark.parametrize(
    "url",
    [
        "rediss://h/0?ssl_ca_certs=/etc/passwd",
        "rediss://h/0?ssl_ca_certs=relative",
        "rediss://h/0?ssl_certfile=/var/run/secrets/kubernetes.io/serviceaccount/token",
        f"rediss://h/0?ssl_ca_certs={names.CA_FILE}&ssl_keyfile=/x",
        f"rediss://h/0?ssl_keyfile={names.CA_FILE}",
        "redis:///0?socket=/run/redis.sock",
        "postgresql://h/d?sslrootcert=/etc/passwd",
        "postgresql://h/d?passfile=pass",
        "postgresql://h/d?service=x",
        "postgresql:///d?host=/run/postgresql",
        "postgresql://%2Frun%2Fpostgresql/d",
    ],
)
def test_an_address_names_no_file_of_the_operators(url: str) -> None:
    found = with_own_files(url, CA, where="Secret 'ours'")
    assert isinstance(found, Problem)
    assert found.reason == "StoreUrlRefused"
    assert names.CA_FILE in found.message


@pytest.mark.parametrize(
    "url",
    ["redis://u:p%40@h/0?prefix=a:", "rediss://h", "postgresql://h/d?sslrootcert=system&schema=a"],
)
def test_any_other_address_stays_as_it_is(url: str) -> None:
    assert with_own_files(url, None, where="Secret") == url


def test_certificates_in_the_secret_become_a_file_that_the_operator_reads() -> None:
    found = with_own_files(OURS, CA, where="Secret")
    assert isinstance(found, str)
    file = Path(found.partition("ssl_ca_certs=")[2])
    assert file.read_bytes() == base64.b64decode(CA)
    assert with_own_files(OURS, CA, where="Secret") == found
    other = with_own_files(OURS, base64.b64encode(b"another").decode(), where="Secret")
    assert other != found  # so that the store is opened anew
    missing = with_own_files(OURS, None, where="Secret 'ours'")
    assert isinstance(missing, Problem)
    assert "has no key 'ca.crt'" in missing.message


async def test_runs_without_a_store_of_their_own_do_not_mix_with_those_that_name_one() -> None:
    runs = [
        run_of(raw_run()),
        run_of(raw_run("other", spec={"store": {"secretRef": {"name": "ours", "key": "url"}}})),
    ]
    found = await place_of(
        FakeApi().api(), runs, namespace="shop", uid="u", settings=Settings(pools=SETTINGS)
    )
    assert isinstance(found, Problem)
    assert found.reason == "SeveralStores"
    assert "aaa-store, ours" in found.message


async def test_a_shared_stores_certificates_reach_the_namespaces_secret(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(OURS)
    (tmp_path / names.CA_KEY).write_text("certificates")
    settings = Settings(pools=SETTINGS, store_file=str(tmp_path / "url"))
    found = await place_of(FakeApi().api(), [], namespace="shop", uid="u", settings=settings)
    assert isinstance(found, Place)
    assert found.tenant is not None
    assert found.tenant.ca == "certificates"
    assert f"ssl_ca_certs={names.CA_FILE}" in found.tenant.url_with("word")


@pytest.mark.parametrize(
    ("more", "condition"),
    [
        ({names.CA_KEY: CA}, "False/No"),
        ({}, "True/StoreUrlRefused"),
        ({names.CA_KEY: base64.b64encode(b"nothing").decode()}, "True/ConfigError"),
    ],
)
async def test_a_store_of_a_private_authority_is_trusted_by_what_lies_in_its_secret(
    redis_server: RedisServer, more: dict[str, Any], condition: str
) -> None:
    redis_server.start().reset()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(TLS / "test-only.pem", TLS / "test-only.key")
    async with Wire(redis_server.port, tls=tls) as wire:
        shop = Shop(f"{wire.url}?ssl_ca_certs={names.CA_FILE}")
        secret = shop.api.get("Secret", "aaa-store")
        shop.api.put({**secret, "data": {**secret["data"], **more}})
        shop.api.put(raw_run())
        await shop.settled()
        assert shop.condition("Stalled") == condition
        await shop.close()
