"""The heartbeat's own connection: blocking, so that it works while the event loop does not.

One pulse is one pipelined write to each master: a call for every partition, at most
:data:`RENEWALS_A_CALL` leases in each, and one call for the membership.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, ResponseError
from redis.retry import Retry
from redis.sentinel import Sentinel

from aaa.errors import ConfigError, StoreUnavailable
from aaa.store import renewal
from aaa.store.port import Beat, HeldCall, Pulse
from aaa.store.redis.address import Address, Host
from aaa.store.redis.decode import fields_of
from aaa.store.redis.failures import driver_errors, is_lost_function, is_redirection, is_refusal
from aaa.store.redis.library import library, missing
from aaa.store.redis.nodes import Ranges, host_of, ranges_of, sentinel_options
from aaa.store.renewal import PartitionBeat

#: Ten thousand renewals in one call would stall everybody else for tens of milliseconds.
RENEWALS_A_CALL: Final = 512
#: A heartbeat that waits longer for an answer had better try again.
_PATIENCE_S: Final = 2.0

_Command = tuple[str, tuple[Any, ...]]  # the key that it belongs to, and its parts


class RedisRenewer:
    """See :class:`aaa.store.port.Renewer`."""

    def __init__(self, address: Address, *, partitions: int) -> None:
        self._address, self._partitions = address, partitions
        self._clients: dict[Host | None, redis.Redis] = {}
        self._ranges: Ranges = []

    def pulse(self, pulse: Pulse) -> Beat:
        sent: list[tuple[int, tuple[HeldCall, ...]]] = []
        commands: list[_Command] = [(self._members, _member(self._members, pulse))]
        for number in range(self._partitions):
            base = self._address.base(number)
            for calls, owned in _parts(pulse, number):
                sent.append((number, calls))
                commands.append((base, _renewal(base, pulse, owned, calls)))
        with driver_errors(self._address.shown):
            try:
                members, *replies = self._run(commands)
            except redis.RedisError as error:
                if is_refusal(error):
                    self.close()  # the next pulse logs in with what the URL says by then
                raise
        beats: dict[int, PartitionBeat] = {}
        for (number, calls), reply in zip(sent, replies, strict=True):
            _merge(beats.setdefault(number, PartitionBeat()), calls, fields_of(reply))
        return renewal.merge(beats, _workers(pulse, fields_of(members)))

    def leave(self, worker: str) -> None:
        command = ("FCALL", library().function("leave"), 1, self._members, worker)
        with driver_errors(self._address.shown):
            self._run([(self._members, command)])

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    @property
    def _members(self) -> str:
        return self._address.key("workers")

    def _run(self, commands: list[_Command]) -> list[bytes]:
        """Send all; what no server did is sent once more, after looking who can do it."""
        replies: list[Any] = [None] * len(commands)
        waiting = list(range(len(commands)))
        for last in (False, True):
            self._send(commands, waiting, replies)
            failed = [at for at in waiting if isinstance(replies[at], Exception)]
            for error in (replies[at] for at in failed):
                if last or not (is_lost_function(error) or is_redirection(error)):
                    raise error
            if not failed:
                break
            waiting = failed
            self._recover(commands, [(at, replies[at]) for at in failed])
        return replies

    def _send(self, commands: list[_Command], waiting: list[int], replies: list[Any]) -> None:
        by_client: dict[Host | None, list[int]] = {}
        for at in waiting:
            by_client.setdefault(self._place_of(commands[at][0]), []).append(at)
        for place, mine in by_client.items():
            pipeline = self._client(place).pipeline(transaction=False)
            for at in mine:
                pipeline.execute_command(*commands[at][1])  # type: ignore[no-untyped-call]
            for at, reply in zip(mine, pipeline.execute(raise_on_error=False), strict=True):
                replies[at] = reply

    def _recover(self, commands: list[_Command], failed: list[tuple[int, Exception]]) -> None:
        if any(is_redirection(error) for _, error in failed):
            self.close()  # a demoted master is left, a cluster is asked anew
            self._ranges = []
            return
        for place in {self._place_of(commands[at][0]) for at, _ in failed}:
            try:
                _raw(self._client(place), "FUNCTION LOAD", library().source)
            except NoPermissionError:
                raise StoreUnavailable(missing(self._address.shown)) from None
            except ResponseError as error:
                if "already exists" not in str(error):
                    raise

    def _place_of(self, key: str) -> Host | None:
        if self._address.mode != "cluster":
            return None
        if not self._ranges:
            self._ranges = self._ask_cluster()
        return host_of(self._ranges, key)

    def _ask_cluster(self) -> Ranges:
        failure: Exception | None = None
        for host in self._address.hosts:
            try:
                return ranges_of(_raw(self._client(host), "CLUSTER SLOTS"), host)
            except redis.RedisError as error:
                failure = error
        raise failure or ConfigError("the store URL names no host")

    def _client(self, place: Host | None) -> redis.Redis:
        if place not in self._clients:
            self._clients[place] = self._connect(place)
        return self._clients[place]

    def _connect(self, place: Host | None) -> redis.Redis:
        address = self._address
        patience_s = min(_PATIENCE_S, address.timeout_s)
        options: dict[str, Any] = {
            **address.credentials(),
            "db": address.database,
            "protocol": 2,
            "socket_timeout": patience_s,
            "socket_connect_timeout": min(patience_s, address.connect_timeout_s),
            "retry": Retry(NoBackoff(), 0),
            "driver_info": None,
            "ssl": address.tls,
            **address.tls_arguments(),
        }
        if address.mode == "sentinel":
            theirs = sentinel_options(address)
            sentinel: Any = Sentinel(list(address.hosts), sentinel_kwargs=theirs)  # type: ignore[no-untyped-call]
            client: redis.Redis = sentinel.master_for(address.service, **options)
            return client
        if address.socket:
            return redis.Redis(unix_socket_path=address.socket, **options)
        host, port = place or address.hosts[0]
        return redis.Redis(host=host, port=port, **options)


def _raw(client: redis.Redis, command: str, *arguments: bytes) -> Any:
    """A command's reply without the driver's own view of it."""
    client.response_callbacks.pop(command, None)
    return client.execute_command(command, *arguments)  # type: ignore[no-untyped-call]


def _parts(pulse: Pulse, number: int) -> Iterator[tuple[tuple[HeldCall, ...], tuple[str, ...]]]:
    """A partition's renewals in calls of bearable size; the first one has its ownerships."""
    calls, owned = pulse.calls.get(number, ()), pulse.owned.get(number, ())
    for at in range(0, max(1, len(calls)), RENEWALS_A_CALL):
        yield calls[at : at + RENEWALS_A_CALL], owned if at == 0 else ()


