"""Both helms, for every test that takes one."""

import shutil
from collections.abc import Iterator

import pytest

from chart.rendering import Flavour, Helm
from cluster import binaries

FLAVOURS: tuple[Flavour, ...] = ("helm", "helm4")


@pytest.fixture(scope="session", params=FLAVOURS)
def helm(request: pytest.FixtureRequest) -> Iterator[Helm]:
    """Helm 3, then Helm 4: both must take the chart alike."""
    made = Helm(request.param)
    binaries.program(made.flavour)
    yield made
    shutil.rmtree(made.home, ignore_errors=True)
