"""RedisEventStore: the port over Redis or Valkey, with one function call a batch.

Durable as far as the server's settings are; :attr:`StoreInfo.warnings` says where they are not.
Everything that changes a partition happens inside one server-side function in the partition's
slot. A lost answer leaves open whether it happened; the same batch again answers as the first time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, Self

from redis.exceptions import NoPermissionError, ResponseError

from aaa.clock import SYSTEM_CLOCK, Clock
from aaa.errors import ConfigError, StoreMismatch, StoreTooNew, StoreUnavailable
from aaa.events import SCHEMA, Event
from aaa.ids import check_run_id, partition_of
from aaa.policy.config import Delivery
from aaa.store import port
from aaa.store.index import select
from aaa.store.port import Committed, Operation, RunInfo, StoreInfo, Wake
from aaa.store.redis import decode, durability, encode
from aaa.store.redis.address import parse
from aaa.store.redis.failures import (
    driver_errors,
    is_demoted,
    is_lost_function,
    is_redirection,
    is_refusal,
)
from aaa.store.redis.library import library, missing
from aaa.store.redis.link import Link, Reply, packed
from aaa.store.redis.nodes import Nodes, nodes_of
from aaa.store.redis.renewer import RedisRenewer
from aaa.store.redis.users import RedisUsers
from aaa.store.redis.wakes import Wakes

#: The layout of keys and rows. A reader older than ``min_reader`` refuses the store.
LAYOUT: Final = 1
HASH: Final = "blake2b-8/aaa-partition-v1"

#: While a cluster or a failover settles, a call is tried again after these pauses, then given up.
_PAUSES_S: Final = (0.02, 0.05, 0.1, 0.2, 0.4)
#: ``open()`` waits no longer for hints to arrive.
_LISTEN_S: Final = 1.0
#: Rows of a listing that one call to a partition may look at.
_PAGE_RUNS: Final = 256


class RedisEventStore:
    """An :class:`aaa.store.port.EventStore` in Redis 7 or newer, or Valkey 8 or newer.

    ``url`` as in :mod:`aaa.store.redis.address`. Raises :class:`ConfigError` for a bad one.
    """

    def __init__(
        self,
        url: str,
        *,
        partitions: int | None = None,
        latest: Callable[[], str] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        address = parse(url)
        partitions = partitions or address.partitions
        self._address = replace(address, partitions=partitions, latest=latest)
        self._clock = clock
        self._nodes: Nodes = nodes_of(self._address)
        self._info: StoreInfo | None = None
        self._wanted: list[Wake] = []
        self._wakes: Wakes | None = None
        self._opening = asyncio.Lock()
        #: Which words in hints are ours: this instance's, and its workers' names.
        self._origin = clock.token().encode()
        self._origins = {self._origin}
        self._bases: list[bytes] = []
        self._commit_name = library().function("commit")

    @classmethod
    def from_url(cls, url: str, *, latest: Callable[[], str] | None = None) -> Self:
        """The store that a URL names, not yet opened.

        ``latest`` gives the URL again: its user and password as they are then are used for each new
        connection.
        """
        return cls(url, latest=latest)

    @property
    def partitions(self) -> int:
        return self._opened().partitions

    # ------------------------------------------------------------------------- opening, closing

    async def open(self) -> StoreInfo:
        """See the port. Loads the library on every master and listens for hints."""
        async with self._opening:
            if self._info is None:
                try:
                    with driver_errors(self._address.shown):
                        self._info = await self._open()
                except BaseException:
                    await self._nodes.close()
                    raise
            return self._info

    async def _open(self) -> StoreInfo:
        server = await durability.describe((await self._nodes.masters())[0])
        if server.clustered and self._address.mode == "single":
            if self._address.database:
                raise ConfigError(
                    f"{self._address.shown} is part of a cluster, which has database 0 only"
                )
            await self._nodes.close()
            self._address = replace(self._address, mode="cluster")
            self._nodes = nodes_of(self._address)
        masters = await self._nodes.masters()
        await asyncio.gather(*(_load_if_allowed(link) for link in masters))
        await self._check_permissions()
        meta = await self._meta()
        servers = [await durability.describe(link) for link in masters]
        settings = [await durability.settings_of(link) for link in masters]
        warnings = [line for found in settings for line in durability.warnings_of(found)]
        warnings += durability.replica_warning(servers, wait_replicas=self._address.wait_replicas)
        info = StoreInfo(
            backend="redis",
            identity=meta["identity"],
            partitions=int(meta["partitions"]),
            schema=int(meta["schema"]),
            server=servers[0].version,
            warnings=tuple(dict.fromkeys(warnings)),
        )
        self._bases = [self._address.base(number).encode() for number in range(info.partitions)]
        self._wakes = Wakes(
            self._address,
            self._nodes,
            partitions=info.partitions,
            own=self._origins,
            wake=self._wake,
            clock=self._clock,
        )
        with suppress(TimeoutError):  # hints may begin later: they only save time
            async with asyncio.timeout(_LISTEN_S):
                await self._wakes.listening.wait()
        return info

    async def _check_permissions(self) -> None:
        failed = await self._function("permitted", self._address.key("probe") + ":", b"SPUBLISH")
        if failed[0]:
            command, reason = (field.decode() for field in failed)
            raise ConfigError(
                f"the user of the store URL lacks a permission at {self._address.shown}: {command} "
                f"({reason}); docs/stores/redis.md has the ACL line that it needs"
            )

    async def _load(self, link: Link) -> None:
        try:
            await load(link)
        except NoPermissionError:
            raise StoreUnavailable(missing(self._address.shown)) from None

    async def _meta(self) -> dict[str, str]:
        """What the store is; written if nobody has opened it before."""
        wanted = self._address.partitions
        first = {
            "identity": self._clock.token(),
            "partitions": str(wanted or port.DEFAULT_PARTITIONS),
            "hash": HASH,
            "layout": str(LAYOUT),
            "schema": str(SCHEMA),
            "min_reader": str(LAYOUT),
        }
        flat = (text.encode() for item in first.items() for text in item)
        fields = await self._function("meta", self._address.key("meta"), *flat)
        texts = [field.decode() for field in fields]
        meta = dict(zip(texts[::2], texts[1::2], strict=True))
        where = self._address.shown
        if int(meta["min_reader"]) > LAYOUT or int(meta["schema"]) > SCHEMA:
            raise StoreTooNew(
                f"{where} was written by a newer version: it needs a reader of layout "
                f"{meta['min_reader']} and schema {meta['schema']}, this one has {LAYOUT} and {SCHEMA}"
            )
        if meta["hash"] != HASH:
            raise StoreMismatch(f"{where} spreads runs by {meta['hash']}, this version by {HASH}")
        if wanted and int(meta["partitions"]) != wanted:
            raise StoreMismatch(
                f"{where} has {meta['partitions']} partitions, not the {wanted} of the settings"
            )
        return meta

    async def close(self) -> None:
        """See the port."""
        self._wanted.clear()
        self._info = None
        if self._wakes is not None:
            await self._wakes.close()
            self._wakes = None
        await self._nodes.close()

    def _opened(self) -> StoreInfo:
        if self._info is None:
            raise RuntimeError("the store is not open: await store.open() first")
        return self._info

    # -------------------------------------------------------------------------------- committing

    async def commit(
        self, partition: int, operations: Sequence[Operation], *, seen: int = 0
    ) -> Committed:
        """See the port. With ``wait_replicas``, also raises ``StoreUnavailable`` if a claim of an
        ``at_most_once`` call is not on so many replicas in time: the claim stands and is not handed
        out; the same batch again waits again.
        """
        self._opened()
        batch = tuple(operations)
        arguments = [
            b"FCALL", self._commit_name, b"1", self._bases[partition],
            self._origin_of(batch), b"%d" % seen, b"SPUBLISH", b"%d" % len(batch),
        ]  # fmt: skip
        for operation in batch:
            arguments += encode.operation(operation)
        key = self._address.base(partition)
        with driver_errors(self._address.shown):
            number, reply = await self._call(key, packed(arguments))
        committed = decode.verdicts_of(batch, reply)  # type: ignore[arg-type]
        if self._address.wait_replicas and _needs_replicas(committed):
            await self._wait_for_replicas(key, number)
        if committed.hot:
            asyncio.get_running_loop().call_soon(self._wake, partition)
        return committed

    def _origin_of(self, batch: tuple[Operation, ...]) -> bytes:
        """The word in hints. An owner's name lets the server leave out hints to itself."""
        for operation in batch:
            if isinstance(operation, port.Own):
                self._origin = operation.worker.encode()
                self._origins.add(self._origin)
        return self._origin

    async def _wait_for_replicas(self, key: str, number: int) -> None:
        wanted, wait_ms = self._address.wait_replicas, self._address.wait_timeout_ms
        command = packed((b"WAIT", b"%d" % wanted, b"%d" % wait_ms))
        with driver_errors(self._address.shown):
            after, reached = await (await self._nodes.link_for(key)).call(command)
        # WAIT speaks of what its own connection has written: another one's answer means nothing.
        if after != number or int(reached) < wanted:  # type: ignore[call-overload]
            raise StoreUnavailable(
                f"{self._address.shown}: {reached if after == number else 0} of {wanted} replicas "
                f"confirmed the claim of an at_most_once call within {wait_ms} ms, so it was not "
                "handed out"
            )

    async def _function(self, name: str, key: str, *arguments: bytes) -> list[bytes]:
        """Call a function of the library, for the fields of its reply."""
        verb = b"FCALL_RO" if name in ("events", "members", "run", "runs") else b"FCALL"
        command = packed((verb, library().function(name), b"1", key.encode(), *arguments))
        with driver_errors(self._address.shown):
            _, reply = await self._call(key, command)
        return decode.fields_of(reply)  # type: ignore[arg-type]

    async def _call(self, key: str, command: bytes) -> Reply:
        """Send to the master that has ``key``. Sent again only if the server did nothing."""
        pauses = iter(_PAUSES_S)
        while True:
            link = await self._nodes.link_for(key)
            try:
                return await link.call(command)
            except ResponseError as error:
                pause_s = next(pauses, None)
                if pause_s is None:
                    raise
                if is_lost_function(error):
                    await self._load(link)
                    continue
                if is_refusal(error):
                    await link.drop()  # the user may have been set anew: log in again
                if not is_redirection(error):
                    raise
                if is_demoted(error):
                    await link.drop()
                await self._clock.sleep(pause_s)
                await self._nodes.look_again()

    # ------------------------------------------------------------------------------------ reading

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Event]:
        """See the port. Read in pages, so that a long history stalls nobody."""
        events: list[Event] = []
        wanted = 1 << 53 if limit is None else limit
        run = check_run_id(run_id).encode()
        while len(events) < wanted:
            at = after + len(events)
            more, *stored = await self._function(
                "events", self._base_of(run_id), run, b"%d" % at, b"%d" % (wanted - len(events))
            )
            events += (
                decode.event_of(run_id, at + place, text) for place, text in enumerate(stored, 1)
            )
            if more == b"0":
                break
        return events

    async def run(self, run_id: str) -> RunInfo | None:
        """See the port."""
        run = check_run_id(run_id).encode()
        fields = await self._function("run", self._base_of(run_id), run)
        return next(decode.runs_of(iter(fields)), None)

    async def runs(
        self, *, status: str | None = None, app: str | None = None, limit: int = 1_000
    ) -> list[RunInfo]:
        """See the port. Asks every partition; a listing is not a snapshot of all at one moment."""
        parts = await asyncio.gather(
            *(
                self._runs_of(number, status=status, app=app, limit=limit)
                for number in range(self.partitions)
            )
        )
        found = {run.run_id: run for part in parts for run in part}
        return select(found.values(), status=status, app=app, limit=limit)

    async def members(self) -> port.Members:
        """See the port. The server is named by the run id that Redis makes up at each start."""
        key = self._address.key("workers")
        now, *fields = await self._function("members", key)
        with driver_errors(self._address.shown):
            server = await durability.run_id_of(await self._nodes.link_for(key))
        texts = iter(fields)
        found = tuple(
            port.Member(
                worker=name.decode(),
                apps=tuple(app for app in apps.decode().split("\n") if app),
                info=info,
            )
            for name, apps, info in zip(texts, texts, texts, strict=True)
        )
        return port.Members(now_ms=int(now), server=server, members=found)

    async def _runs_of(
        self, partition: int, *, status: str | None, app: str | None, limit: int
    ) -> list[RunInfo]:
        listed = status if status in ("open", "waiting", "unknown") else "all"
        exact = status if status is not None and listed == "all" else ""
        found: list[RunInfo] = []
        at = b"0"
        while at and len(found) < limit:
            at, *fields = await self._function(
                "runs",
                self._address.base(partition),
                listed.encode(),
                (app or "").encode(),
                exact.encode(),
                at,
                b"%d" % _PAGE_RUNS,
            )
            found += decode.runs_of(iter(fields))
        return found

    def _base_of(self, run_id: str) -> str:
        return self._address.base(partition_of(run_id, self.partitions))

    # -------------------------------------------------------------------------------------- hints

    def on_wake(self, wake: Wake) -> None:
        """See the port."""
        self._wanted.append(wake)

    def _wake(self, partition: int) -> None:
        for wake in self._wanted:
            wake(partition)

    def renewer(self) -> RedisRenewer:
        """See the port."""
        return RedisRenewer(self._address, partitions=self.partitions)

    @property
    def users(self) -> RedisUsers:
        """The server's users that are limited to this store; for who may make users."""
        return RedisUsers(self._nodes, prefix=self._address.prefix, where=self._address.shown)


def _needs_replicas(committed: Committed) -> bool:
    """Whether the batch claimed something that must never be claimed again."""
    return any(
        claimed.delivery == Delivery.AT_MOST_ONCE and claimed.job == "run"
        for verdict in committed.verdicts
        if isinstance(verdict, port.Claims | port.Appended)
        for claimed in verdict.claimed
    )


async def _load_if_allowed(link: Link) -> None:
    with suppress(NoPermissionError):  # then somebody else has loaded it, or it will be missed
        await load(link)


async def load(link: Link) -> None:
    """Load the library on a master. Others may do the same at the same moment."""
    try:
        await link.call(packed((b"FUNCTION", b"LOAD", library().source)))
    except ResponseError as error:
        if "already exists" not in str(error):
            raise
