"""The settings of each server of the cluster: its command line and its configuration files.

Nothing is started here. What a setting is for is said beside those that are not obvious.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.network import DNS_IP, POD_RANGE, SERVICE_RANGE
from cluster.node import Node
from cluster.pki import Authority

_CLIENT = "http://127.0.0.1:2379"
_PEER = "http://127.0.0.1:2380"


@dataclass(frozen=True)
class ControlPlane:
    """The servers of the first node; `programs` maps a program's name to its path."""

    node: Node
    authority: Authority
    programs: Mapping[str, Path]
    kubeconfig: Path
    serving: tuple[Path, Path]
    client: tuple[Path, Path]

    def etcd(self) -> Sequence[str]:
        return [
            str(self.programs["etcd"]),
            f"--data-dir={self.node.folder}/etcd",
            f"--listen-client-urls={_CLIENT}",
            f"--advertise-client-urls={_CLIENT}",
            f"--listen-peer-urls={_PEER}",
            f"--initial-advertise-peer-urls={_PEER}",
            f"--initial-cluster=default={_PEER}",
            # The data is thrown away with the cluster; a disk's sync only costs time.
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def api_server(self) -> Sequence[str]:
        return [
            str(self.programs["kube-apiserver"]),
            f"--etcd-servers={_CLIENT}",
            f"--advertise-address={self.node.ip}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            f"--client-ca-file={self.authority.certificate}",
            f"--tls-cert-file={self.serving[0]}",
            f"--tls-private-key-file={self.serving[1]}",
            f"--kubelet-client-certificate={self.client[0]}",
            f"--kubelet-client-key={self.client[1]}",
            # A node's name is in no DNS: logs and exec would look it up there.
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={self.authority.accounts_public_key}",
            f"--service-account-signing-key-file={self.authority.accounts_key}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
        ]

    def controller_manager(self) -> Sequence[str]:
        return [
            str(self.programs["kube-controller-manager"]),
            f"--kubeconfig={self.kubeconfig}",
            f"--service-account-private-key-file={self.authority.accounts_key}",
            f"--root-ca-file={self.authority.certificate}",
            f"--cluster-signing-cert-file={self.authority.certificate}",
            f"--cluster-signing-key-file={self.authority.key}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
        ]

    def scheduler(self) -> Sequence[str]:
        return [
            str(self.programs["kube-scheduler"]),
            f"--kubeconfig={self.kubeconfig}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
        ]


@dataclass(frozen=True)
class NodeServers:
    """The servers that every node has; `kubeconfig` is the cluster's, `identity` the kubelet's."""

    node: Node
    authority: Authority
    programs: Mapping[str, Path]
    kubeconfig: Path
    identity: Path
    pause_image: str

    def containerd(self) -> Sequence[str]:
        config = self._file("containerd.toml", self._containerd_config())
        self._file("cni/10-bridge.conflist", json.dumps(self._cni_config(), indent=1))
        return ["containerd", "--config", str(config)]

    def kubelet(self) -> Sequence[str]:
        config = self._file("kubelet.json", json.dumps(self._kubelet_config(), indent=1))
        self._file("resolv.conf", "")
        return [
            str(self.programs["kubelet"]),
            f"--config={config}",
            f"--kubeconfig={self.identity}",
            f"--hostname-override={self.node.name}",
            f"--node-ip={self.node.ip}",
            f"--root-dir={self.node.folder}/kubelet",
        ]

    def proxy(self) -> Sequence[str]:
        settings = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self.kubeconfig)},
            "hostnameOverride": self.node.name,
            "mode": "nftables",
            "clusterCIDR": POD_RANGE,
            # The limit is the whole machine's: it is not this cluster's to change.
            "conntrack": {"maxPerCore": 0, "min": 0},
            "bindAddress": self.node.ip,
        }
        config = self._file("proxy.json", json.dumps(settings, indent=1))
        return [str(self.programs["kube-proxy"]), f"--config={config}"]

    def dns(self) -> Sequence[str]:
        config = self._file(
            "Corefile",
            f"""\
.:53 {{
  bind {DNS_IP}
  errors
  ready {DNS_IP}:8181
  cache 5
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {self.kubeconfig}
    pods insecure
  }}
}}
""",
        )
        return [str(self.programs["coredns"]), "-conf", str(config)]

    def _file(self, name: str, content: str) -> Path:
        path = self.node.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    def _kubelet_config(self) -> dict[str, Any]:
        folder = self.node.folder
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
            "authentication": {"x509": {"clientCAFile": str(self.authority.certificate)}},
            "clusterDomain": "cluster.local",
            "clusterDNS": [DNS_IP],
            "resolvConf": f"{folder}/resolv.conf",
            "podLogsDir": f"{folder}/pod-logs",
            "volumePluginDir": f"{folder}/volume-plugins",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.node.cgroup,
            "failCgroupV1": False,
            "failSwapOn": False,
            # A developer's disk is often nearly full, and images come from nowhere but the harness.
            "evictionHard": {"memory.available": "64Mi", "nodefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
        }

    def _cni_config(self) -> dict[str, Any]:
        address = {
            "type": "host-local",
            "ranges": [[{"subnet": self.node.pod_range}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": f"{self.node.folder}/pod-addresses",
        }
        bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "hairpinMode": True}
        plugins = [bridge | {"ipam": address}]
        return {"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}

    def _containerd_config(self) -> str:
        folder = self.node.folder
        cri = '[plugins."io.containerd.grpc.v1.cri"'
        return f"""\
version = 2
root = "{folder}/containerd"
state = "{folder}/containerd-state"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing",
]

[grpc]
address = "{folder}/containerd.sock"

[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"

{cri}]
sandbox_image = "{self.pause_image}"
# A host that may not lower a process's OOM score could start no pod at all otherwise.
restrict_oom_score_adj = true
# A profile loaded into the host's kernel would outlive the cluster.
disable_apparmor = true
disable_hugetlb_controller = true
netns_mounts_under_state_dir = true
stream_server_address = "127.0.0.1"

{cri}.cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{folder}/cni"

{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""
