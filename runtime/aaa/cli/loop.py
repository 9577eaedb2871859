"""Commands are coroutines; the event loop is loaded only when one runs, so that help is quick."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any


def run(command: Coroutine[Any, Any, int]) -> int:
    """Run a command's coroutine to its exit code."""
    import asyncio

    return asyncio.run(command)
