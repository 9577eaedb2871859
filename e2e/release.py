"""The product in the test cluster: its images, and the chart's release.

Images are built once for what they are made from: a second run of the tests finds them.
"""

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster import Cluster, binaries
from cluster.images import PYTHON, REDIS
from cluster.paths import E2E
from cluster.shell import ClusterError, run

ROOT = E2E.parent
CHART = ROOT / "charts" / "aaa"
NAMESPACE = "aaa-e2e"
_MADE_FROM = ("Dockerfile", "pyproject.toml", "requirements", "runtime", "operator")


@dataclass(frozen=True)
class Images:
    """The names by which pods know the two images and that of Redis."""

    worker: str
    operator: str
    redis: str


def images(cluster: Cluster) -> Images:
    """Build what the sources have become, and put it into every node."""
    base, redis = cluster.base_image(PYTHON), cluster.base_image(REDIS)
    tag = sources_digest()
    named = {}
    for target in ("worker", "operator"):
        named[target] = cluster.build_image(
            ROOT,
            name=f"localhost/aaa-{target}:{tag}",
            dockerfile=ROOT / "Dockerfile",
            target=target,
            arguments={"BASE": base},
        )
    return Images(named["worker"], named["operator"], redis)


def sources_digest() -> str:
    """Names everything that the images are made from."""
    digest = hashlib.sha256()
    for name in _MADE_FROM:
        top = ROOT / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(ROOT)}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@dataclass
class Release:
    """A release of the chart in a namespace of its own."""

    cluster: Cluster
    images: Images
    namespace: str = NAMESPACE
    name: str = "aaa"
    values: dict[str, Any] = field(default_factory=dict)

    def install(self, *, timeout_s: int = 180) -> str:
        """`helm install`, with defaults but for where the images and the volume come from."""
        return self._helm("install", self.name, str(CHART), *self._settled(timeout_s))

    def upgrade(self, *, timeout_s: int = 180) -> str:
        return self._helm("upgrade", self.name, str(CHART), *self._settled(timeout_s))

    def uninstall(self, *, timeout_s: int = 180) -> str:
        return self._helm("uninstall", self.name, "--wait", f"--timeout={timeout_s}s")

    def test(self, *, timeout_s: int = 240) -> str:
        return self._helm("test", self.name, f"--timeout={timeout_s}s")

    def is_installed(self) -> bool:
        listed = json.loads(self._helm("list", "--all", "--output=json"))
        return any(each["name"] == self.name for each in listed)

    def kubectl(self, *words: str, stdin: str | None = None, timeout_s: float = 60.0) -> str:
        """kubectl in the release's namespace."""
        words = (words[0], "-n", self.namespace, *words[1:])
        return self.cluster.kubectl(*words, stdin=stdin, timeout_s=timeout_s)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return self.cluster.kubectl.get(kind, name, namespace=self.namespace)

    def all_of(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        return self.cluster.kubectl.all_of(kind, namespace=self.namespace, selector=selector)

    def apply(self, *objects: Mapping[str, Any]) -> None:
        bundle = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(bundle))

    def redis(self, *words: str) -> str:
        """redis-cli on the release's store."""
        pod = f"{self.name}-redis-0"
        return self.kubectl("exec", pod, "--", "redis-cli", *words).strip()

    def _settled(self, timeout_s: int) -> list[str]:
        file = Path(self.cluster.kubeconfig()).parent / f"values-{self.namespace}.json"
        file.write_text(json.dumps(merged(self._of_the_cluster(), self.values)))
        return ["--values", str(file), "--wait", f"--timeout={timeout_s}s"]

    def _of_the_cluster(self) -> dict[str, Any]:
        """What defaults cannot know of this cluster: no registry, no provisioner of volumes."""
        return {
            "images": {
                **{
                    name: dict(zip(("repository", "tag"), image.rsplit(":", 1), strict=True))
                    for name, image in vars(self.images).items()
                },
                "pullPolicy": "IfNotPresent",
            },
            "redis": {"storage": {"storageClassName": ""}},
        }

    def _helm(self, *words: str) -> str:
        kubeconfig = Path(self.cluster.kubeconfig())
        home = kubeconfig.parent / "helm-home"
        home.mkdir(exist_ok=True)
        env = os.environ | {"KUBECONFIG": str(kubeconfig), "HOME": str(home)}
        argv: list[str | Path] = [binaries.program("helm"), "-n", self.namespace, *words]
        return run(argv, timeout_s=400, env=env)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Values as helm merges them: maps by key, everything else replaced."""
    made = dict(base)
    for key, value in over.items():
        old = made.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = merged(old, value)
        made[key] = value
    return made


def evidence(release: Release, folder: Path) -> Path:
    """Write down what there is to see, for whoever has to find out why a test failed."""
    folder.mkdir(parents=True, exist_ok=True)
    looks = {
        "objects.txt": (
            "get",
            "all,agentruns,toolpolicies,tooldecisions,configmaps,pvc",
            "-o",
            "wide",
        ),
        "aaa.yaml": ("get", "agentruns,toolpolicies,tooldecisions", "-o", "yaml"),
        "pods.yaml": ("get", "pods", "-o", "yaml"),
        "events.txt": ("get", "events", "--sort-by=.lastTimestamp"),
    }
    for name, words in looks.items():
        (folder / name).write_text(_said(release, *words))
    for pod in _said(release, "get", "pods", "-o", "name").split():
        name = pod.removeprefix("pod/")
        (folder / f"{name}.log").write_text(_said(release, "logs", pod, "--all-containers"))
        before = _said(release, "logs", pod, "--all-containers", "--previous")
        if not before.startswith("("):
            (folder / f"{name}.previous.log").write_text(before)
    return folder


def _said(release: Release, *words: str) -> str:
    try:
        return release.kubectl(*words)
    except (ClusterError, subprocess.SubprocessError) as error:
        return f"({error})\n"
