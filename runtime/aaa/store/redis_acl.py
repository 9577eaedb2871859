"""What a user of the Redis store may do, and how tenants share a server: generated and tested here.

A worker's user reaches the keys and channels of one prefix. It may *call* the server-side functions
and not load them: a function runs with its caller's rights but is shared by all users of a server,
so whoever may load one could replace the code that other tenants run. Somebody else loads them, by
opening the store once with the same version of AAA as a user who may (the operator does).
"""

from __future__ import annotations

import hashlib
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from aaa.errors import ConfigError

#: What a worker sends itself.
_SENT: Final = (
    "ping", "select", "fcall", "fcall_ro", "info", "wait", "cluster|slots", "ssubscribe",
)  # fmt: skip
#: What the server-side functions use on their caller's behalf.
_CALLED: Final = (
    "time", "del", "exists", "hdel", "hget", "hgetall", "hkeys", "hlen", "hmget", "hset", "lindex",
    "lrange", "rpush", "sadd", "smembers", "srem", "spublish", "zadd", "zrange", "zrangebyscore",
    "zrem", "zrevrange",
)  # fmt: skip
#: For a user who looks after a store of its own: loads the functions, reads durability settings.
_OWNER: Final = ("function|load", "config|get")


def acl_rule(prefix: str, *, owner: bool = False) -> list[str]:
    """The arguments of ``ACL SETUSER <name> on >password …`` for the store under ``prefix``.

    They replace whatever the user could do before. ``owner`` adds loading the functions and reading
    the server's settings, which shows its passwords: for a server that nobody else uses.
    """
    commands = (*_SENT, *_CALLED, *(_OWNER if owner else ()))
    return [
        "resetkeys",
        "resetchannels",
        f"~{prefix}*",
        f"&{prefix}*",
        "-@all",
        *(f"+{command}" for command in commands),
    ]


def tenant_url(url: str, tenant: str, *, user: str = "", password: str = "") -> str:
    """The URL of a tenant's own store on the server of ``url``: its keys begin with the prefix of
    ``url`` (``aaa:`` if it has none) and ``<tenant>:``.

    With ``user`` and ``password`` it is opened as that user, else as the one of ``url``. Raises
    :class:`ConfigError` for a store that has no users.
    """
    parts = urlsplit(url)
    if parts.scheme.lower().partition("+")[0] not in ("redis", "rediss"):
        raise ConfigError(
            f"a store of {parts.scheme}: cannot be shared by tenants, who would reach each other's "
            "runs; only Redis and Valkey have users that are limited to a prefix"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    options["prefix"] = f"{options.get('prefix', 'aaa:')}{tenant}:"
    place = parts.netloc
    if user:
        place = f"{quote(user, safe='')}:{quote(password, safe='')}@{place.rpartition('@')[2]}"
    return parts._replace(netloc=place, query=urlencode(options, safe=":/,")).geturl()


def password_digest(password: str) -> str:
    """How a server keeps a password: the 64 hex digits of its SHA-256, safe for long random ones."""
    return hashlib.sha256(password.encode()).hexdigest()
