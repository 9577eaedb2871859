"""A node without a container engine: a process tree in namespaces of its own.

One process, started here, is PID 1 of a new PID, mount and network namespace. Everything else of the
node - kubelet, containerd, every container - runs inside. The kernel ends all of it when that one
process ends, and with the last process go all mounts, interfaces and packet filters of the node. So
a node is taken down by one signal, also by a later run of the harness that knows nothing but the
state folder; and the marker in the environment finds even a node whose pid file was never written.

Folders in which programs leave things at fixed places (/run, /var/lib, /var/log) are empty and the
node's own inside.
"""

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.paths import MARKER, cache_dir
from cluster.shell import ClusterError, Hopeless, run, wait_until

# $0 state folder, $1 cache folder, $2 file that says "ready". A child that ends is collected by the
# kernel, since PID 1 ignores SIGCHLD: containers' orphans would stay as zombies otherwise.
_FIRST_PROCESS = """
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 e2e /run
n=0
for kept in "$0" "$1"; do n=$((n + 1)); mkdir /run/kept$n; mount --bind "$kept" /run/kept$n; done
mount -t tmpfs -o mode=755 e2e /var/lib
mount -t tmpfs -o mode=755 e2e /var/log
n=0
for kept in "$0" "$1"; do
  n=$((n + 1)); mkdir -p "$kept"; mount --bind /run/kept$n "$kept"; umount /run/kept$n
done
mkdir -p /run/lock
mount --make-rshared /
touch "$2"
trap '' CHLD
exec sleep infinity
"""


@dataclass(frozen=True)
class Node:
    """One node's name, folder and place in the network; `index` counts from 1."""

    name: str
    index: int
    state: Path

    @property
    def folder(self) -> Path:
        return self.state / "nodes" / self.name

    @property
    def ip(self) -> str:
        return f"172.30.250.{self.index + 1}"

    @property
    def pod_range(self) -> str:
        return f"10.244.{self.index - 1}.0/24"

    @property
    def cgroup(self) -> str:
        return f"/aaa-e2e/{self.name}"

    @property
    def link(self) -> str:
        """The host's end of the node's cable."""
        return f"aaa-e2e-{self.index}"

    def start(self) -> None:
        """Start the node's first process; returns when others can be started in it."""
        for below in ("pids", "logs"):
            (self.folder / below).mkdir(parents=True, exist_ok=True)
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        argv = ["unshare", "--pid", "--mount", "--net", "--fork", "--kill-child=SIGKILL"]
        argv += ["--mount-proc", "--", "sh", "-c", _FIRST_PROCESS]
        argv += [str(self.state), str(cache_dir()), str(ready)]
        self._detach(self.folder / "pid", self.folder / "logs" / "node", argv)

        def is_ready() -> bool:
            outer = _number(self.folder / "pid")
            if outer is not None and not _lives(Path(f"/proc/{outer}")):
                raise Hopeless(f"{self.name} could not be made: {self.tail('node')}")
            return ready.exists()

        wait_until(is_ready, what=f"the namespaces of {self.name}", timeout_s=15)

    def enter(self) -> tuple[str, ...]:
        """The words before a command that run it inside the node."""
        first = self.first_process()
        if first is None:
            raise ClusterError(f"the node {self.name} is not running")
        socket = f"CONTAINERD_ADDRESS={self.folder}/containerd.sock"
        return ("nsenter", "--target", str(first), "--mount", "--pid", "--net", "--", "env", socket)

    def run(
        self, argv: Sequence[str | Path], *, timeout_s: float = 60.0, stdin: str | None = None
    ) -> str:
        """Run a program inside the node to its end."""
        return run([*self.enter(), *argv], timeout_s=timeout_s, stdin=stdin)

    def spawn(self, component: str, argv: Sequence[str | Path]) -> None:
        """Start a server inside the node; it writes its own pid before it becomes the server."""
        pid_file = self.folder / "pids" / component
        pid_file.unlink(missing_ok=True)
        words = [*self.enter(), "sh", "-c", 'echo $$ >"$0"; exec "$@"', str(pid_file)]
        log = self.folder / "logs" / component
        self._detach(None, log, [*words, *map(str, argv)])
        started = f"the start of {component}"
        wait_until(lambda: _number(pid_file) is not None, what=started, timeout_s=15)

    def is_running(self, component: str) -> bool:
        """Whether the server that was started under this name still is there."""
        first, pid = self.first_process(), _number(self.folder / "pids" / component)
        if first is None or pid is None:
            return False
        # /proc as the node sees it, since the pid is the node's.
        proc = Path(f"/proc/{first}/root/proc/{pid}")
        return _lives(proc) and _carries(proc, self.state)

    def end(self, component: str, *, timeout_s: float = 15.0) -> None:
        """End one server: asked first, forced when it does not listen."""
        pid = _number(self.folder / "pids" / component)
        if pid is None or not self.is_running(component):
            return
        self.run(["sh", "-c", 'kill -TERM "$0"', str(pid)])
        try:
            wait_until(lambda: not self.is_running(component), what="", timeout_s=timeout_s)
        except ClusterError:
            self.run(["sh", "-c", 'kill -KILL "$0"', str(pid)])
            wait_until(
                lambda: not self.is_running(component), what=f"the end of {component}", timeout_s=5
            )

    def kill(self) -> None:
        """End the node with everything in it; the kernel does the rest."""
        first, outer = self.first_process(), _number(self.folder / "pid")
        if first is None or outer is None:
            return
        os.kill(outer, signal.SIGKILL)
        gone = Path(f"/proc/{first}")
        wait_until(lambda: not _lives(gone), what=f"the end of {self.name}", timeout_s=20)

    def tail(self, component: str, *, characters: int = 1500) -> str:
        """The end of a server's log."""
        log = self.folder / "logs" / component
        return log.read_text(errors="replace")[-characters:] if log.exists() else ""

    def first_process(self) -> int | None:
        """The host's number of the node's PID 1."""
        outer = _number(self.folder / "pid")
        if outer is None or not _carries(Path(f"/proc/{outer}"), self.state):
            return None
        try:
            children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def _detach(self, pid_file: Path | None, log: Path, argv: Sequence[str]) -> None:
        note = 'echo $$ >"$0"; ' if pid_file is not None else ""
        script = note + 'log=$1; shift; exec "$@" >>"$log" 2>&1 </dev/null'
        env: Mapping[str, str] = os.environ | {MARKER: str(self.state)}
        words = ["setsid", "--fork", "sh", "-c", script, str(pid_file), str(log), *argv]
        # Its output must not be the harness's pipes: the process outlives the harness.
        run(["sh", "-c", 'exec "$@" >/dev/null 2>&1', "sh", *words], env=env)


def marked_processes(state: Path) -> Iterator[int]:
    """The processes of this cluster by their environment, the harness itself excepted."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and _carries(entry, state):
            yield int(entry.name)


def kill_marked(state: Path, *, timeout_s: float = 20.0) -> None:
    """End every process of this cluster, and wait until the kernel has let go of them."""

    def gone() -> bool:
        left = list(marked_processes(state))
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return not left

    wait_until(gone, what="the end of the cluster's processes", timeout_s=timeout_s)


def _carries(proc: Path, state: Path) -> bool:
    try:
        environment = (proc / "environ").read_bytes()
    except OSError:
        return False
    return f"{MARKER}={state}".encode() in environment.split(b"\0")


def _lives(proc: Path) -> bool:
    try:
        return (proc / "stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except (OSError, IndexError):
        return False


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
