"""A native cluster leaves nothing on the machine, however its harness ended.

Taken out of the shared cluster's tests: these take it down, and put it up again for the others.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import Cluster
from cluster.native import NativeCluster
from cluster.paths import E2E, MARKER
from cluster.shell import Progress, run, wait_until
from cluster.traces import of_cluster
from workloads import web


@pytest.fixture
def native(cluster: Cluster) -> Iterator[NativeCluster]:
    """The cluster, taken down; up again afterwards."""
    assert isinstance(cluster, NativeCluster), "kind takes down its own containers"
    cluster.down(Progress())
    # Whatever ran before on this machine, the kubelet will want other values than these.
    found = {each: each.read_text() for each in _SETTINGS}
    for setting in _SETTINGS:
        setting.write_text("0")
    yield cluster
    cluster.down(Progress())
    for setting, value in found.items():
        setting.write_text(value)
    cluster.up(Progress())


def seen(state: Path) -> dict[str, object]:
    """What this machine shows from outside, without the harness's own way of looking."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    marked = 0
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            marked += f"{MARKER}=".encode() in environ.read_bytes()
        except OSError:
            continue
    folders = (Path(where) for where, _, _ in os.walk("/sys/fs/cgroup"))
    return {
        "mounts": sorted(line.split()[1] for line in mounts),
        "interfaces": sorted(line.split(":")[1] for line in run(["ip", "-o", "link"]).splitlines()),
        "routes": run(["ip", "route"]),
        "packet filter": run(["nft", "list", "ruleset"]),
        "cgroups": [each for each in folders if "aaa-e2e" in str(each) or "kube" in each.name],
        "processes": marked,
        "settings": [each.read_text() for each in _SETTINGS],
        "folders": [each for each in _PLACES if Path(each).exists()] + [state.exists()],
    }


_SETTINGS = tuple(
    Path("/proc/sys") / each for each in ("vm/overcommit_memory", "kernel/panic_on_oops")
)
_PLACES = (
    "/run/containerd",
    "/run/netns",
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/var/log/pods",
    "/var/log/containers",
    "/opt/containerd",
    "/opt/cni",
    "/etc/cni/net.d",
    "/etc/kubernetes",
)


def test_a_cluster_with_a_running_and_a_stopped_pod_goes_without_a_trace(
    native: NativeCluster, python_image: str
) -> None:
    before = seen(native.state)
    native.up(Progress())
    native.load_image(native.archive(python_image))
    native.kubectl.apply(*web("left", python_image, replicas=2))
    pods = native.kubectl.wait_ready("app=left", count=2)
    native.pods.stop(pods[0]["metadata"]["name"])
    native.down(Progress())
    assert seen(native.state) == before
    assert of_cluster(native.state) == []


def test_what_a_killed_harness_has_started_is_taken_down_by_the_next(
    native: NativeCluster,
) -> None:
    before = seen(native.state)
    # The tests hold the machine's lock, so the harness is started below it.
    script = "from cluster import here; from cluster.shell import Progress; here().up(Progress())"
    harness = subprocess.Popen(
        [sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": str(E2E)}
    )
    first = native.node("node-1")
    wait_until(lambda: first.is_running("kubelet"), what="a kubelet", timeout_s=120)
    harness.send_signal(signal.SIGKILL)
    harness.wait(timeout=10)
    # Not even the pid file of the node's first process need have been written.
    (first.folder / "pid").unlink()
    native.down(Progress())
    assert seen(native.state) == before
    assert of_cluster(native.state) == []
