"""A store and a scene in a database of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from aaa.testing.scene import Scene
from conformance.postgres_harness import PostgresHarness


@pytest.fixture
async def harness(postgres_url: str) -> AsyncIterator[PostgresHarness]:
    harness = PostgresHarness(postgres_url)
    await harness.store.open()
    yield harness
    await harness.close()


@pytest.fixture
async def scene(harness: PostgresHarness) -> AsyncIterator[Scene]:
    scene = Scene(harness)
    yield scene
    await scene.close()
