"""What a cluster leaves on the machine: the list that must be empty after it was taken down."""

import contextlib
import json
from pathlib import Path

from cluster import cgroups, network
from cluster.node import marked_processes

# The kubelet sets these for the whole machine.
_SETTINGS = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)
_KERNEL = Path("/proc/sys")


def of_cluster(state: Path) -> list[str]:
    """Every trace of the cluster in this state folder, each in a few words."""
    found = [f"process {pid}" for pid in marked_processes(state)]
    found += [f"mount {line}" for line in _mounts_below(state)]
    found += [f"interface {name}" for name in network.links()]
    found += [f"cgroup {folder}" for folder in cgroups.existing()]
    found += [f"folder {state}"] if state.exists() else []
    found += [f"kernel setting {name}" for name in changed_kernel_settings(state)]
    return found


def note_kernel_settings(state: Path) -> None:
    """Remember what the kubelet is about to change."""
    noted = {name: value for name in _SETTINGS if (value := _read(name)) is not None}
    (state / "kernel-settings.json").write_text(json.dumps(noted))


def changed_kernel_settings(state: Path) -> dict[str, str]:
    """The settings that differ from what was noted, with the noted value."""
    try:
        noted = json.loads((state / "kernel-settings.json").read_text())
    except (OSError, ValueError):
        return {}
    return {name: value for name, value in noted.items() if _read(name) != value}


def restore_kernel_settings(state: Path) -> None:
    """Put back what was noted."""
    for name, value in changed_kernel_settings(state).items():
        with contextlib.suppress(OSError):
            (_KERNEL / name).write_text(value)


def _read(name: str) -> str | None:
    try:
        return (_KERNEL / name).read_text().strip()
    except OSError:
        return None


def _mounts_below(state: Path) -> list[str]:
    mounts = (line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines())
    return [each for each in mounts if each == str(state) or each.startswith(f"{state}/")]
