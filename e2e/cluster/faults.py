"""What the tests do to a pod's processes, from outside and without its help.

A pod is named; its containers are looked up in its status, their processes in containerd, and both
hold for the moment of the call only: a container that the kubelet has started again is another.
The same code serves every kind of node, since it needs nothing of it but a way to run a program
inside.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cluster.kubectl import Kubectl
from cluster.shell import ClusterError

_TABLE = "e2e_cut"


class NodeShell(Protocol):
    """A way to run a program inside a node, with its processes, mounts and network."""

    def run(
        self, argv: Sequence[str | Path], *, timeout_s: float = 60.0, stdin: str | None = None
    ) -> str: ...


@dataclass(frozen=True)
class PodFaults:
    """Faults for the pods of one cluster; `shell` finds a node by its name."""

    kubectl: Kubectl
    shell: Callable[[str], NodeShell]

    def stop(self, pod: str, *, namespace: str = "default", container: str | None = None) -> None:
        """Freeze: SIGSTOP to every process of the pod's containers, or of one container."""
        self._signal("STOP", pod, namespace=namespace, container=container)

    def thaw(self, pod: str, *, namespace: str = "default", container: str | None = None) -> None:
        """SIGCONT to every process that `stop` froze."""
        self._signal("CONT", pod, namespace=namespace, container=container)

    def kill(self, pod: str, *, namespace: str = "default", container: str | None = None) -> None:
        """SIGKILL to every process; the kubelet then does what the pod's restartPolicy says."""
        self._signal("KILL", pod, namespace=namespace, container=container)

    def cut_off(self, pod: str, *, namespace: str = "default") -> None:
        """Drop every packet between the pod and the world, without a sign to either.

        Its node still reaches it: the kubelet's probes go on, as in a partition between nodes.
        """
        shell, processes = self._processes(pod, namespace, None)
        enter = _network_of(processes[0])
        routes = json.loads(shell.run([*enter, "ip", "-json", "route", "show", "default"]))
        gateway = routes[0]["gateway"]
        rules = f"""
table inet {_TABLE} {{
  chain in {{ type filter hook input priority -300; policy drop;
    iif lo accept
    ip saddr {gateway} accept
  }}
  chain out {{ type filter hook output priority -300; policy drop;
    oif lo accept
    ip daddr {gateway} accept
  }}
}}
"""
        shell.run([*enter, "nft", "-f", "-"], stdin=rules)

    def reconnect(self, pod: str, *, namespace: str = "default") -> None:
        """Undo `cut_off`."""
        shell, processes = self._processes(pod, namespace, None)
        shell.run([*_network_of(processes[0]), "nft", "delete", "table", "inet", _TABLE])

    def _signal(self, name: str, pod: str, *, namespace: str, container: str | None) -> None:
        shell, processes = self._processes(pod, namespace, container)
        # One that has ended by itself meanwhile is no fault of the caller.
        script = f'for pid in "$@"; do kill -{name} "$pid" || test ! -d "/proc/$pid"; done'
        shell.run(["sh", "-c", script, "sh", *map(str, processes)])

    def _processes(
        self, pod: str, namespace: str, container: str | None
    ) -> tuple[NodeShell, list[int]]:
        found = self.kubectl.get("pod", pod, namespace=namespace)
        shell = self.shell(found["spec"]["nodeName"])
        processes: list[int] = []
        for status in found["status"].get("containerStatuses", []):
            if container in {None, status["name"]} and "running" in status["state"]:
                name = str(status["containerID"]).removeprefix("containerd://")
                processes += pids(shell.run(["ctr", "-n", "k8s.io", "tasks", "ps", name]))
        if not processes:
            wanted = f"container {container}" if container else "container"
            raise ClusterError(f"no {wanted} of the pod {namespace}/{pod} is running")
        return shell, processes


def pids(table: str) -> list[int]:
    """The process numbers out of `ctr tasks ps`."""
    rows = (line.split() for line in table.splitlines())
    return [int(row[0]) for row in rows if row and row[0].isdigit()]


def _network_of(process: int) -> tuple[str, ...]:
    return ("nsenter", f"--net=/proc/{process}/ns/net", "--")
