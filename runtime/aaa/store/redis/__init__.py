"""The Redis store: Redis 7 or newer, Valkey 8 or newer, alone, behind Sentinel, or as a cluster.

One server-side function call does a whole batch of operations of a partition atomically; the Lua
files beside this one are the library, and mirror :mod:`aaa.store.logic` function by function.
"""

from __future__ import annotations

from aaa.store.redis.store import RedisEventStore

__all__ = ["RedisEventStore"]
