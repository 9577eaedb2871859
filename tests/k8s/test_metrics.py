"""What the operator counts: each pass once, what stands as it stands, and with bounded labels."""

from __future__ import annotations

import re
from pathlib import Path

from aaa_operator import actions as act
from aaa_operator.apply import Report
from aaa_operator.cluster import Cluster
from aaa_operator.main import Operator
from aaa_operator.metrics import Metrics
from aaa_operator.observe import Problem, Progress, StoreSeen
from aaa_operator.render import labels_of
from aaa_operator.settings import Settings
from k8s.scene import SETTINGS, raw_pod, raw_run

ROOT = Path(__file__).parents[2]
RUNNING = {
    "runId": "r1",
    "startTime": "2027-01-15T07:00:00Z",
    "pool": {"name": "aaa-1"},
    "conditions": [{"type": "Succeeded", "status": "Unknown", "reason": "Running"}],
}


def _cluster() -> Cluster:
    cluster = Cluster()
    deployment = {
        "metadata": {"name": "aaa-1", "namespace": "shop", "labels": labels_of("aaa-1")},
        "spec": {"replicas": 3},
    }
    cluster.heard("Deployment", deployment, deleted=False)
    cluster.heard("Pod", raw_pod("p1", "aaa-1"), deleted=False)
    cluster.heard("Pod", raw_pod("p2", "aaa-1", ready=False), deleted=False)
    cluster.heard("AgentRun", raw_run(status=RUNNING), deleted=False)
    cluster.heard("AgentRun", raw_run("another"), deleted=False)
    return cluster


def _samples(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.text().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_a_pass_is_told_by_what_became_of_its_actions() -> None:
    metrics = Metrics(_cluster())
    evict = act.Evict(
        pod="p", uid="u", resource_version="1", grace_s=1, evidence={}, reason="frozen"
    )
    status = act.WriteStatus(
        kind="AgentRun", name="r", uid="u", resource_version="1", status={}, reason="r"
    )
    submit = act.Submit(
        name="r", run_id="r1", app="a", input={}, deadline_s=None, policy="p", reason="r"
    )
    results: list[tuple[act.Action, str]] = [
        (evict, "TooManyRequests"),
        (evict, "done"),
        (status, "done"),
        (status, "stale"),
        (submit, "done"),
        (submit, "StoreUnavailable"),
    ]
    report = Report(failures=["no"], results=results)
    store = StoreSeen(runs={"r1": Progress(app="a", digest="d", busy=7)})
    metrics.looked("shop", report, store=store, held=1, took_s=0.2)
    found = _samples(metrics)
    assert found['aaa_operator_evictions_total{how="evicted",namespace="shop"}'] == 1
    refused = 'aaa_operator_evictions_refused_total{namespace="shop",reason="TooManyRequests"}'
    assert found[refused] == 1
    assert found['aaa_operator_status_writes_total{kind="AgentRun",namespace="shop"}'] == 1
    assert found['aaa_operator_submissions_total{namespace="shop"}'] == 1
    assert found['aaa_operator_reconcile_duration_seconds_count{result="failed"}'] == 1
    assert found['aaa_operator_store_reachable{namespace="shop"}'] == 1
    assert found['aaa_operator_eviction_holds{namespace="shop"}'] == 1
    assert found['aaa_operator_pool_backlog{namespace="shop",pool="aaa-1"}'] == 7


def test_what_stands_is_read_when_somebody_asks_and_goes_when_it_has_gone() -> None:
    cluster = _cluster()
    metrics = Metrics(cluster)
    found = _samples(metrics)
    assert found['aaa_operator_runs{namespace="shop",state="Running"}'] == 1
    assert found['aaa_operator_runs{namespace="shop",state="New"}'] == 1
    assert found['aaa_operator_pool_replicas{namespace="shop",pool="aaa-1"}'] == 3
    assert found['aaa_operator_pool_ready{namespace="shop",pool="aaa-1"}'] == 1
    cluster.heard("AgentRun", raw_run("another"), deleted=True)
    assert 'aaa_operator_runs{namespace="shop",state="New"}' not in _samples(metrics)


def test_a_store_that_is_out_of_reach_shows_and_one_that_nobody_needs_does_not() -> None:
    metrics = Metrics(_cluster())
    gone = StoreSeen(problem=Problem("StoreUnreachable", "no"))
    metrics.looked("shop", Report(), store=gone, held=0, took_s=0)
    assert _samples(metrics)['aaa_operator_store_reachable{namespace="shop"}'] == 0
    idle = StoreSeen(problem=Problem("NoRuns", "no run asks for the store"))
    metrics.looked("shop", Report(), store=idle, held=0, took_s=0)
    assert 'aaa_operator_store_reachable{namespace="shop"}' not in _samples(metrics)


def test_the_documented_metrics_are_the_operators() -> None:
    operator = Operator(Settings(pools=SETTINGS))
    operator.observe()
    made = {family.name for family in operator.metrics.registry.collect()}
    page = (ROOT / "docs" / "telemetry.md").read_text().split("\n## The operator's metrics\n")[1]
    rows = re.findall(r"^\| `(aaa_operator_\w+)`", page.split("\n## ")[0], re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert {row.removesuffix("_total") for row in rows} == made
