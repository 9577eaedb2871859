"""The cgroup below which all of the cluster's pods live, in each hierarchy that the host has.

The kubelet demands that its root exists; a name of its own keeps the pods apart from those of any
other kubelet on the host and makes what they leave behind easy to find.
"""

import contextlib
from pathlib import Path

from cluster.shell import ClusterError, wait_until

_TOP = "aaa-e2e"
_MOUNTS = Path("/sys/fs/cgroup")


def create(cgroup: str) -> None:
    """Make a path like `/aaa-e2e/node` in every hierarchy."""
    for hierarchy in _hierarchies():
        at = hierarchy
        for part in cgroup.strip("/").split("/"):
            if (at / "cgroup.subtree_control").exists() and (at / "cgroup.controllers").exists():
                _delegate(at)
            at = at / part
            at.mkdir(exist_ok=True)
            # In the first version of cgroups a set without processors takes no process.
            for setting in ("cpuset.cpus", "cpuset.mems"):
                if (at / setting).exists() and (at / "cpuset.sched_load_balance").exists():
                    (at / setting).write_text((at.parent / setting).read_text())
        if (at / "cgroup.controllers").exists():
            _delegate(at)


def existing() -> list[Path]:
    """The cluster's cgroups, parents before children."""
    return [
        folder
        for hierarchy in _hierarchies()
        if (top := hierarchy / _TOP).is_dir()
        for folder in (top, *sorted(each for each in top.rglob("*") if each.is_dir()))
    ]


def remove() -> None:
    """Delete the cluster's cgroups; their processes have been ended before."""

    def gone() -> bool:
        for folder in reversed(existing()):
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not existing()

    try:
        wait_until(gone, what="cgroups", timeout_s=10)
    except ClusterError:
        left = ", ".join(map(str, existing()[:3]))
        raise ClusterError(f"these cgroups still hold processes: {left}") from None


def _hierarchies() -> list[Path]:
    if (_MOUNTS / "cgroup.controllers").exists():
        return [_MOUNTS]
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted({Path(words[1]) for words in mounts if words[2] in {"cgroup", "cgroup2"}})


def _delegate(folder: Path) -> None:
    for controller in (folder / "cgroup.controllers").read_text().split():
        # One that cannot be handed down is not one that the kubelet asks for.
        with contextlib.suppress(OSError):
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")
