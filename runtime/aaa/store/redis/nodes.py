"""Which server has which keys: one, one that sentinels name, or the masters of a cluster.

A cluster's redirections are never followed blindly. ``ASK`` means that a slot is on its way to
another node, with a part of a partition's keys here and a part there; a function that ran in
either place would see half of them. So the call waits until the slot has arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import ClusterDownError
from redis.exceptions import TimeoutError as DriverTimeoutError
from redis.sentinel import MasterNotFoundError

from aaa.store.redis.address import Address, Host
from aaa.store.redis.link import Link, packed

Ranges = list[tuple[int, int, Host]]


class Nodes(Protocol):
    """The servers of one address."""

    async def link_for(self, key: str) -> Link:
        """The link to the master that has ``key``."""
        ...

    async def masters(self) -> list[Link]:
        """A link to every master."""
        ...

    async def look_again(self) -> None:
        """After a redirection: find out anew who has what."""
        ...

    async def place_of(self, key: str) -> Host | None:
        """Where ``key`` is; ``None`` if there is one place only."""
        ...

    async def connect_to(self, place: Host | None) -> AbstractConnection:
        """A connection of the caller's own to a place."""
        ...

    async def close(self) -> None:
        """Free everything."""
        ...


def nodes_of(address: Address) -> Nodes:
    """The servers of an address. Nothing is connected yet."""
    if address.mode == "cluster":
        return _Cluster(address)
    return _Single(address)


async def connected(address: Address, host: Host | None) -> AbstractConnection:
    """A new connection, greeted and logged in; ``None``: by the address's unix socket."""
    options: dict[str, Any] = {
        **address.credentials(),
        "db": address.database,
        "protocol": 2,
        "socket_timeout": None,  # every wait has its bound where it is
        "socket_connect_timeout": address.connect_timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "driver_info": None,
    }
    connection: AbstractConnection
    if host is None:
        connection = UnixDomainSocketConnection(path=address.socket, **options)
    elif address.tls:
        name, port = host
        connection = SSLConnection(host=name, port=port, **address.tls_arguments(), **options)
    else:
        connection = Connection(host=host[0], port=host[1], **options)
    try:
        async with asyncio.timeout(address.connect_timeout_s):
            await connection.connect()  # type: ignore[no-untyped-call]
    except TimeoutError:
        await connection.disconnect(nowait=True)
        raise DriverTimeoutError(
            f"no connection within {address.connect_timeout_s:g} seconds"
        ) from None
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    return connection


class _Single:
    """One server, or the one that sentinels name as the master at the moment of connecting."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._link = Link(self._connect, timeout_s=address.timeout_s)

    async def link_for(self, key: str) -> Link:  # noqa: ARG002 - it has them all
        return self._link

    async def masters(self) -> list[Link]:
        return [self._link]

    async def look_again(self) -> None:
        pass  # every new connection looks for the master

    async def place_of(self, key: str) -> Host | None:  # noqa: ARG002 - as above
        return None

    async def connect_to(self, place: Host | None) -> AbstractConnection:  # noqa: ARG002
        return await self._connect()

    async def close(self) -> None:
        await self._link.close()

    async def _connect(self) -> AbstractConnection:
        address = self._address
        if address.mode == "sentinel":
            return await connected(address, await named_master(address))
        return await connected(address, None if address.socket else address.hosts[0])


async def named_master(address: Address) -> Host:
    """Ask the sentinels, one after the other, who the master is."""
    options = sentinel_options(address)
    sentinel = Sentinel(list(address.hosts), sentinel_kwargs=options)  # type: ignore[no-untyped-call]
    try:
        async with asyncio.timeout(address.connect_timeout_s):
            host, port = await sentinel.discover_master(address.service)
    except TimeoutError:
        raise MasterNotFoundError(
            f"no sentinel named {address.service!r} within {address.connect_timeout_s:g} seconds"
        ) from None
    finally:
        await sentinel.aclose()
    return str(host), int(port)


def sentinel_options(address: Address) -> dict[str, Any]:
    """How to talk to the sentinels themselves, for the driver's clients of both kinds."""
    wait_s = min(1.0, address.connect_timeout_s / max(1, len(address.hosts)))
    now = address.now()
    return {
        "username": now.sentinel_username,
        "password": now.sentinel_password,
        "socket_timeout": wait_s,
        "socket_connect_timeout": wait_s,
        "protocol": 2,
        "ssl": address.tls,
        **address.tls_arguments(),
    }


class _Cluster:
    """The masters of a cluster, as any of its nodes that answers tells them."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._ranges: Ranges = []
        self._links: dict[Host, Link] = {}
        self._looking = asyncio.Lock()

    async def link_for(self, key: str) -> Link:
        return self._link(await self._host_of(key))

    async def masters(self) -> list[Link]:
        if not self._ranges:
            await self.look_again()
        return [self._link(host) for host in dict.fromkeys(host for _, _, host in self._ranges)]

    async def look_again(self) -> None:
        before = self._ranges
        async with self._looking:
            if self._ranges is before:  # else another task has just looked
                self._ranges = await self._ask_anyone()

    async def place_of(self, key: str) -> Host | None:
        return await self._host_of(key)

    async def connect_to(self, place: Host | None) -> AbstractConnection:
        return await connected(self._address, place)

    async def close(self) -> None:
        for link in self._links.values():
            await link.close()
        self._links.clear()
        self._ranges = []

    async def _host_of(self, key: str) -> Host:
        if not self._ranges:
            await self.look_again()
        return host_of(self._ranges, key)

    def _link(self, host: Host) -> Link:
        if host not in self._links:
            self._links[host] = Link(
                lambda: connected(self._address, host), timeout_s=self._address.timeout_s
            )
        return self._links[host]

    async def _ask_anyone(self) -> Ranges:
        failure: Exception | None = None
        known = [host for _, _, host in self._ranges]
        for host in dict.fromkeys([*known, *self._address.hosts]):
            try:
                _, reply = await self._link(host).call(packed((b"CLUSTER", b"SLOTS")))
                return ranges_of(reply, host)
            except Exception as error:  # noqa: BLE001 - the next one may answer
                failure = error
        raise failure or ClusterDownError("no node of the cluster is known")


def ranges_of(reply: Any, asked: Host) -> Ranges:
    """``CLUSTER SLOTS`` as ranges of slots and their masters."""
    found = []
    for first, last, master, *_ in reply:
        # A node that doesn't know its own address leaves it out: it is the one that was asked.
        name = bytes(master[0] or b"").decode() or asked[0]
        found.append((int(first), int(last), (name, int(master[1]))))
    return found


def host_of(ranges: Iterable[tuple[int, int, Host]], key: str) -> Host:
    """The master that has a key. Raises if no node serves it."""
    slot = key_slot(key.encode())
    for first, last, host in ranges:
        if first <= slot <= last:
            return host
    raise ClusterDownError(f"no node serves slot {slot}")
