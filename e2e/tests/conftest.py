"""What the end-to-end tests share: the cluster, the release in it, and the world outside.

What ran before the tests is used and left running; otherwise it goes when they end.
"""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

import release as product
from cluster import Cluster, here
from cluster.images import PYTHON
from cluster.lock import locked
from cluster.shell import Progress
from ledger import Ledger, Server
from release import Release
from runs import Scene, path_of, short


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


@pytest.fixture(scope="session")
def images(cluster: Cluster) -> product.Images:
    return product.images(cluster)


@pytest.fixture(scope="session")
def installed(cluster: Cluster, images: product.Images) -> Release:
    """The release, installed with defaults. An older one of the same name is upgraded."""
    release = Release(cluster, images)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": release.namespace}}
    cluster.kubectl.apply(namespace)
    if release.is_installed():
        release.upgrade()
    else:
        if not release.all_of("persistentvolumeclaims"):
            cluster.local_volume(f"{release.namespace}-redis", size="8Gi")
        release.install()
    return release


@pytest.fixture(scope="session")
def ledger(cluster: Cluster) -> Iterator[Ledger]:
    with Server(cluster.host_ip) as ledger:
        yield ledger


@pytest.fixture
def scene(installed: Release, ledger: Ledger, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """One test's corner; if the test fails, what there is to see is written down."""
    scene = Scene(installed, ledger, short(request.node.name.removeprefix("test_")))
    yield scene
    if request.node.stash.get(FAILED, False):
        folder = Path(os.environ.get("AAA_E2E_EVIDENCE", "/tmp/aaa-e2e-evidence"))
        where = product.evidence(installed, path_of(folder, request.node.name))
        print(f"\nwhat there was to see is in {where}")
    scene.clear()


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.failed:
        item.stash[FAILED] = True
        folder = os.environ.get("AAA_E2E_EVIDENCE", "/tmp/aaa-e2e-evidence")
        report.sections.append(("evidence", str(path_of(Path(folder), item.name))))
    return report
