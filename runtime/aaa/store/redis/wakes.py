"""Hints from other processes that a partition has work: one listening connection a master.

A hint that is lost only delays work until somebody looks by himself. So a broken connection is
made again without hurry, and nothing is reported.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as DriverTimeoutError

from aaa.clock import Clock
from aaa.store.redis.address import Address
from aaa.store.redis.link import packed
from aaa.store.redis.nodes import Nodes

#: An idle connection is asked whether it lives so often.
_QUIET_S: Final = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


class Wakes:
    """Listens to every partition's channel and calls ``wake(partition)``.

    ``own`` are the words that this process puts into its own hints; these are left out, since it
    wakes itself.
    """

    def __init__(
        self,
        address: Address,
        nodes: Nodes,
        *,
        partitions: int,
        own: Collection[bytes],
        wake: Callable[[int], None],
        clock: Clock,
    ) -> None:
        self._nodes, self._own, self._wake, self._clock = nodes, own, wake, clock
        self._channels = {
            f"{address.base(number)}wake".encode(): number for number in range(partitions)
        }
        self._bases = [address.base(number) for number in range(partitions)]
        self._task = asyncio.create_task(self._listen_for_good())
        #: Set once every channel is listened to.
        self.listening = asyncio.Event()

    async def close(self) -> None:
        """Stop listening."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _listen_for_good(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            with suppress(RedisError, OSError, EOFError):
                await self._listen()
            if self.listening.is_set():
                pause_s = _FIRST_PAUSE_S
            self.listening.clear()
            await self._clock.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)
            with suppress(RedisError, OSError, EOFError):
                await self._nodes.look_again()

    async def _listen(self) -> None:
        """Listen until any of the connections breaks."""
        connections: dict[object, tuple[AbstractConnection, list[bytes]]] = {}
        try:
            for base in self._bases:
                place = await self._nodes.place_of(base)
                if place not in connections:
                    connections[place] = (await self._nodes.connect_to(place), [])
                connections[place][1].append(f"{base}wake".encode())
            waiting = len(self._bases)

            def confirmed() -> None:
                nonlocal waiting
                waiting -= 1
                if waiting == 0:
                    self.listening.set()

            async with asyncio.TaskGroup() as group:
                for connection, channels in connections.values():
                    group.create_task(self._follow(connection, channels, confirmed))
        except* (RedisError, OSError, EOFError):
            pass
        finally:
            for connection, _ in connections.values():
                with suppress(Exception):
                    await connection.disconnect(nowait=True)

    async def _follow(
        self,
        connection: AbstractConnection,
        channels: list[bytes],
        confirmed: Callable[[], None],
    ) -> None:
        # One command a channel: in a cluster the channels of one command must share a slot.
        commands = b"".join(packed((b"SSUBSCRIBE", channel)) for channel in channels)
        await connection.send_packed_command([commands], check_health=False)
        asked = False
        while True:
            try:
                async with asyncio.timeout(_QUIET_S):
                    message: Any = await connection.read_response(
                        disable_decoding=True, timeout=math.inf, disconnect_on_error=False
                    )
            except TimeoutError:
                if asked:
                    raise DriverTimeoutError("the connection is dead") from None
                asked = True
                await connection.send_packed_command([packed((b"PING",))], check_health=False)
                continue
            asked = False
            match message:
                case [b"smessage", channel, word]:
                    if word not in self._own:
                        self._wake(self._channels[channel])
                case [b"ssubscribe", *_]:
                    confirmed()
                case [b"sunsubscribe", *_]:  # the slot has moved to another node
                    raise ResponseError("a channel has moved")
                case _:
                    pass
