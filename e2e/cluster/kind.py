"""The cluster where Docker runs: kind, with its nodes as containers.

Base images come from Docker's registry. Faults are the same programs as elsewhere, run inside a
node's container.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster import binaries, images
from cluster.faults import PodFaults
from cluster.kubectl import Kubectl
from cluster.native import local_volume
from cluster.paths import E2E, cache_dir
from cluster.shell import ClusterError, Progress, run

_NAME = "aaa-e2e"
_FIRST = f"{_NAME}-control-plane"
_BASES = {images.PYTHON.name: "python:3.11-slim", images.REDIS.name: "redis:7"}


@dataclass(frozen=True)
class KindNode:
    """A node's container."""

    name: str

    def run(
        self, argv: Sequence[str | Path], *, timeout_s: float = 60.0, stdin: str | None = None
    ) -> str:
        words = ["docker", "exec", "--interactive", self.name, *argv]
        return run(words, timeout_s=timeout_s, stdin=stdin)


@dataclass(frozen=True)
class KindCluster:
    """The cluster that kind knows by the project's name."""

    folder: Path

    @classmethod
    def here(cls) -> "KindCluster":
        """The one cluster of this machine, running or not."""
        # No root is needed here, so the state lies where every person may write.
        return cls(cache_dir() / "kind")

    def up(self, progress: Progress) -> None:
        """Create the cluster, unless it is there."""
        if self.is_running():
            progress.say("already running")
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        config = ["--config", str(E2E / "kind.yaml"), "--kubeconfig", str(self.kubeconfig())]
        progress.say("kind creates the cluster")
        self._kind("create", "cluster", *config, "--wait", "120s", timeout_s=900)
        progress.say(f"ready: export KUBECONFIG={self.kubeconfig()}")

    def down(self, progress: Progress) -> None:
        """Delete the cluster."""
        if self.is_running():
            progress.say("taking down")
            kubeconfig = ["--kubeconfig", str(self.kubeconfig())]
            self._kind("delete", "cluster", "--name", _NAME, *kubeconfig, timeout_s=300)
        self.kubeconfig().unlink(missing_ok=True)

    def is_running(self) -> bool:
        """Whether kind knows a cluster of this name."""
        return _NAME in self._kind("get", "clusters").split()

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(binaries.program("kubectl"), self.kubeconfig())

    @property
    def pods(self) -> PodFaults:
        return PodFaults(self.kubectl, self.node)

    @property
    def host_ip(self) -> str:
        networks = json.loads(run(["docker", "network", "inspect", "kind"]))
        gateways = [each.get("Gateway", "") for each in networks[0]["IPAM"]["Config"]]
        return next(str(each) for each in gateways if "." in each)

    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def nodes(self) -> list[str]:
        found = self._kind("get", "nodes", "--name", _NAME).split()
        return sorted(found, key=lambda name: (name != _FIRST, name))

    def node(self, name: str) -> KindNode:
        return KindNode(name)

    def base_image(self, wanted: images.Base) -> str:
        name = _BASES[wanted.name]
        run(["docker", "pull", name], timeout_s=600)
        self.load_image(name)
        return name

    def load_image(self, image: Path | str) -> None:
        what = "image-archive" if isinstance(image, Path) else "docker-image"
        self._kind("load", what, str(image), "--name", _NAME, timeout_s=600)

    def build_image(
        self,
        context: Path,
        *,
        name: str,
        dockerfile: Path,
        target: str | None = None,
        arguments: dict[str, str] | None = None,
    ) -> str:
        words = ["docker", "build", "-f", str(dockerfile), "-t", name]
        words += ["--target", target] if target else []
        for option, value in (arguments or {}).items():
            words += ["--build-arg", f"{option}={value}"]
        run([*words, str(context)], timeout_s=1800)
        self.load_image(name)
        return name

    def local_volume(self, name: str, *, size: str = "1Gi") -> Path:
        folder = Path("/var/local/e2e") / name
        script = 'mkdir -p "$0" && chmod 777 "$0"'
        self.node(_FIRST).run(["sh", "-c", script, str(folder)])
        self.kubectl.apply(local_volume(name, folder=folder, size=size, node=_FIRST))
        return folder

    def stop_kubelet(self, node: str | None = None) -> None:
        self.node(node or _FIRST).run(["systemctl", "stop", "kubelet"])

    def start_kubelet(self, node: str | None = None) -> None:
        self.node(node or _FIRST).run(["systemctl", "start", "kubelet"])

    def add_node(self) -> str:
        """kind makes all nodes at the start: the one that is there besides the first."""
        others = [name for name in self.nodes() if name != _FIRST]
        if not others:
            raise ClusterError(f"{E2E / 'kind.yaml'} names no second node")
        self.kubectl("uncordon", others[0])
        return others[0]

    def remove_node(self, name: str) -> None:
        self.kubectl("cordon", name)

    def unplug(self, node: str) -> None:
        run(["docker", "network", "disconnect", "kind", node])

    def plug(self, node: str) -> None:
        run(["docker", "network", "connect", "kind", node])

    def _kind(self, *words: str, timeout_s: float = 60.0) -> str:
        return run([binaries.program("kind"), *words], timeout_s=timeout_s)
