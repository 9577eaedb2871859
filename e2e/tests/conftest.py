"""The cluster that the end-to-end tests share.

One that ran before the tests is used and left running; otherwise it goes when they end.
"""

from collections.abc import Iterator

import pytest

from cluster import Cluster, here
from cluster.images import PYTHON
from cluster.lock import locked
from cluster.shell import Progress


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with locked("cluster", timeout_s=600):
        found, progress = here(), Progress()
        kept = found.is_running()
        found.up(progress)
        try:
            yield found
        finally:
            if not kept:
                found.down(progress)


@pytest.fixture(scope="session")
def python_image(cluster: Cluster) -> str:
    return cluster.base_image(PYTHON)
