"""AgentRuns as the tests make them and follow them, each test with a pool of its own."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.paths import E2E
from cluster.shell import ClusterError, Hopeless, wait_until
from ledger import Ledger
from release import Release

AGENT = E2E / "agents" / "steps.py"
API = "aaa.dev/v1alpha1"


@dataclass
class Scene:
    """One test's corner of the namespace: its label, its agent, and what it makes."""

    release: Release
    ledger: Ledger
    name: str
    made: list[tuple[str, str]] = field(default_factory=list)

    def order(self, number: int = 1) -> str:
        """An order's name that no other test uses."""
        return f"{self.name}-o{number}"

    def run(self, task: str, *, name: str = "", **spec: Any) -> str:
        """Apply an AgentRun for a task, in words such as ``pay:o-1``; returns its name."""
        agent = {
            "app": "steps:app",
            "source": {"configMapRef": {"name": self._source()}},
            # The value makes the template, and so the pool, this test's own.
            "env": [
                {"name": "LEDGER_URL", "value": self.ledger.url},
                {"name": "TEST_NAME", "value": self.name},
            ],
            **spec.pop("agent", {}),
        }
        named = name or self.name
        self.apply("AgentRun", named, {"agent": agent, "input": {"task": task}, **spec})
        return named

    def policy(self, *tools: dict[str, Any], name: str = "", **spec: Any) -> str:
        """Apply a ToolPolicy for this test's runs."""
        named = name or self.name
        selector = {"matchLabels": {"test": self.name}}
        self.apply("ToolPolicy", named, {"selector": selector, "tools": list(tools), **spec})
        return named

    def decide(self, run: str, decision: str, **spec: Any) -> str:
        """Apply a ToolDecision about the run's one call that waits for a person."""
        found = self.get("agentrun", run)
        status = found["status"]
        waiting: list[dict[str, Any]] = status.get("pendingApprovals", [])
        (call,) = waiting + status.get("unknownOutcomes", [])
        about = {"name": run, "uid": found["metadata"]["uid"]}
        whole = {
            "runRef": about,
            "callId": call["callId"],
            "argsDigest": call["argsDigest"],
            "decision": decision,
            "decidedBy": self.me(),
            **spec,
        }
        named = f"{run}-{decision.lower()}"
        self.apply("ToolDecision", named, whole)
        return named

    def me(self) -> str:
        """The user that the tests are to the API server."""
        review = json.loads(self.release.kubectl("auth", "whoami", "-o", "json"))
        return str(review["status"]["userInfo"]["username"])

    def apply(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        self.release.apply(
            {
                "apiVersion": API,
                "kind": kind,
                "metadata": {"name": name, "labels": {"test": self.name}},
                "spec": spec,
            }
        )
        self.made.append((kind.lower(), name))

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return self.release.get(kind, name)

    # ------------------------------------------------------------------------ following

    def until(
        self, kind: str, name: str, condition: str, wanted: str, *, timeout_s: float = 90.0
    ) -> dict[str, Any]:
        """Wait for a condition's ``status/reason``, either part of which may be ``*``."""
        status, _, reason = wanted.partition("/")
        seen = "nothing"

        def holds() -> bool:
            nonlocal seen
            found = condition_of(self.get(kind, name), condition)
            seen = f"{found.get('status')}/{found.get('reason')} ({found.get('message')})"
            return status in ("*", found.get("status")) and reason in ("", "*", found.get("reason"))

        try:
            wait_until(
                holds, what=f"{kind} {name}: {condition}={wanted}", timeout_s=timeout_s, every_s=0.3
            )
        except Hopeless:
            raise
        except ClusterError as late:
            raise ClusterError(f"{late}; it is {seen}") from late
        return condition_of(self.get(kind, name), condition)

    def completed(self, run: str, *, timeout_s: float = 120.0) -> str:
        """Wait for the run's success; what it answered."""
        self.until("agentrun", run, "Succeeded", "True/Completed", timeout_s=timeout_s)
        return str(self.get("agentrun", run)["status"]["result"]["text"])

    def events(self, run: str, type_: str = "") -> list[dict[str, Any]]:
        """The run's log, read with the worker's own command beside the store."""
        run_id = self.get("agentrun", run)["status"]["runId"]
        lines = self.aaa("events", run_id, "--json").splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [each for each in found if not type_ or each["type"] == type_]

    def aaa(self, *words: str) -> str:
        """The command `aaa`, run in a worker's pod of any pool."""
        pod = self.pods(everywhere=True)[0]["metadata"]["name"]
        script = 'exec aaa "$@" --store "$(cat "$AAA_STORE_FILE")"'
        return self.release.kubectl("exec", pod, "--", "sh", "-c", script, "sh", *words)

    # ----------------------------------------------------------------------------- pods

    def pool(self, run: str) -> str:
        """The name of the run's pool."""
        return str(self.get("agentrun", run)["status"]["pool"]["name"])

    def pods(self, pool: str = "", *, everywhere: bool = False) -> list[dict[str, Any]]:
        """Ready pods of a pool, or of all."""
        selector = "aaa.dev/pool" if everywhere else f"aaa.dev/pool={pool}"
        kubectl = self.release.cluster.kubectl
        return kubectl.ready_pods(selector, namespace=self.release.namespace)

    # -------------------------------------------------------------------------- clearing

    def clear(self) -> None:
        """Take away what the test has made."""
        for kind, name in reversed(self.made):
            words = ("--ignore-not-found", "--wait=false")
            self.release.kubectl("delete", kind, name, *words)

    def _source(self) -> str:
        name = "steps"
        self.release.apply(config_map(name, {"steps.py": AGENT.read_text()}))
        return name


def condition_of(found: dict[str, Any], type_: str) -> dict[str, Any]:
    """A condition of an object; empty if there is none of that type."""
    conditions = found.get("status", {}).get("conditions", [])
    return next((dict(each) for each in conditions if each["type"] == type_), {})


def config_map(name: str, data: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def short(name: str) -> str:
    """A test's name as an object may be called, told apart from others by its end."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    digest = f"{abs(hash_of(words)):x}"[:6]
    return f"{words[:24].rstrip('-')}-{digest}"


def hash_of(text: str) -> int:
    """A number that is the same in each process."""
    return int.from_bytes(text.encode(), "big") % 0xFFFFFFFB


def path_of(folder: Path, test: str) -> Path:
    """Where a test's evidence goes."""
    return folder / short(test)
