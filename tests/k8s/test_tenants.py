"""Namespaces that share a store: each has a user of its own, who lives as long as he is needed."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from starlette.responses import JSONResponse

from aaa.client import password_digest
from aaa.clock import SYSTEM_CLOCK
from aaa_operator import names
from aaa_operator.settings import Settings
from aaa_operator.tenants import OVERLAP_MS, Tenant, access, is_ours, stands
from k8s.scene import NOW_MS, SETTINGS, raw_run
from k8s.shop import Shop
from servers import RedisServer

BOUND_S = 30
DAY_MS = 86_400_000
TENANT = Tenant(
    namespace="shop",
    uid="ns-uid",
    shared_url="rediss://admin:word@h/0?timeout_s=2",
    secret_name="aaa-store",
    secret_key="url",
)
#: A password, and the one that comes after it.
FIRST, SECOND = "0" * 63 + "1", "0" * 63 + "2"


class Passwords:
    """Makes them up in order."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def __call__(self) -> str:
        return f"{next(self._numbers):064x}"


def decoded(secret: Any, key: str = "url") -> str:
    return base64.b64decode(secret["data"][key]).decode()


def test_a_secret_tells_the_users_address_and_nothing_of_the_administrators() -> None:
    made = access(TENANT, None, now_ms=NOW_MS, rotation_ms=DAY_MS, fresh=Passwords())
    assert decoded(made.secret) == f"rediss://aaa-ns-uid:{FIRST}@h/0?timeout_s=2&prefix=aaa:ns-uid:"
    assert made.digests == (password_digest(FIRST),)
    assert made.secret["metadata"]["labels"][names.STORE] == "true"
    assert is_ours(made.secret)
    for text in (repr(made), repr(TENANT)):
        assert FIRST not in text
        assert "word" not in text


def test_a_password_is_replaced_when_it_is_old_and_the_one_before_holds_for_a_while() -> None:
    fresh = Passwords()

    def after(ms: int, secret: Any) -> Any:
        return access(TENANT, secret, now_ms=NOW_MS + ms, rotation_ms=DAY_MS, fresh=fresh)

    made = after(0, None)
    assert stands(made.secret, after(DAY_MS - 1, made.secret).secret)
    turned = after(DAY_MS, made.secret)
    both = (password_digest(SECOND), password_digest(FIRST))
    assert turned.digests == both
    assert SECOND in decoded(turned.secret)
    assert not stands(made.secret, turned.secret)
    assert after(DAY_MS + OVERLAP_MS - 1, turned.secret).digests == both
    over = after(DAY_MS + OVERLAP_MS, turned.secret)
    assert over.digests == both[:1]
    assert "previous" not in over.secret["data"]
    assert decoded(over.secret) == decoded(turned.secret)


@pytest.mark.parametrize(
    "change",
    [
        {"data": {}},
        {"data": {"url": "%%%"}},
        {"data": {"url": base64.b64encode(b"redis://aaa-ns-uid:weak@h/0").decode()}},
        {"metadata": {"name": "aaa-store", "labels": {}}},
        {"metadata": {"annotations": {names.PASSWORD_SINCE: "yesterday"}}},
    ],
)
def test_a_secret_that_cannot_be_read_gets_another_password(change: dict[str, Any]) -> None:
    fresh = Passwords()
    made = access(TENANT, None, now_ms=NOW_MS, rotation_ms=DAY_MS, fresh=fresh)
    again = access(
        TENANT, {**made.secret, **change}, now_ms=NOW_MS, rotation_ms=DAY_MS, fresh=fresh
    )
    assert again.digests == (password_digest(SECOND),)


def test_what_others_changed_in_a_secret_is_put_back_and_what_they_added_stays() -> None:
    fresh = Passwords()
    made = access(TENANT, None, now_ms=NOW_MS, rotation_ms=DAY_MS, fresh=fresh).secret
    elsewhere = decoded(made).replace("@h/0", "@evil/0").replace("aaa:ns-uid:", "aaa:other:")
    data = {"url": base64.b64encode(elsewhere.encode()).decode()}
    again = access(TENANT, {**made, "data": data}, now_ms=NOW_MS, rotation_ms=DAY_MS, fresh=fresh)
    assert again.secret == made
    assert not stands({**made, "data": data}, made)
    metadata = made["metadata"]
    noted = {**metadata, "annotations": {**metadata["annotations"], "note": "x"}, "uid": "u"}
    assert stands({**made, "metadata": noted}, made)


# ------------------------------------------------------------------------------- from end to end


