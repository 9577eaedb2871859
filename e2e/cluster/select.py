"""Which kind of cluster this machine gets."""

import os
import shutil

from cluster.interface import Cluster
from cluster.kind import KindCluster
from cluster.native import NativeCluster
from cluster.shell import ClusterError, succeeds


def here() -> Cluster:
    """kind where Docker answers, else a native cluster; `AAA_E2E_CLUSTER_KIND` decides otherwise."""
    wanted = os.environ.get("AAA_E2E_CLUSTER_KIND") or ("kind" if _docker_runs() else "native")
    if wanted == "kind":
        return KindCluster.here()
    if wanted == "native":
        return NativeCluster.here()
    raise ClusterError(f"AAA_E2E_CLUSTER_KIND is kind or native, not {wanted}")


def _docker_runs() -> bool:
    return shutil.which("docker") is not None and succeeds(["docker", "info"], timeout_s=20)
