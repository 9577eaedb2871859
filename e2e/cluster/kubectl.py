"""kubectl, as the tests speak to the API server: objects in, objects out."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.shell import ClusterError, run, wait_until


@dataclass(frozen=True)
class Kubectl:
    """One kubectl with one kubeconfig."""

    program: Path
    kubeconfig: Path

    def __call__(self, *words: str, stdin: str | None = None, timeout_s: float = 60.0) -> str:
        """Run kubectl with these arguments; what it refuses is a `ClusterError`."""
        return run(self.argv(*words), stdin=stdin, timeout_s=timeout_s, env=self.environment())

    def argv(self, *words: str) -> Sequence[str]:
        """The command line, for callers that keep the process themselves."""
        return [str(self.program), "--kubeconfig", str(self.kubeconfig), *words]

    def environment(self) -> Mapping[str, str]:
        """kubectl's caches go with the cluster, not into the person's home."""
        return os.environ | {"KUBECACHEDIR": str(self.kubeconfig.parent / "kubectl-cache")}

    def get(self, kind: str, name: str, *, namespace: str = "default") -> dict[str, Any]:
        """One object."""
        found = json.loads(self("get", kind, name, "-n", namespace, "-o", "json"))
        assert isinstance(found, dict)
        return found

    def all_of(
        self, kind: str, *, namespace: str = "default", selector: str = ""
    ) -> list[dict[str, Any]]:
        """All objects of a kind in a namespace, or those that a label selector picks."""
        picked = ["-l", selector] if selector else []
        found = json.loads(self("get", kind, "-n", namespace, *picked, "-o", "json"))
        return list(found["items"])

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Apply objects as they are written here."""
        bundle = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self("apply", "-f", "-", stdin=json.dumps(bundle))

    def post(self, path: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """POST to a path of the API, for what has no verb of its own."""
        answer = json.loads(self("create", "--raw", path, "-f", "-", stdin=json.dumps(content)))
        assert isinstance(answer, dict)
        return answer

    def evict(self, pod: str, *, uid: str, namespace: str = "default", grace_s: int = 2) -> None:
        """Evict exactly this incarnation of a pod through the Eviction API."""
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": {"gracePeriodSeconds": grace_s, "preconditions": {"uid": uid}},
        }
        self.post(f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", eviction)

    def ready_pods(self, selector: str, *, namespace: str = "default") -> list[dict[str, Any]]:
        """The pods behind a selector that are Ready and not being deleted."""
        return [
            pod
            for pod in self.all_of("pods", namespace=namespace, selector=selector)
            if "deletionTimestamp" not in pod["metadata"] and _is_ready(pod)
        ]

    def wait_ready(
        self, selector: str, *, count: int = 1, namespace: str = "default", timeout_s: float = 60.0
    ) -> list[dict[str, Any]]:
        """Wait until this many pods are Ready; returns them."""
        found: list[dict[str, Any]] = []

        def enough() -> bool:
            found[:] = self.ready_pods(selector, namespace=namespace)
            return len(found) == count

        try:
            wait_until(enough, what=f"{count} ready {selector}", timeout_s=timeout_s, every_s=0.3)
        except ClusterError as late:
            state = self("get", "pods", "-n", namespace, "-l", selector, "-o", "wide")
            news = self("get", "events", "-n", namespace, "--sort-by=.lastTimestamp")
            raise ClusterError(f"{late}\n{state}\n{news[-2000:]}") from late
        return found


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
