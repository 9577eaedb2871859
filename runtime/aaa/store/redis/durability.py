"""What a server is, and which of its settings lose acknowledged writes: one sentence each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from aaa.store.redis.link import Link, packed

_SETTINGS = ("appendonly", "appendfsync", "maxmemory-policy", "save")


@dataclass(frozen=True, slots=True)
class Server:
    """A server as it describes itself."""

    version: str
    clustered: bool
    replicas: int
    info_denied: bool = False


async def describe(link: Link) -> Server:
    """Ask a server what it is. A user who may not ask gets an empty answer."""
    try:
        _, reply = await link.call(packed((b"INFO",)))
    except NoPermissionError:
        return Server("", clustered=False, replicas=0, info_denied=True)
    text = bytes(reply).decode()  # type: ignore[call-overload]
    info = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    name, version = "Redis", info.get("redis_version", "?")
    if "valkey_version" in info:
        name, version = "Valkey", info["valkey_version"]
    return Server(
        version=f"{name} {version}",
        clustered=info.get("redis_mode") == "cluster" or info.get("cluster_enabled") == "1",
        replicas=int(info.get("connected_slaves", 0)),
    )


async def run_id_of(link: Link) -> str:
    """The name that the server's process gave itself at its start; ``""`` if it may not be told."""
    try:
        _, reply = await link.call(packed((b"INFO", b"server")))
    except NoPermissionError:
        return ""
    text = bytes(reply).decode()  # type: ignore[call-overload]
    found = (line[7:] for line in text.splitlines() if line.startswith("run_id:"))
    return next(found, "")


async def settings_of(link: Link) -> dict[str, str] | None:
    """The settings that durability rests on; ``None`` if the server doesn't tell this user."""
    try:
        _, reply = await link.call(
            packed((b"CONFIG", b"GET", *(name.encode() for name in _SETTINGS)))
        )
    except ResponseError:  # not permitted, or a hosted server that has no CONFIG
        return None
    flat: Any = reply
    texts = [bytes(text).decode() for text in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def warnings_of(settings: Mapping[str, str] | None) -> list[str]:
    """What these settings lose."""
    if settings is None:
        return [
            (
                "The server's settings could not be read (CONFIG GET is not permitted), "
                "so it is not known whether it keeps what it acknowledges."
            )
        ]
    found = []
    if settings.get("appendonly", "no") != "yes":
        kept = "all but the last snapshot" if settings.get("save") else "everything"
        found.append(f"appendonly is off: a restart of the server loses {kept}.")
    elif settings.get("appendfsync") != "always":
        lost = "a second" if settings.get("appendfsync") == "everysec" else "half a minute"
        found.append(
            f"appendfsync is {settings.get('appendfsync')}: a crash of the machine may lose "
            f"{lost} of acknowledged writes; L1 and G4 need always."
        )
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy.startswith("allkeys"):
        found.append(
            f"maxmemory-policy is {policy}: a full server drops runs; it should be noeviction."
        )
    return found


def replica_warning(servers: list[Server], *, wait_replicas: int) -> list[str]:
    """Replicas may be promoted without what they have not copied yet."""
    if wait_replicas or not any(server.replicas for server in servers):
        return []
    return [
        (
            "A failover to a replica can lose acknowledged writes; with ?wait_replicas=1 no "
            "at_most_once call runs before a replica has its claim."
        )
    ]
