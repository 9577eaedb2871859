"""Images without a registry: base images from the distribution's packages, the project's by buildah.

Every image ends as one archive in the cache, found again by the hash of what it was made from. The
builder's mounts live in a mount namespace that ends with it, so a killed build leaves none.
"""

import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.binaries import key, module, program
from cluster.paths import E2E, cache_dir
from cluster.shell import ClusterError, Progress, run

# Dropped from base images: what only a person at a terminal would read, and package lists.
_DROPPED = ("./usr/share/doc", "./usr/share/man", "./usr/share/locale", "./usr/share/info")
_CACHES = ("./var/cache/apt", "./var/lib/apt/lists", "./var/cache/debconf", "./var/log")


@dataclass(frozen=True)
class Image:
    """An image's name, and the archive that holds it."""

    name: str
    archive: Path


@dataclass(frozen=True)
class Base:
    """A base image: its Dockerfile in `e2e/images/`, filled from distribution packages."""

    name: str
    packages: Sequence[str] = ()

    @property
    def tag(self) -> str:
        return f"localhost/e2e-{self.name}:local"

    @property
    def dockerfile(self) -> Path:
        return E2E / "images" / f"{self.name}.Dockerfile"


PAUSE = Base("pause")
PYTHON = Base("python", ("python3", "python3-venv", "python-is-python3", "ca-certificates"))
REDIS = Base("redis", ("redis-server", "redis-tools"))


def base(wanted: Base, *, progress: Progress | None = None) -> Image:
    """A base image, made now if the cache lacks it."""
    suite = _suite()
    archive = cache_dir() / "images" / f"{wanted.name}-{_base_key(wanted, suite)}.tar"
    image = Image(wanted.tag, archive)
    if archive.exists():
        return image
    if progress is not None:
        progress.say(f"making the {wanted.name} image")
    with tempfile.TemporaryDirectory(prefix="e2e-image-", dir=_working_folder()) as made:
        context = Path(made)
        if wanted.packages:
            _root_file_system(context, wanted, suite)
        else:
            shutil.copy2(program(wanted.name, progress=progress), context)
        _build(context, dockerfile=wanted.dockerfile, image=image)
    return image


def build(
    context: Path,
    *,
    name: str,
    dockerfile: Path,
    archive: Path,
    target: str | None = None,
    arguments: Mapping[str, str] | None = None,
    bases: Sequence[Image] = (),
) -> Image:
    """Build a Dockerfile of the project; `bases` are what its FROM lines may name."""
    for each in bases:
        _know(each)
    image = Image(name, archive)
    _build(context, dockerfile=dockerfile, image=image, target=target, arguments=arguments or {})
    return image


def mirror(targets: str, suite: str) -> tuple[str, list[str]]:
    """The mirror and the components of a suite, from lines of `CODENAME|COMPONENT|URI`."""
    rows = [line.split("|") for line in targets.splitlines()]
    rows = [row for row in rows if len(row) == 3 and row[0] == suite]
    if not rows:
        raise ClusterError(f"apt knows no source of {suite}: run apt-get update, then try again")
    uri = rows[0][2]
    return uri, sorted({row[1] for row in rows if row[2] == uri})


def _build(
    context: Path,
    *,
    dockerfile: Path,
    image: Image,
    target: str | None = None,
    arguments: Mapping[str, str] | None = None,
) -> None:
    words = ["bud", "--isolation", "chroot", "--layers", "-f", str(dockerfile), "-t", image.name]
    # Steps that reach a package index trust what this machine trusts.
    words += ["--volume", "/etc/ssl/certs:/etc/ssl/certs:ro"]
    words += ["--target", target] if target else []
    for option, value in (arguments or {}).items():
        words += ["--build-arg", f"{option}={value}"]
    _buildah(*words, str(context), timeout_s=1800)
    image.archive.parent.mkdir(parents=True, exist_ok=True)
    half_done = image.archive.with_name(f".{image.archive.name}")
    half_done.unlink(missing_ok=True)
    # The archive is read once, on this machine: compressing it costs more than it saves.
    destination = f"oci-archive:{half_done}:{image.name}"
    _buildah("push", "--disable-compression", image.name, destination, timeout_s=300)
    half_done.rename(image.archive)


def _know(image: Image) -> None:
    try:
        _buildah("inspect", "--type", "image", image.name)
    except ClusterError:
        _buildah("pull", f"oci-archive:{image.archive}", timeout_s=300)


def _buildah(*words: str, timeout_s: float = 60.0) -> str:
    folder = cache_dir() / "buildah"
    stores = ["--root", str(folder / "root"), "--runroot", str(folder / "run")]
    driver = ["--storage-driver", "overlay"]
    # A mount namespace of its own: the storage driver's mounts end with the command.
    enclosed = ["unshare", "--mount", "--propagation", "private", "--", "buildah"]
    # Any architecture's libc gives names their meaning; a registry is never asked for one.
    env = os.environ | {"BUILDAH_LAYERS": "true"}
    return run([*enclosed, *stores, *driver, *words], timeout_s=timeout_s, env=env)


def _root_file_system(context: Path, wanted: Base, suite: str) -> None:
    """Put a `rootfs.tar` with the base's packages into a build context."""
    row = "$(CODENAME)|$(COMPONENT)|$(REPO_URI)"
    listed = run(["apt-get", "indextargets", "--format", row, "Created-By: Packages"])
    uri, components = mirror(listed, suite)
    root, kept = context / "root", cache_dir() / "packages"
    kept.mkdir(parents=True, exist_ok=True)
    words = ["--variant=minbase", f"--cache-dir={kept}", f"--components={','.join(components)}"]
    words += [f"--include={','.join(wanted.packages)}", suite, str(root), uri]
    enclosed = ["unshare", "--mount", "--propagation", "private", "--", "debootstrap"]
    run([*enclosed, *words], timeout_s=1800)
    dropped = [f"--exclude={each}/*" for each in (*_DROPPED, *_CACHES)]
    dropped += ["--exclude=./proc/*", "--exclude=./sys/*", "--exclude=./dev/*"]
    packed = ["tar", "--numeric-owner", *dropped, "-C", str(root), "-cf"]
    run([*packed, str(context / "rootfs.tar"), "."], timeout_s=300)
    shutil.rmtree(root)


def _suite() -> str:
    lines = Path("/etc/os-release").read_text().splitlines()
    facts = dict(line.split("=", 1) for line in lines if "=" in line)
    try:
        return facts["VERSION_CODENAME"].strip('"')
    except KeyError:
        raise ClusterError(
            "base images are made on Debian or Ubuntu only; elsewhere start Docker"
        ) from None


def _base_key(wanted: Base, suite: str) -> str:
    digest = hashlib.sha256(wanted.dockerfile.read_bytes())
    source = key(module(wanted.name)) if not wanted.packages else ""
    facts = (wanted.tag, suite, platform.machine(), tuple(wanted.packages), source)
    digest.update(repr(facts).encode())
    return digest.hexdigest()[:16]


def _working_folder() -> Path:
    folder = cache_dir() / "work"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
