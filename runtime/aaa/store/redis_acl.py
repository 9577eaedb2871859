"""What a user of the Redis store may do: one rule for the server, generated and tested here.

A worker's user reaches the keys and channels of one prefix. It may *call* the server-side functions
and not load them: a function runs with its caller's rights but is shared by all users of a server,
so whoever may load one could replace the code that other tenants run. Somebody else loads them, by
opening the store once with the same version of AAA as a user who may (the operator does).
"""

from __future__ import annotations

from typing import Final

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
