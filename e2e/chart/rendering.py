"""helm, as these tests use it: values in, objects out.

Both programs are built from their pinned Go modules. A rendering is kept as long as the tests run:
most tests look at the same few.
"""

import copy
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from cluster import binaries
from cluster.paths import E2E

CHART = E2E.parent / "charts" / "aaa"
#: Below the oldest version that the chart takes, and the one that the cluster tests run.
KUBERNETES = ("1.30.0", binaries.KUBERNETES.removeprefix("v"))
Flavour = Literal["helm", "helm4"]
Raw = dict[str, Any]


class Refused(AssertionError):
    """helm refused; its words are the message."""


@dataclass
class Helm:
    """One helm, with a home of its own."""

    flavour: Flavour
    home: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="aaa-helm-")))
    _kept: dict[str, list[Raw]] = field(default_factory=dict)

    def __call__(self, *words: str, values: Mapping[str, Any] | None = None) -> str:
        """Run it; what it refuses is :class:`Refused`."""
        file = self.home / "values.yaml"
        file.write_text(json.dumps(dict(values or {})))
        done = subprocess.run(
            [str(binaries.program(self.flavour)), *words, "--values", str(file)],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            env=os.environ | {"HOME": str(self.home), "KUBECONFIG": "/dev/null"},
        )
        if done.returncode:
            raise Refused(done.stderr + done.stdout)
        return done.stdout

    def objects(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        release: str = "aaa",
        namespace: str = "shop",
        kubernetes: str = KUBERNETES[-1],
    ) -> list[Raw]:
        """Everything that an installation with these values would apply, hooks included."""
        words = ["template", release, str(CHART), "-n", namespace, "--kube-version", kubernetes]
        key = json.dumps([words, values])
        if key not in self._kept:
            text = self(*words, values=values)
            self._kept[key] = [each for each in yaml.safe_load_all(text) if each]
        return copy.deepcopy(self._kept[key])  # a test may change what it is given

    def one(self, kind: str, name: str, values: Mapping[str, Any] | None = None) -> Raw:
        """The object of this kind and name."""
        found = [
            each
            for each in self.objects(values)
            if (each["kind"], each["metadata"]["name"]) == (kind, name)
        ]
        assert len(found) == 1, f"{len(found)} {kind} {name}"
        return found[0]


def pod_specs(objects: list[Raw]) -> Iterator[tuple[Raw, Raw]]:
    """Each object that makes pods, with the pod's template (or itself)."""
    for each in objects:
        if each["kind"] == "Pod":
            yield each, each
        elif each["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield each, each["spec"]["template"]


def is_hook(raw: Raw) -> bool:
    return "helm.sh/hook" in (raw["metadata"].get("annotations") or {})
