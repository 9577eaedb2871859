"""The cluster's programs, built from pinned Go modules and kept outside the tree.

Each module in `e2e/go/` pins its sources by go.sum. A built program is found again by the hash of
everything that decides what it is; a build that was interrupted leaves nothing that looks finished.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.paths import E2E, cache_dir
from cluster.requirements import ensure_go
from cluster.shell import Progress, run

KUBERNETES = "v1.36.3"
_VERSION = "k8s.io/component-base/version"


@dataclass(frozen=True)
class Module:
    """A folder of `e2e/go/` and the programs that are built from it."""

    name: str
    programs: Mapping[str, str]
    ldflags: str = "-s -w"
    folder: Path = field(default=Path(), kw_only=True)

    @property
    def source(self) -> Path:
        return (self.folder if self.folder != Path() else E2E / "go") / self.name


MODULES: tuple[Module, ...] = (
    Module(
        "kubernetes",
        {
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in (
                "kube-apiserver",
                "kube-controller-manager",
                "kube-proxy",
                "kube-scheduler",
                "kubectl",
                "kubelet",
            )
        },
        # Without these the servers call themselves v0.0.0, and clients judge them by it.
        f"-s -w -X {_VERSION}.gitVersion={KUBERNETES}"
        f" -X {_VERSION}.gitMajor={KUBERNETES[1:].split('.', maxsplit=1)[0]}"
        f" -X {_VERSION}.gitMinor={KUBERNETES.split('.')[1]}",
    ),
    Module("etcd", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Module("coredns", {"coredns": "."}),
    Module("pause", {"pause": "."}),
    Module("helm", {"helm": "helm.sh/helm/v3/cmd/helm"}),
    Module("helm4", {"helm4": "helm.sh/helm/v4/cmd/helm"}),
    Module("kind", {"kind": "sigs.k8s.io/kind"}),
)


def module(name: str) -> Module:
    return next(each for each in MODULES if each.name == name)


def program(name: str, *, progress: Progress | None = None) -> Path:
    """The path of one program, built now if it is not there yet."""
    owner = next(each for each in MODULES if name in each.programs)
    return build(owner, progress=progress) / name


def key(wanted: Module) -> str:
    """Names one outcome: the same sources, flags and compiler give the same key."""
    digest = hashlib.sha256()
    for path in sorted(wanted.source.iterdir()):
        digest.update(f"{path.name}\n".encode())
        digest.update(path.read_bytes())
    digest.update(wanted.ldflags.encode())
    digest.update(repr(sorted(wanted.programs.items())).encode())
    return digest.hexdigest()[:16]


def build(wanted: Module, *, progress: Progress | None = None) -> Path:
    """The folder of a module's programs."""
    folder = cache_dir() / "bin" / f"{wanted.name}-{key(wanted)}"
    if folder.is_dir():
        return folder
    ensure_go()
    if progress is not None:
        progress.say(f"building {', '.join(wanted.programs)}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    half_done = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        env = os.environ | {"CGO_ENABLED": "0"}
        flags = ["-trimpath", "-ldflags", wanted.ldflags]
        if len(wanted.programs) == 1:
            ((name, package),) = wanted.programs.items()
            outputs, packages = half_done / name, [package]
        else:
            outputs, packages = half_done, sorted(wanted.programs.values())
        run(
            ["go", "build", *flags, "-o", f"{outputs}", *packages],
            cwd=wanted.source,
            env=env,
            timeout_s=3600,
        )
        half_done.chmod(0o755)
        try:
            half_done.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
            # Somebody else has built the same meanwhile.
            shutil.rmtree(half_done, ignore_errors=True)
    except BaseException:
        shutil.rmtree(half_done, ignore_errors=True)
        raise
    return folder
