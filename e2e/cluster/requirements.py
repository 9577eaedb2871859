"""What the machine must have before a cluster without Docker can start on it.

Missing Debian packages are installed; whatever else is missing is named in one sentence.
"""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from cluster.shell import ClusterError, run

# Program or file → the Debian and Ubuntu package that brings it.
PACKAGES: Mapping[str, str] = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "iptables": "iptables",
    "nft": "nftables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "mount": "mount",
    "openssl": "openssl",
    "tar": "tar",
}
GO_NEEDED = (1, 26)


def missing_packages() -> list[str]:
    """The Debian packages that must still be installed."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

    def there(wanted: str) -> bool:
        if wanted.startswith("/"):
            return Path(wanted).exists()
        return shutil.which(wanted, path=path) is not None

    return sorted({package for wanted, package in PACKAGES.items() if not there(wanted)})


def ensure() -> None:
    """Install what Debian and Ubuntu offer; say in one sentence what else is missing."""
    if os.geteuid() != 0:
        raise ClusterError(
            "the test cluster needs either a running Docker or root on Debian or Ubuntu: "
            "start Docker, or run this as root"
        )
    missing = missing_packages()
    if missing:
        _install(missing)


def ensure_go() -> None:
    """Go is asked for only when something must be built."""
    wanted = ".".join(map(str, GO_NEEDED))
    if shutil.which("go") is None:
        raise ClusterError(f"Go {wanted} or newer is needed to build the cluster's programs")
    found = run(["go", "env", "GOVERSION"]).strip()
    version = re.match(r"go(\d+)\.(\d+)", found)
    if version is None or (int(version[1]), int(version[2])) < GO_NEEDED:
        raise ClusterError(
            f"Go {wanted} or newer is needed to build the cluster's programs, not {found}"
        )


def _install(packages: list[str]) -> None:
    named = " ".join(packages)
    if shutil.which("apt-get") is None:
        raise ClusterError(f"install what these Debian packages hold, then try again: {named}")
    # RUNLEVEL=1 keeps the packages' own services from starting: the cluster runs its own.
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    try:
        run(["apt-get", "update", "-qq"], timeout_s=300, env=env)
        run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages],
            timeout_s=600,
            env=env,
        )
    except ClusterError as said:
        raise ClusterError(f"could not install the Debian packages {named}: {said}") from said
