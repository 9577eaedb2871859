"""Users of a shared server, one for each store on it: what keeps tenants apart.

Whoever opened the store must be allowed ``ACL SETUSER``, ``GETUSER`` and ``DELUSER``. A user is one
server's own: replicas do not copy it, and without an ``aclfile`` a restart forgets it. So users are
compared with what they should be again and again, on every master, and set where they differ; both
can be repeated at any time. What goes over the wire is a password's digest, never the password.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aaa.store.redis.failures import driver_errors
from aaa.store.redis.link import packed
from aaa.store.redis.nodes import Nodes
from aaa.store.redis_acl import acl_rule


class RedisUsers:
    """The users of one store: each reaches what begins with ``prefix`` and nothing else.

    Every method raises :class:`AccessRefused` where the store's own user may not do this, and
    :class:`StoreUnavailable`; then some masters may have been reached and others not.
    """

    def __init__(self, nodes: Nodes, *, prefix: str, where: str) -> None:
        self._nodes, self._prefix, self._where = nodes, prefix, where

    async def admitted(self, name: str, digests: Sequence[str]) -> bool:
        """Whether every master knows the user as :meth:`admit` would set it."""
        return all(self._fits(one, digests) for one in await self._ask("GETUSER", name))

    async def admit(self, name: str, digests: Sequence[str]) -> None:
        """Let a worker in under this name with any of these passwords, and with no other.

        ``digests`` as :func:`aaa.client.password_digest` gives them. Connections that stand stay,
        whatever password they came with.
        """
        passwords = [f"#{digest}" for digest in digests]
        await self._ask("SETUSER", name, "reset", "on", *passwords, *acl_rule(self._prefix))

    async def expel(self, name: str) -> None:
        """Remove the user, if it is there, and end its connections."""
        await self._ask("DELUSER", name)

    def _fits(self, reply: Any, digests: Sequence[str]) -> bool:
        if reply is None:
            return False
        found = {_text(key): value for key, value in zip(reply[::2], reply[1::2], strict=True)}
        keys, channels, *commands = acl_rule(self._prefix)[2:]
        return (
            "on" in map(_text, found["flags"])
            and {*map(_text, found["passwords"])} == {*digests}
            and {*_text(found["commands"]).split()} == {*commands}
            and (_text(found["keys"]), _text(found["channels"])) == (keys, channels)
            and not found["selectors"]
        )

    async def _ask(self, *words: str) -> list[Any]:
        command = packed(word.encode() for word in ("ACL", *words))
        with driver_errors(self._where):
            return [(await link.call(command))[1] for link in await self._nodes.masters()]


def _text(value: Any) -> str:
    return bytes(value).decode()
