"""HTTP servers of the process: one small application a port, all of them bounded."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from aiohttp import web

log = logging.getLogger("aaa.operator")

#: Seconds that answers in flight get when the process ends.
_SHUTDOWN_S: Final = 2.0
#: Nobody sends us a body.
MAX_BODY_BYTES: Final = 1_024


def application() -> web.Application:
    """An application that takes no bodies."""
    return web.Application(client_max_size=MAX_BODY_BYTES)


async def serve(
    stack: AsyncExitStack, apps: Sequence[tuple[int, web.Application]], *, host: str | None = None
) -> list[int]:
    """Serve each application on its port (0: any) until the stack closes. The ports."""
    ports = []
    for port, app in apps:
        runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=_SHUTDOWN_S
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, host=host, port=port)
        await site.start()
        ports.append(int(runner.addresses[0][1]))
    return ports
