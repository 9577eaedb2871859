"""A world for each test, closed after it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from guarantees.world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.close()
