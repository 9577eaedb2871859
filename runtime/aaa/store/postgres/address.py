"""A store URL, taken apart: what is libpq's goes to libpq, what is ours is checked here."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from urllib.parse import parse_qsl, urlencode, urlsplit

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from aaa.errors import ConfigError

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_MOST_CONNECTIONS = 64
_MOST_PARTITIONS = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the store is. Its ``repr`` shows no password."""

    conninfo: str = field(repr=False)
    schema: str = "aaa"
    pool: int = 4
    partitions: int | None = None
    #: Gives the URL as it is now, where it can change.
    latest: Callable[[], str] | None = field(default=None, repr=False, compare=False)

    def login(self) -> str:
        """The connection string with the user and password of now; the rest is as it was opened."""
        if self.latest is None:
            return self.conninfo
        try:
            now = conninfo_to_dict(parse(self.latest()).conninfo)
        except (OSError, ConfigError):  # in the middle of a change; the old ones may still do
            return self.conninfo
        said = {name: now[name] for name in ("user", "password") if name in now}
        return make_conninfo(self.conninfo, **said)

    @property
    def lock_class(self) -> int:
        """First half of this schema's advisory locks: a database may hold several stores."""
        digest = blake2b(self.schema.encode(), digest_size=4, person=b"aaa-pg-lock-v1").digest()
        return int.from_bytes(digest, "big", signed=True)

    @property
    def sleep_class(self) -> int:
        """As :attr:`lock_class`, for those who fall asleep."""
        digest = blake2b(self.schema.encode(), digest_size=4, person=b"aaa-pg-sleep-v1").digest()
        return int.from_bytes(digest, "big", signed=True)

    @property
    def channel(self) -> str:
        """The channel of this schema's notifications."""
        return f"aaa_{self.schema}"


def parse(url: str, *, latest: Callable[[], str] | None = None) -> Address:
    """Read ``postgresql://…?schema=aaa&pool=4&partitions=64``. Raises :class:`ConfigError`.

    All other parameters are libpq's own (``sslmode``, ``connect_timeout``, ``target_session_attrs``
    …); a list of hosts works too.
    """
    parts = urlsplit(url)
    ours, theirs = {}, []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in ("schema", "pool", "partitions"):
            ours[name] = value
        else:
            theirs.append((name, value))
    conninfo = parts._replace(scheme="postgresql", query=urlencode(theirs)).geturl()
    try:
        conninfo_to_dict(conninfo)
    except ProgrammingError:
        # The driver's own message may repeat the URL, password included.
        raise ConfigError("the Postgres URL cannot be read: check its parameters") from None
    schema = ours.get("schema", "aaa")
    if not _SCHEMA.fullmatch(schema):
        raise ConfigError(
            f"schema {schema!r} in the Postgres URL must be 1 to 48 of a-z, 0-9 and '_', "
            "beginning with no digit"
        )
    partitions = ours.get("partitions")
    return Address(
        conninfo=conninfo,
        schema=schema,
        pool=_number("pool", ours.get("pool", "4"), _MOST_CONNECTIONS),
        partitions=None if partitions is None else check_partitions(partitions),
        latest=latest,
    )


def check_partitions(value: int | str) -> int:
    """A number of partitions that a store can be laid out with."""
    return _number("partitions", str(value), _MOST_PARTITIONS)


def _number(name: str, value: str, most: int) -> int:
    if not (value.isascii() and value.isdecimal() and 1 <= int(value) <= most):
        raise ConfigError(f"{name} {value!r} in the Postgres URL must be from 1 to {most}")
    return int(value)
