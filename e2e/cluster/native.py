"""The cluster where no Docker runs: Kubernetes' own programs in a node made of namespaces.

`up` is idempotent: a healthy cluster made by this version of the harness is left as it is, anything
else is taken down first. `down` needs nothing but fixed names and the state folder, so it also
clears up after a harness that crashed.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster import binaries, cgroups, images, network, requirements, traces
from cluster.components import ControlPlane, NodeServers
from cluster.faults import PodFaults
from cluster.kubectl import Kubectl
from cluster.node import Node, kill_marked
from cluster.paths import E2E, cache_dir, state_dir
from cluster.pki import Authority
from cluster.shell import ClusterError, Hopeless, Progress, succeeds, wait_until

_FIRST = "node-1"
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class NativeCluster:
    """A cluster of `Node`s in one state folder."""

    state: Path

    @classmethod
    def here(cls) -> "NativeCluster":
        """The one cluster of this machine, running or not."""
        return cls(state_dir())

    # --- up and down -----------------------------------------------------------------------

    def up(self, progress: Progress) -> None:
        """Start the cluster, unless a healthy one of this version runs already."""
        requirements.ensure()
        if self.is_running():
            progress.say("already running")
            return
        self.down(progress)
        self._start(progress)

    def down(self, progress: Progress) -> None:
        """Take down whatever is there, and make sure that nothing is left."""
        if not traces.of_cluster(self.state):
            return
        if os.geteuid() != 0:
            raise ClusterError("the cluster belongs to root: take it down as root")
        progress.say("taking down")
        kill_marked(self.state)
        network.remove()
        cgroups.remove()
        traces.restore_kernel_settings(self.state)
        shutil.rmtree(self.state, ignore_errors=True)
        left = traces.of_cluster(self.state)
        if left:
            raise ClusterError(f"the cluster is down, but this is left of it: {'; '.join(left)}")

    def is_running(self) -> bool:
        """Whether every server of a cluster of this version runs and the API answers."""
        version = self.state / "version"
        if not version.exists() or version.read_text() != _version():
            return False
        node = self.node(_FIRST)
        servers = [each.name for each in (node.folder / "pids").glob("*")]
        if not servers or not all(map(node.is_running, servers)):
            return False
        return succeeds(self.kubectl.argv("get", "--raw", "/readyz"), timeout_s=10)

    # --- what tests use --------------------------------------------------------------------

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(binaries.program("kubectl"), self.kubeconfig())

    @property
    def pods(self) -> PodFaults:
        return PodFaults(self.kubectl, self.node)

    @property
    def host_ip(self) -> str:
        return network.HOST_IP

    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    def nodes(self) -> list[str]:
        found = sorted(
            (self.state / "nodes").glob("node-*"), key=lambda each: self._index(each.name)
        )
        return [each.name for each in found]

    def node(self, name: str) -> Node:
        return Node(name, self._index(name), self.state)

    def base_image(self, wanted: images.Base) -> str:
        image = images.base(wanted)
        self.load_image(image.archive)
        return image.name

    def load_image(self, image: Path | str) -> None:
        archive = image if isinstance(image, Path) else self.archive(image)
        for name in self.nodes():
            self._import(self.node(name), archive)

    def archive(self, name: str) -> Path:
        """Where the archive of a base image or of a built image lies."""
        for each in (images.PYTHON, images.REDIS):
            if name == each.tag:
                return images.base(each).archive
        return cache_dir() / "images" / f"built-{name.replace('/', '-').replace(':', '-')}.tar"

    def build_image(
        self,
        context: Path,
        *,
        name: str,
        dockerfile: Path,
        target: str | None = None,
        arguments: dict[str, str] | None = None,
    ) -> str:
        built = images.build(
            context,
            name=name,
            dockerfile=dockerfile,
            archive=self.archive(name),
            target=target,
            arguments=arguments,
            bases=[images.base(images.PYTHON)],
        )
        self.load_image(built.archive)
        return name

    def local_volume(self, name: str, *, size: str = "1Gi") -> Path:
        folder = self.state / "volumes" / name
        folder.mkdir(parents=True, exist_ok=True)
        # The pod's user is not known here; the kubelet changes no owner in a local volume.
        folder.chmod(0o777)
        self.kubectl.apply(local_volume(name, folder=folder, size=size, node=_FIRST))
        return folder

    def stop_kubelet(self, node: str | None = None) -> None:
        self.node(node or _FIRST).end("kubelet")

    def start_kubelet(self, node: str | None = None) -> None:
        servers = self._servers(self.node(node or _FIRST))
        servers.node.spawn("kubelet", servers.kubelet())

    def add_node(self) -> str:
        index = max(map(self._index, self.nodes())) + 1
        node = Node(f"node-{index}", index, self.state)
        known = [self.node(name) for name in self.nodes()]
        cgroups.create(node.cgroup)
        node.start()
        network.connect(node, first=False)
        for other in known:
            network.join(node, other)
        self._start_node(node)
        images_of_first = sorted((self.state / "loaded").glob("*"))
        for noted in images_of_first:
            self._import(node, Path(noted.read_text()))
        self._wait_for_node(node)
        return node.name

    def remove_node(self, name: str) -> None:
        node = self.node(name)
        if node.index == 1:
            raise ClusterError(f"{name} holds the API server; take the cluster down instead")
        node.kill()
        self.kubectl("delete", "node", name, "--ignore-not-found")
        shutil.rmtree(node.folder)

    def unplug(self, node: str) -> None:
        network.unplug(self.node(node))

    def plug(self, node: str) -> None:
        network.plug(self.node(node))

    # --- starting --------------------------------------------------------------------------

    def _start(self, progress: Progress) -> None:
        for each in ("kubernetes", "etcd", "coredns", "pause"):
            binaries.build(binaries.module(each), progress=progress)
        pause = images.base(images.PAUSE, progress=progress)
        self.state.mkdir(parents=True, mode=0o711)
        traces.note_kernel_settings(self.state)
        node = self.node(_FIRST)
        progress.say("starting the node and its network")
        network.build()
        cgroups.create(node.cgroup)
        node.start()
        network.connect(node, first=True)
        plane = self._control_plane(node)
        progress.say("starting etcd, API server and containerd")
        node.spawn("etcd", plane.etcd())
        node.spawn("kube-apiserver", plane.api_server())
        servers = self._servers(node)
        node.spawn("containerd", servers.containerd())
        with _explained(node, "kube-apiserver"):
            self._wait_for_api()
        progress.say("starting controllers, scheduler, kubelet, proxy and DNS")
        node.spawn("kube-controller-manager", plane.controller_manager())
        node.spawn("kube-scheduler", plane.scheduler())
        self._start_node(node)
        self._import(node, pause.archive)
        self._wait_for_node(node)
        self._wait_for_accounts()
        (self.state / "version").write_text(_version())
        progress.say(f"ready: export KUBECONFIG={self.kubeconfig()}")

    def _control_plane(self, node: Node) -> ControlPlane:
        authority = self._authority()
        authority.create()
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        names += ["kubernetes.default.svc.cluster.local", "localhost"]
        addresses = [*names, "127.0.0.1", node.ip, network.API_SERVICE_IP]
        serving = authority.sign("apiserver", person="kube-apiserver", addresses=addresses)
        client = authority.sign("admin", person="admin", group="system:masters")
        server = f"https://{node.ip}:6443"
        authority.kubeconfig(self.kubeconfig(), server=server, client=client)
        return ControlPlane(node, authority, _programs(), self.kubeconfig(), serving, client)

    def _servers(self, node: Node) -> NodeServers:
        authority = self._authority()
        identity = node.folder / "kubelet.kubeconfig"
        if not identity.exists():
            person = f"system:node:{node.name}"
            client = authority.sign(node.name, person=person, group="system:nodes")
            server = f"https://{self.node(_FIRST).ip}:6443"
            authority.kubeconfig(identity, server=server, client=client)
        pause = images.PAUSE.tag
        return NodeServers(node, authority, _programs(), self.kubeconfig(), identity, pause)

    def _start_node(self, node: Node) -> None:
        servers = self._servers(node)
        if not node.is_running("containerd"):
            node.spawn("containerd", servers.containerd())
        socket = node.folder / "containerd.sock"
        with _explained(node, "containerd"):
            wait_until(socket.exists, what="containerd's socket", timeout_s=30)
            wait_until(lambda: self._containerd_answers(node), what="containerd", timeout_s=30)
        node.spawn("kubelet", servers.kubelet())
        node.spawn("kube-proxy", servers.proxy())
        node.spawn("coredns", servers.dns())

    def _containerd_answers(self, node: Node) -> bool:
        node.run(["ctr", "version"], timeout_s=10)
        return True

    def _wait_for_api(self) -> None:
        def answers() -> bool:
            _demand(self.node(_FIRST), "etcd", "kube-apiserver")
            return self.kubectl("get", "--raw", "/readyz", timeout_s=10).strip() == "ok"

        wait_until(answers, what="the API server", timeout_s=_TIMEOUT_S)

    def _wait_for_node(self, node: Node) -> None:
        condition = '{.status.conditions[?(@.type=="Ready")].status}'

        def ready() -> bool:
            _demand(node, "kubelet")
            return self.kubectl("get", "node", node.name, "-o", f"jsonpath={condition}") == "True"

        with _explained(node, "kubelet"):
            wait_until(ready, what=f"{node.name} to be Ready", timeout_s=_TIMEOUT_S)

    def _wait_for_accounts(self) -> None:
        def there() -> bool:
            _demand(self.node(_FIRST), "kube-controller-manager")
            self.kubectl("get", "serviceaccount", "default")
            return True

        wait_until(there, what="the default service account", timeout_s=_TIMEOUT_S)

    def _import(self, node: Node, archive: Path) -> None:
        node.run(["ctr", "-n", "k8s.io", "images", "import", archive], timeout_s=300)
        noted = self.state / "loaded"
        noted.mkdir(exist_ok=True)
        (noted / hashlib.sha256(str(archive).encode()).hexdigest()).write_text(str(archive))

    def _authority(self) -> Authority:
        return Authority(self.state / "pki")

    @staticmethod
    def _index(name: str) -> int:
        return int(name.rpartition("-")[2])


def local_volume(name: str, *, folder: Path, size: str, node: str) -> dict[str, object]:
    """A PersistentVolume without a class, bound to one node."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }


def _programs() -> dict[str, Path]:
    modules = [binaries.module(each) for each in ("kubernetes", "etcd", "coredns")]
    return {name: binaries.build(each) / name for each in modules for name in each.programs}


def _version() -> str:
    """Changes with whatever decides how a cluster is started."""
    digest = hashlib.sha256()
    for path in sorted((E2E / "cluster").glob("*.py")):
        digest.update(path.read_bytes())
    keys = {each.name: binaries.key(each) for each in binaries.MODULES}
    digest.update(json.dumps([keys, os.fspath(cache_dir())], sort_keys=True).encode())
    return digest.hexdigest()


def _demand(node: Node, *components: str) -> None:
    """A server that has ended will not become ready."""
    for each in components:
        if not node.is_running(each):
            raise Hopeless(f"{each} has ended:\n{node.tail(each)}")


@contextlib.contextmanager
def _explained(node: Node, component: str) -> Iterator[None]:
    """Add the end of a server's log to an error, since that is where the reason stands."""
    try:
        yield
    except ClusterError as failed:
        raise ClusterError(f"{failed}\n{component}: {node.tail(component)}") from failed