def _renewal(
    base: str, pulse: Pulse, owned: tuple[str, ...], calls: Iterable[HeldCall]
) -> tuple[Any, ...]:
    held = [
        field
        for call in calls
        for field in (call.run_id, call.request_id, call.attempt, call.lease_ttl_ms)
    ]
    return (
        "FCALL", library().function("pulse"), 1, base, pulse.worker, pulse.ttl_ms,
        len(owned), *owned, len(held) // 4, *held, len(pulse.apps), *pulse.apps,
    )  # fmt: skip


def _member(key: str, pulse: Pulse) -> tuple[Any, ...]:
    return (
        "FCALL", library().function("member"), 1, key,
        pulse.worker, pulse.ttl_ms, "\n".join(pulse.apps), pulse.info or b"",
    )  # fmt: skip


def _workers(pulse: Pulse, fields: list[bytes]) -> dict[str, tuple[str, ...]]:
    texts = [field.decode() for field in fields]
    live = [(name, apps.split("\n")) for name, apps in zip(texts[::2], texts[1::2], strict=True)]
    return {app: tuple(sorted(name for name, of in live if app in of)) for app in pulse.apps}


def _merge(beat: PartitionBeat, calls: tuple[HeldCall, ...], fields: list[bytes]) -> None:
    """Add one call's reply: lost apps, a letter for each lease, hot, next expiry."""
    lost = int(fields[0])
    beat.lost_apps += (app.decode() for app in fields[1 : 1 + lost])
    letters, hot, expiry = fields[1 + lost :]
    for call, letter in zip(calls, letters.decode(), strict=True):
        if letter == "l":
            beat.lost_calls.append(call)
        elif letter == "c":
            beat.cancelled.append(call)
    beat.hot = beat.hot or hot == b"1"
    if expiry:
        known = beat.next_expiry_ms
        beat.next_expiry_ms = int(expiry) if known is None else min(known, int(expiry))
