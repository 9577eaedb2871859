"""Every backend answers every case of the shipped suite alike."""

from __future__ import annotations

import asyncio

import pytest

pytest.register_assert_rewrite("aaa.testing")

from aaa.testing.conformance import CASES, Case  # noqa: E402
from conformance.backends import BACKENDS  # noqa: E402

PARAMS = [
    pytest.param(case, id=case.name, marks=pytest.mark.guarantee(*case.guarantees))
    for case in CASES
]


@pytest.mark.parametrize("backend", list(BACKENDS))
@pytest.mark.parametrize("case", PARAMS)
async def test_a_backend_answers_as_the_port_says(
    backend: str, case: Case, request: pytest.FixtureRequest
) -> None:
    async with BACKENDS[backend](request) as harness, asyncio.timeout(30):
        await case.run(harness)
