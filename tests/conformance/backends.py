"""One factory a backend: an async context manager that gives an empty store in a harness.

A factory may ask pytest for the fixtures that it needs (a server's address) by name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from aaa.testing.harness import Harness, MemoryHarness
from conformance.postgres_harness import PostgresHarness

Factory = Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[Harness]]


@asynccontextmanager
async def memory(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    harness = MemoryHarness()
    await harness.store.open()
    try:
        yield harness
    finally:
        await harness.close()


@asynccontextmanager
async def postgres(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    harness = PostgresHarness(request.getfixturevalue("postgres_url"))
    await harness.store.open()
    try:
        yield harness
    finally:
        await harness.close()


BACKENDS: dict[str, Factory] = {"memory": memory, "postgres": postgres}
