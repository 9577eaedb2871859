"""What the operator counts, in Prometheus' format. docs/telemetry.md lists every metric.

Counts are told by the pass that made them; what stands (runs, pools) is read from what the watch has
delivered when somebody asks, so that nothing is counted that has gone. Labels name namespaces,
pools, kinds and reasons, never runs or calls: their number stays bounded.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from aaa_operator import actions as act
from aaa_operator.apply import Report
from aaa_operator.cluster import Cluster
from aaa_operator.observe import Pool, RunSeen, StoreSeen
from aaa_operator.serving import application

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """One operator's; ``registry`` is its own, so that two in one process keep apart."""

    def __init__(self, cluster: Cluster) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._seen: dict[str, _LookedAt] = {}
        self.registry.register(_Standing(cluster, self._seen))
        self._reconciles = Histogram(
            "aaa_operator_reconcile_duration_seconds",
            "Time of one pass over a namespace, by how it ended: done, again or failed",
            ["result"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._actions = Counter(
            "aaa_operator_actions",
            "Actions of plans, by kind and result: done, stale, or the reason of the failure",
            ["action", "result"],
            registry=self.registry,
        )
        self._submissions = Counter(
            "aaa_operator_submissions",
            "Runs brought to a store",
            ["namespace"],
            registry=self.registry,
        )
        self._status_writes = Counter(
            "aaa_operator_status_writes",
            "Statuses written",
            ["namespace", "kind"],
            registry=self.registry,
        )
        self._evictions = Counter(
            "aaa_operator_evictions",
            "Pods of frozen workers that went: evicted, or deleted after the deadline",
            ["namespace", "how"],
            registry=self.registry,
        )
        self._refused = Counter(
            "aaa_operator_evictions_refused",
            "Evictions and deletions of frozen workers' pods that were refused, by reason",
            ["namespace", "reason"],
            registry=self.registry,
        )
        self._events = Counter(
            "aaa_operator_watch_events",
            "What the watch has delivered",
            ["kind"],
            registry=self.registry,
        )

    def looked(
        self, namespace: str, report: Report, *, store: StoreSeen, held: int, took_s: float
    ) -> None:
        """A pass over a namespace has ended."""
        result = "failed" if report.failures else "again" if report.stale else "done"
        self._reconciles.labels(result).observe(took_s)
        for action, became in report.results:
            self._actions.labels(type(action).__name__, became).inc()
            self._count(namespace, action, became)
        backlog = {run_id: progress.busy for run_id, progress in store.runs.items()}
        wanted = store.problem is None or store.problem.reason != "NoRuns"
        self._seen[namespace] = _LookedAt(
            reachable=store.problem is None if wanted else None, backlog=backlog, held=held
        )

    def failed(self, *, took_s: float) -> None:
        """A pass could not even look."""
        self._reconciles.labels("failed").observe(took_s)

    def heard(self, kind: str) -> None:
        """The watch has delivered something."""
        self._events.labels(kind).inc()

    def observe(self, name: str, about: str, read: Callable[[], float]) -> None:
        """A gauge that is read whenever somebody asks."""
        Gauge(name, about, registry=self.registry).set_function(read)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)

    def _count(self, namespace: str, action: act.Action, became: str) -> None:
        match action:
            case act.Submit() if became == "done":
                self._submissions.labels(namespace).inc()
            case act.WriteStatus() if became == "done":
                self._status_writes.labels(namespace, action.kind).inc()
            case act.Decide() if became == "done":
                self._status_writes.labels(namespace, "ToolDecision").inc()
            case act.Evict() | act.DeletePod() if became == "done":
                how = "evicted" if isinstance(action, act.Evict) else "deleted"
                self._evictions.labels(namespace, how).inc()
            case act.Evict() | act.DeletePod():
                self._refused.labels(namespace, became).inc()


def metrics_app(metrics: Metrics) -> web.Application:
    """``/metrics``."""
    app = application()

    async def read(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    app.router.add_get("/metrics", read)
    return app


# ------------------------------------------------------------------------------------- inside


@dataclass(frozen=True, slots=True, kw_only=True)
class _LookedAt:
    """What only a pass knows of a namespace. ``reachable`` is ``None`` where nobody asks."""

    reachable: bool | None
    #: Calls that want a worker, by run id.
    backlog: Mapping[str, int] = field(default_factory=dict)
    held: int = 0


class _Standing(Collector):
    """What stands now, by namespace."""

    def __init__(self, cluster: Cluster, seen: Mapping[str, _LookedAt]) -> None:
        self._cluster, self._seen = cluster, seen

    def collect(self) -> Iterator[GaugeMetricFamily]:
        runs = _gauge("runs", "AgentRuns, by the one word of their status", "namespace", "state")
        replicas = _gauge("pool_replicas", "Pods that a pool should have", "namespace", "pool")
        ready = _gauge("pool_ready", "Pods of a pool that are ready", "namespace", "pool")
        backlog = _gauge("pool_backlog", "Calls that want a worker", "namespace", "pool")
        store = _gauge("store_reachable", "1 while the namespace's store answers", "namespace")
        held = _gauge(
            "eviction_holds", "Reasons for which no pod is judged frozen now", "namespace"
        )
        for name in self._cluster.namespaces():
            found, seen = self._cluster.runs(name), self._seen.get(name)
            for state, count in Tally(state_of(run) for run in found).items():
                runs.add_metric([name, state], count)
            busy = _backlog(found, {} if seen is None else seen.backlog)
            for pool in self._cluster.pools(name).values():
                replicas.add_metric([name, pool.name], replicas_of(pool))
                ready.add_metric([name, pool.name], sum(pod.ready for pod in pool.pods))
                backlog.add_metric([name, pool.name], busy.get(pool.name, 0))
            if seen is not None:
                held.add_metric([name], seen.held)
                if seen.reachable is not None:
                    store.add_metric([name], float(seen.reachable))
        yield from (runs, replicas, ready, backlog, store, held)


def state_of(run: RunSeen) -> str:
    """The one word of an AgentRun's status."""
    found: Mapping[str, Any] = next(
        (one for one in run.status.get("conditions") or () if one.get("type") == "Succeeded"), {}
    )
    return str(found.get("reason") or "New")


def replicas_of(pool: Pool) -> int:
    """How many pods the pool should have."""
    if pool.deployment is None:
        return 0
    return int((pool.deployment.get("spec") or {}).get("replicas", 1))


def _backlog(runs: list[RunSeen], busy: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for run in runs:
        pool = (run.status.get("pool") or {}).get("name")
        if pool and not run.finished:
            found[str(pool)] = found.get(str(pool), 0) + busy.get(run.run_id or "", 0)
    return found


def _gauge(name: str, about: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"aaa_operator_{name}", about, labels=list(labels))