class Clock:
    """The system's, moved on by hand; made-up names are random."""

    def __init__(self) -> None:
        self._clock, self.later_ms = SYSTEM_CLOCK, 0

    def now_ms(self) -> int:
        return self._clock.now_ms() + self.later_ms

    def boot_s(self) -> float:
        return self._clock.boot_s()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    def token(self) -> str:
        return self._clock.token()


@dataclass
class Site:
    server: RedisServer
    shop: Shop
    clock: Clock
    file: Path

    def users(self) -> set[str]:
        with self.server.client() as admin:
            return {name.decode() for name in admin.execute_command("ACL", "USERS")}

    @property
    def lets_in(self) -> bool:
        """Whether the server takes what the Secret tells."""
        parts = urlsplit(self.shop.url)
        with self.server.client(retry=Retry(NoBackoff(), 0)) as client:
            try:
                return bool(client.execute_command("AUTH", parts.username, parts.password))
            except redis.AuthenticationError:
                return False


@pytest_asyncio.fixture(params=["redis", "valkey"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    server: RedisServer = request.getfixturevalue(f"{request.param}_server")
    server.start().reset()
    file, clock = tmp_path / "url", Clock()
    file.write_text(server.url + "\n")
    settings = Settings(pools=SETTINGS, store_file=str(file), store_rotation_s=3600)
    shop = Shop(server.url, settings=settings, clock=clock)
    yield Site(server, shop, clock, file)
    await shop.close()
    with server.client() as admin:
        admin.execute_command("ACL", "DELUSER", "aaa-ns-uid", "aaa-new-uid", "weak")


async def test_a_namespaces_worker_runs_with_its_own_user_in_its_own_part(site: Site) -> None:
    shop = site.shop
    shop.api.put(raw_run())
    await shop.settled()
    secrets = [write for write in shop.api.writes if write[1] == "Secret"]
    assert secrets == [("PATCH", "Secret", "aaa-store", "")]  # once, and before all else but status
    kinds = [kind for _, kind, _, _ in shop.api.writes]
    assert kinds.index("Secret") < kinds.index("Deployment")
    assert site.lets_in
    async with shop.engine():
        await shop.until("AwaitingApproval", "True/Waiting")
        with site.server.client() as admin:
            workers = [each["user"] for each in admin.client_list()]
            assert "aaa-ns-uid" in workers
            assert all(key.startswith(b"aaa:ns-uid:") for key in admin.scan_iter())
        site.clock.later_ms = 3_600_000  # the password is changed under the worker
        await shop.settled()
        with site.server.client() as admin:
            admin.execute_command("CLIENT", "KILL", "USER", "aaa-ns-uid")
        assert site.lets_in
        shop.api.put(
            {
                **shop.api.get("AgentRun", "refund"),
                "spec": {**raw_run()["spec"], "desiredState": "Cancelled"},
            }
        )
        await shop.until("Succeeded", "False/Cancelled")


async def test_a_user_that_the_server_forgot_or_somebody_changed_is_set_anew(site: Site) -> None:
    shop = site.shop
    shop.api.put(raw_run())
    await shop.settled()
    before = shop.url
    site.server.kill()
    site.server.start()
    assert not site.lets_in
    async with asyncio.timeout(BOUND_S):
        while not site.lets_in:
            await shop.look()
    with site.server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "aaa-ns-uid", "~*", "+get")
        await shop.look()
        assert admin.execute_command("ACL", "DRYRUN", "aaa-ns-uid", "GET", "x") != b"OK"
    assert shop.url == before
    site.clock.later_ms += 11_000  # what is written along at most so often has been
    await shop.settled()
    writes = len(shop.api.writes)
    await shop.restart()  # another operator makes no other password
    await shop.settled()
    assert shop.url == before
    assert shop.api.writes[writes:] == []


async def test_a_deleted_or_changed_secret_comes_back_and_works(site: Site) -> None:
    shop = site.shop
    shop.api.put(raw_run())
    await shop.settled()
    before = shop.url
    del shop.api.objects["Secret", "shop", "aaa-store"]
    await shop.settled()
    assert shop.url != before
    assert site.lets_in
    after, secret = shop.url, shop.api.get("Secret", "aaa-store")
    changed = base64.b64encode(after.replace("ns-uid:?", "x").replace("127.0.0.1", "evil").encode())
    shop.api.put({**secret, "data": {"url": changed.decode()}})
    await shop.settled()
    assert shop.url == after


async def test_the_user_goes_with_the_last_pool_and_comes_back_with_the_next_run(
    site: Site,
) -> None:
    shop = site.shop
    shop.api.put(raw_run(spec={"desiredState": "Cancelled"}))
    shop.api.put(raw_run("second"))
    await shop.settled()
    assert "aaa-ns-uid" in site.users()
    shop.api.put(_cancelled(shop, "second"))
    async with asyncio.timeout(BOUND_S):
        while any(kind in ("Deployment", "Secret") for kind, _, _ in shop.api.objects):
            site.clock.later_ms += 61_000
            await shop.settled()
            for key in [key for key in shop.api.objects if key[0] == "Pod"]:
                shop.api.changes.append(("Pod", shop.api.objects.pop(key), True))
    assert "aaa-ns-uid" not in site.users()
    shop.api.put(raw_run("third"))
    await shop.settled()
    assert "aaa-ns-uid" in site.users()
    assert site.lets_in


def _cancelled(shop: Shop, name: str) -> dict[str, Any]:
    run = shop.api.get("AgentRun", name)
    return {**run, "spec": {**run["spec"], "desiredState": "Cancelled"}}


async def test_a_namespace_of_the_same_name_gets_nothing_of_the_one_before(site: Site) -> None:
    shop = site.shop
    shop.api.put(raw_run())
    await shop.settled()
    before = shop.url
    for (kind, _, name), raw in list(shop.api.objects.items()):
        shop.api.changes.append((kind, raw, True))
        del shop.api.objects[kind, "shop", name]
    gone = shop.api.others.pop("/api/v1/namespaces/shop")
    await shop.look()
    await shop.look()
    assert "aaa-ns-uid" not in site.users()
    shop.api.others["/api/v1/namespaces/shop"] = {
        "metadata": {**gone["metadata"], "uid": "new-uid"}
    }
    shop.api.put(raw_run())
    await shop.settled()
    assert "prefix=aaa:new-uid:" in shop.url
    assert "prefix=aaa:ns-uid:" in before


async def test_a_namespace_may_bring_a_store_of_its_own_all_the_same(site: Site) -> None:
    shop = site.shop
    url = f"{site.server.url}?prefix=own:"
    secret = {
        "kind": "Secret",
        "metadata": {"name": "aaa-store", "labels": {names.STORE: ""}},
        "data": {"url": base64.b64encode(url.encode()).decode()},
    }
    shop.api.put(secret)
    shop.api.put(raw_run())
    await shop.settled()
    assert shop.url == url
    assert "aaa-ns-uid" not in site.users()


@pytest.mark.parametrize(
    ("url", "reason", "words"),
    [
        (None, "True/StoreFileUnreadable", "cannot read the shared store's URL"),
        ("sqlite:///x", "True/StoreUrlRefused", "does not begin with one of redis://"),
        ("postgres://h/d", "True/StoreUrlRefused", "give each namespace a Secret of its own"),
        ("weak", "True/AccessRefused", "docs/stores/redis.md"),
    ],
)
async def test_a_shared_store_that_cannot_be_shared_says_what_to_do(
    site: Site, url: str | None, reason: str, words: str
) -> None:
    shop = site.shop
    with site.server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "weak", "on", ">weak", "~*", "&*", "+@all", "-acl")
    if url is None:
        site.file.unlink()
    else:
        weak = site.server.url.replace("://", "://weak:weak@")
        site.file.write_text(weak if url == "weak" else url)
    shop.api.put(raw_run())
    await shop.settled()
    run = shop.api.get("AgentRun", "refund")
    assert shop.condition("Stalled") == reason
    message = next(c["message"] for c in run["status"]["conditions"] if c["type"] == "Stalled")
    assert words in message
    site.file.write_text(site.server.url)
    await shop.settled()
    assert shop.condition("Stalled").startswith("False/")
    assert site.lets_in


async def test_a_secret_that_may_not_be_written_is_tried_again(site: Site) -> None:
    shop = site.shop
    refused = JSONResponse({"message": "secrets is forbidden"}, status_code=403)
    shop.api.answers["PATCH", "Secret"] = [refused]
    shop.api.put(raw_run())
    await shop.look()
    assert ("Secret", "shop", "aaa-store") not in shop.api.objects
    await shop.settled()
    assert site.lets_in


async def test_no_secret_tells_of_a_user_whom_the_server_has_not_taken(site: Site) -> None:
    shop = site.shop
    with site.server.client() as admin:
        rule = ("~*", "&*", "+@all", "-acl|setuser")
        admin.execute_command("ACL", "SETUSER", "weak", "reset", "on", ">weak", *rule)
    site.file.write_text(site.server.url.replace("://", "://weak:weak@"))
    shop.api.put(raw_run())
    async with asyncio.timeout(BOUND_S):
        while shop.condition("Stalled") != "True/AccessRefused":
            await shop.look()
    assert ("Secret", "shop", "aaa-store") not in shop.api.objects
    site.file.write_text(site.server.url)
    await shop.settled()
    assert shop.condition("Stalled") == "False/No"
    assert site.lets_in
