"""What a test cluster offers to the tests, whichever way it runs."""

from pathlib import Path
from typing import Protocol

from cluster.faults import NodeShell, PodFaults
from cluster.images import Base
from cluster.kubectl import Kubectl
from cluster.shell import Progress


class Cluster(Protocol):
    """A running cluster. Failures of any verb are `ClusterError`s."""

    def up(self, progress: Progress) -> None:
        """Start the cluster, unless a healthy one of this version runs already."""

    def down(self, progress: Progress) -> None:
        """Take down whatever is there, also what a crashed run left, without a trace."""

    def is_running(self) -> bool:
        """Whether a healthy cluster of this version runs."""

    @property
    def kubectl(self) -> Kubectl:
        """kubectl as the cluster's administrator."""

    @property
    def pods(self) -> PodFaults:
        """Verbs that stop, thaw, kill and cut off pods."""

    @property
    def host_ip(self) -> str:
        """Where pods reach servers that listen on this machine."""

    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""

    def nodes(self) -> list[str]:
        """The nodes' names, the one with the API server first."""

    def node(self, name: str) -> NodeShell:
        """A way to run programs inside a node."""

    def base_image(self, wanted: Base) -> str:
        """Have a base image in every node; returns the name that pods and Dockerfiles use."""

    def load_image(self, image: Path | str) -> None:
        """Put an image into every node: an archive by its path, a built one by its name."""

    def build_image(
        self,
        context: Path,
        *,
        name: str,
        dockerfile: Path,
        target: str | None = None,
        arguments: dict[str, str] | None = None,
    ) -> str:
        """Build a Dockerfile, on the base images asked for before, and load the result."""

    def local_volume(self, name: str, *, size: str = "1Gi") -> Path:
        """Make a classless `local` PersistentVolume; returns its folder on the first node."""

    def stop_kubelet(self, node: str | None = None) -> None:
        """End a node's kubelet; its pods go on running. The first node if none is named."""

    def start_kubelet(self, node: str | None = None) -> None:
        """Undo `stop_kubelet`."""

    def add_node(self) -> str:
        """Add a node and wait until it is Ready; returns its name."""

    def remove_node(self, name: str) -> None:
        """Take away a node that was added, with everything that runs on it."""

    def unplug(self, node: str) -> None:
        """Cut a node off from the network."""

    def plug(self, node: str) -> None:
        """Undo `unplug`."""
