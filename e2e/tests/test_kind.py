"""kind's own program accepts the cluster's file, also on a machine where no Docker runs.

A stand-in for `docker` answers what kind asks first, and fails at the first thing that would need a
container engine: by then kind has read and judged the file.
"""

import os
import subprocess
from pathlib import Path

from cluster import binaries
from cluster.paths import E2E

_DOCKER = """#!/bin/sh
case "$1" in
  -v) echo "Docker version 28.0.0, build 0" ;;
  ps) ;;
  info) echo '{"CgroupDriver":"systemd","CgroupVersion":"2","MemoryLimit":true,"PidsLimit":true}' ;;
  *) exit 1 ;;
esac
"""


def create(folder: Path, config: Path) -> str:
    """What kind says to a cluster file before it starts a node."""
    docker = folder / "docker"
    docker.write_text(_DOCKER)
    docker.chmod(0o755)
    words = ["create", "cluster", "--config", str(config)]
    words += ["--kubeconfig", str(folder / "kubeconfig")]
    env: dict[str, str] = os.environ | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "KIND_EXPERIMENTAL_PROVIDER": "",
    }
    done = subprocess.run(
        [str(binaries.program("kind")), *words],
        check=False,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stderr


def test_kind_accepts_the_cluster_file_and_goes_on_to_the_nodes_image(tmp_path: Path) -> None:
    said = create(tmp_path, E2E / "kind.yaml")
    assert "failed to pull image" in said
    assert "invalid" not in said


def test_kind_would_have_refused_a_wrong_cluster_file(tmp_path: Path) -> None:
    wrong = tmp_path / "kind.yaml"
    wrong.write_text((E2E / "kind.yaml").read_text().replace("role: worker", "role: waiter"))
    assert '"waiter" is not a valid node role' in create(tmp_path, wrong)
