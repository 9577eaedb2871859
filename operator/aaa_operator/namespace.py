"""One pass over one namespace: look around, plan, carry out, and say when to look again."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from typing import Any, Final

from aaa.clock import SYSTEM_CLOCK, Clock
from aaa.telemetry import Telemetry
from aaa_operator import frozen, names
from aaa_operator.actions import DeletePod, Evict
from aaa_operator.admission import binding_path, judge_admission, policy_path
from aaa_operator.api import Api, ApiFailure
from aaa_operator.apply import Applier, Report
from aaa_operator.cluster import Around, Cluster
from aaa_operator.metrics import Metrics
from aaa_operator.observe import PodSeen, Problem, RunSeen, StoreSeen
from aaa_operator.plan import plan
from aaa_operator.queue import Again
from aaa_operator.settings import Settings
from aaa_operator.stores import StoreWatch, url_in
from aaa_operator.tracing import reconciling

log = logging.getLogger("aaa.operator")

#: Seconds between looks while something is to change that no watch tells of.
_SOON_S: Final = 5.0


class Namespace:
    """The operator's memory of a namespace between passes; all of it can be lost without harm."""

    def __init__(
        self,
        name: str,
        *,
        api: Api,
        cluster: Cluster,
        settings: Settings,
        canary: str,
        clock: Clock = SYSTEM_CLOCK,
        metrics: Metrics | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.name = name
        self._api, self._cluster, self._settings, self._clock = api, cluster, settings, clock
        self._metrics, self._telemetry = metrics, telemetry
        self._held = 0
        self._store = StoreWatch(canary=canary, ttl_s=settings.pools.worker_ttl_s)
        self._uid = ""
        self._memory = frozen.Memory()
        self._asked_ms: dict[str, int] = {}
        self._freezes: dict[str, tuple[int, ...]] = {}

    async def look(self) -> Again:
        """One pass. Raises :class:`ApiFailure` if the namespace itself cannot be read."""
        now_ms, began_s = self._clock.now_ms(), self._clock.boot_s()
        runs = self._cluster.runs(self.name)
        decided = self._cluster.runs_to_decide(self.name)
        # A call's outcome may be told after its run has ended.
        active = [run for run in runs if not run.finished or run.meta.name in decided]
        store = await self._look_at_store(active, now_ms=now_ms)
        around = await self._around(active, now_ms=now_ms)
        snapshot = self._cluster.snapshot(self.name, store=store, around=around, now_ms=now_ms)
        todo = plan(snapshot, self._settings.pools)
        evictions = self._frozen(store, now_ms=now_ms)
        applier = Applier(self._api, self._store.client, namespace=self.name, now_ms=now_ms)
        actions = [*todo.actions, *evictions]
        with reconciling(self._telemetry, self.name, actions):
            report = await applier.carry_out(actions)
        for uid in report.written:
            self._cluster.wrote(self.name, uid, now_ms=now_ms)
        if self._metrics is not None:
            took_s = self._clock.boot_s() - began_s
            self._metrics.looked(self.name, report, store=store, held=self._held, took_s=took_s)
        return self._again(report, active=bool(active), in_ms=todo.again_in_ms)

    async def store_url(self, runs: list[RunSeen]) -> str | Problem:
        """The URL of the store that these runs are in; of none, the namespace's own."""
        return await self._url(runs)

    async def close(self) -> None:
        await self._store.close()

    # ------------------------------------------------------------------------------- its parts

    def _again(self, report: Report, *, active: bool, in_ms: int | None) -> Again:
        if report.failures:
            return Again(in_s=report.retry_after_s or None, failed=True)
        waits = [self._settings.resync_s]
        if active:
            waits.append(self._settings.store_look_s)
        if self._cluster.undecided(self.name):
            waits.append(_SOON_S)
        if in_ms is not None:
            waits.append(in_ms / 1000)
        if report.stale:
            waits.append(self._settings.retry_s)
        return Again(in_s=min(waits))

    async def _look_at_store(self, active: list[RunSeen], *, now_ms: int) -> StoreSeen:
        if not active:
            return StoreSeen(problem=Problem("NoRuns", "no run asks for the store"))
        url = await self._url(active)
        run_ids = [run.run_id for run in active if run.run_id is not None]
        return await self._store.look(url, run_ids, now_ms=now_ms)

    async def _url(self, active: list[RunSeen]) -> str | Problem:
        """The namespace's store: one for all of its runs."""
        pools = self._settings.pools
        wanted = {(pools.store_secret, pools.store_key)}
        for run in active:
            store = run.manifest.spec.store if run.manifest is not None else None
            if store is not None:
                wanted.add((store.secret_ref.name, store.secret_ref.key))
                wanted.discard((pools.store_secret, pools.store_key))
        if len(wanted) > 1:
            named = ", ".join(sorted(name for name, _ in wanted))
            return Problem(
                "SeveralStores",
                f"the active runs of this namespace name several stores ({named}); use one store a "
                "namespace",
            )
        ((name, key),) = wanted
        where = f"Secret {name!r}, key {key!r},"
        try:
            secret = await self._api.get("Secret", name, namespace=self.name)
        except ApiFailure as failure:
            if failure.gone:
                return Problem("StoreSecretMissing", f"Secret {name!r} does not exist")
            return Problem("StoreSecretUnreadable", str(failure))
        if names.STORE not in ((secret.get("metadata") or {}).get("labels") or {}):
            return Problem("StoreSecretMissing", f"Secret {name!r} lacks the label {names.STORE}")
        text = (secret.get("data") or {}).get(key)
        if text is None:
            return Problem("StoreSecretMissing", f"Secret {name!r} has no key {key!r}")
        return url_in(base64.b64decode(text).decode(errors="replace").strip(), where=where)

    async def _around(self, active: list[RunSeen], *, now_ms: int) -> Around:
        deleting = any(run.meta.deleting for run in active)
        terminating = False
        if not self._uid or deleting:
            found = await self._api.get_path(f"/api/v1/namespaces/{self.name}")
            self._uid = found["metadata"]["uid"]
            terminating = (found.get("status") or {}).get("phase") == "Terminating"
        config_maps: dict[str, Mapping[str, Any]] = {}
        accounts: dict[str, bool] = {}
        secrets: dict[str, bool] = {}
        for run in active:
            if run.started or run.manifest is None:
                continue
            spec = run.manifest.spec
            if spec.input.config_map_ref is not None:
                await self._config_map(spec.input.config_map_ref.name, config_maps)
            if spec.agent.source is not None:
                await self._config_map(spec.agent.source.config_map_ref.name, config_maps)
            account = spec.agent.service_account_name
            if account is not None and account not in accounts:
                accounts[account] = await self._labelled(
                    "ServiceAccount", account, names.WORKER_ACCOUNT, value="true"
                )
            secret = None if spec.store is None else spec.store.secret_ref.name
            if secret is not None and secret not in secrets:
                secrets[secret] = await self._labelled("Secret", secret, names.STORE)
        return Around(
            namespace_uid=self._uid,
            terminating=terminating,
            config_maps=config_maps,
            worker_accounts=frozenset(name for name, fits in accounts.items() if fits),
            store_secrets=frozenset(name for name, fits in secrets.items() if fits),
            decisions_barred=await self._barred(),
            quarantined=self._quarantined(now_ms),
        )

    async def _config_map(self, name: str, found: dict[str, Mapping[str, Any]]) -> None:
        if name not in found:
            raw = await self._get("ConfigMap", name)
            if raw is not None:
                found[name] = raw

    async def _labelled(self, kind: str, name: str, label: str, *, value: str = "") -> bool:
        raw = await self._get(kind, name)
        labels = ((raw or {}).get("metadata") or {}).get("labels") or {}
        return label in labels and (not value or labels[label] == value)

    async def _get(self, kind: str, name: str) -> dict[str, Any] | None:
        try:
            return await self._api.get(kind, name, namespace=self.name)
        except ApiFailure as failure:
            if failure.gone:
                return None
            raise

    async def _barred(self) -> Problem | None:
        if not self._cluster.undecided(self.name):
            return None
        name = self._settings.admission_policy
        policy = await self._get_path(policy_path(name))
        binding = await self._get_path(binding_path(name))
        return judge_admission(policy, binding, name=name)

    async def _get_path(self, where: str) -> dict[str, Any] | None:
        try:
            return await self._api.get_path(where)
        except ApiFailure as failure:
            if failure.gone:
                return None
            raise

    # ------------------------------------------------------------------------- frozen workers

    def _frozen(self, store: StoreSeen, *, now_ms: int) -> list[Evict | DeletePod]:
        pods = tuple(pod for pod in self._cluster.pods(self.name) if pod.pool)
        look = self._store.look_of(pods)
        ttl_ms = self._settings.pools.worker_ttl_s * 1000
        self._memory, verdict = frozen.judge(self._memory, look, ttl_ms=ttl_ms)
        self._held = len(verdict.holds)
        for where, why in verdict.holds.items():
            log.debug("no pod of %s is judged: %s", where or self.name, why)
        suspected = {one.pod.meta.uid for one in verdict.frozen}
        for one in verdict.frozen:
            if one.pod.meta.uid not in self._asked_ms:
                self._froze(one.worker, one.pod, store, now_ms=now_ms)
        self._asked_ms = {uid: self._asked_ms.get(uid, now_ms) for uid in suspected}
        return frozen.evictions(verdict, self._asked_ms, now_ms=now_ms)

    def _froze(self, worker: str, pod: PodSeen, store: StoreSeen, *, now_ms: int) -> None:
        """Remember whose calls were on a worker that froze."""
        log.warning("worker %s in pod %s is frozen", worker, pod.meta.name)
        for run_id, progress in store.runs.items():
            if worker in progress.holders:
                times = self._freezes.get(run_id, ())
                recent = [t for t in times if now_ms - t <= frozen.FREEZE_WINDOW_MS]
                self._freezes[run_id] = (*recent, now_ms)[-frozen.FREEZES :]

    def _quarantined(self, now_ms: int) -> dict[str, Problem]:
        return {
            run_id: Problem(
                "FreezesWorkers",
                f"its calls were on {frozen.FREEZES} workers that froze within an hour; suspend it "
                "and look at what its tools do",
            )
            for run_id in frozen.quarantined(self._freezes, now_ms=now_ms)
        }
