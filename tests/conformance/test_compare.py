"""Every backend answers random operations as the reference model does."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytest.register_assert_rewrite("aaa.testing")

from aaa.testing.compare import KINDS, Move, compare, moves  # noqa: E402
from aaa.testing.harness import MemoryHarness  # noqa: E402
from conformance.backends import BACKENDS, SQLiteHarness  # noqa: E402

MOVES = st.builds(
    Move,
    st.sampled_from(KINDS),
    st.integers(0, 2),
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(0, 63),
)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "memory"])
async def test_a_backend_answers_random_operations_as_the_model_does(
    backend: str, seed: int, request: pytest.FixtureRequest
) -> None:
    async with BACKENDS[backend](request) as harness, asyncio.timeout(60):
        await compare(harness, moves(seed, 400))


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(MOVES, min_size=5, max_size=60))
def test_the_shortest_disagreement_of_sqlite_with_the_model_is_found(
    steps: list[Move], tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def play() -> None:
        harness = SQLiteHarness(tmp_path_factory.mktemp("compare") / "store.db")
        await harness.store.open()
        try:
            await compare(harness, steps)
        finally:
            await harness.close()

    asyncio.run(play())


async def test_the_comparison_itself_notices_a_difference() -> None:
    class Forgetful(MemoryHarness):
        async def lose_lease(self, worker: str) -> None:
            """No lease ever ends."""

    with pytest.raises(AssertionError, match="model"):
        await compare(Forgetful(), moves(1, 200))
