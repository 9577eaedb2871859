"""One pass over one namespace: look around, plan, carry out, and say when to look again."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from aaa.client import Client
from aaa.clock import SYSTEM_CLOCK, Clock
from aaa.errors import AAAError, AccessRefused, StoreUnavailable
from aaa.manifest import AgentRun
from aaa.telemetry import Telemetry
from aaa_operator import frozen, names
from aaa_operator.actions import Admit, DeletePod, Evict, Expel
from aaa_operator.admission import binding_path, judge_admission, policy_path
from aaa_operator.api import Api, ApiFailure
from aaa_operator.apply import Applier, Report
from aaa_operator.cluster import Around, Cluster
from aaa_operator.hindrances import hindered, hindrance
from aaa_operator.metrics import Metrics
from aaa_operator.observe import PodSeen, Problem, RunSeen, StoreSeen, meta_of
from aaa_operator.places import Place, place_of
from aaa_operator.plan import plan
from aaa_operator.queue import Again
from aaa_operator.settings import Settings
from aaa_operator.stores import StoreWatch
from aaa_operator.sweep import Sweep
from aaa_operator.tenants import Tenant, access, stands
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
        #: What the last pass was refused for good.
        self._hindered: Mapping[str, Problem] = {}
        #: Whether this process may have made the namespace's user.
        self._admitted = False
        #: The store of the last active runs, while there are workers.
        self._where: str | Problem | None = None
        self._sweep = Sweep(api, cluster, namespace=name, every_s=settings.resync_s)
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
        if not await self._is_there():
            return Again(in_s=self._settings.resync_s)
        place = await self._place(active)
        around = await self._around(active, now_ms=now_ms)
        store = await self._look_at_store(place, active, now_ms=now_ms)
        tenancy = await self._tenancy(place, around, needed=self._needed(active), now_ms=now_ms)
        if isinstance(tenancy, Problem):
            store, tenancy = StoreSeen(problem=store.problem or tenancy), []
        around = await self._swept(around, place, store, now_ms=now_ms)
        snapshot = self._cluster.snapshot(self.name, store=store, around=around, now_ms=now_ms)
        todo = plan(snapshot, self._settings.pools)
        evictions = self._frozen(store, now_ms=now_ms)
        applier = Applier(self._api, self._store.client, namespace=self.name, now_ms=now_ms)
        actions = [*tenancy, *todo.actions, *evictions]
        with reconciling(self._telemetry, self.name, actions):
            report = await applier.carry_out(actions)
        self._forget(report, needed=bool(runs) or self._needed(active))
        mended = self._hindered and not report.hindered
        self._hindered = hindered(report.hindered)
        for uid in report.written:
            self._cluster.wrote(self.name, uid, now_ms=now_ms)
        if self._metrics is not None:
            took_s = self._clock.boot_s() - began_s
            self._metrics.looked(self.name, report, store=store, held=self._held, took_s=took_s)
        workers = any(pod.pool for pod in self._cluster.pods(self.name))
        watching = bool(active or around.orphans) or (store.problem is None and workers)
        # What is mended is said at once.
        again_in_ms = 0 if mended else todo.again_in_ms
        return self._again(report, watching=watching, in_ms=again_in_ms)

    async def store_url(self, runs: list[RunSeen]) -> str | Problem:
        """The URL of the store that these runs are in; of none, the namespace's own."""
        place = await self._place(runs)
        return place if isinstance(place, Problem) else place.url

    async def close(self) -> None:
        await self._store.close()

    # ------------------------------------------------------------------------------- its parts

    def _again(self, report: Report, *, watching: bool, in_ms: int | None) -> Again:
        if report.failures:
            return Again(in_s=report.retry_after_s or None, failed=True)
        waits = [self._settings.resync_s]
        if watching:
            waits.append(self._settings.store_look_s)
        if self._cluster.undecided(self.name):
            waits.append(_SOON_S)
        if in_ms is not None:
            waits.append(in_ms / 1000)
        if report.stale:
            waits.append(self._settings.retry_s)
        return Again(in_s=min(waits))

    def _needed(self, active: list[RunSeen]) -> bool:
        """Whether workers may want the store."""
        return bool(active or self._cluster.pools(self.name))

    def _forget(self, report: Report, *, needed: bool) -> None:
        if any(isinstance(action, Expel) and said == "done" for action, said in report.results):
            self._admitted = False
        if not needed and not self._admitted:
            self._uid = ""  # the next namespace of this name is another one

    async def _is_there(self) -> bool:
        """Whether there is such a namespace, by its uid; one that has gone took all with it."""
        try:
            await self._known_uid()
        except ApiFailure as failure:
            if failure.gone:
                return False
            raise
        return True

    async def _place(self, runs: list[RunSeen]) -> Place | Problem:
        uid, settings = await self._known_uid(), self._settings
        return await place_of(self._api, runs, namespace=self.name, uid=uid, settings=settings)

    async def _look_at_store(
        self, place: Place | Problem, active: list[RunSeen], *, now_ms: int
    ) -> StoreSeen:
        if active:
            self._where = place if isinstance(place, Problem) else place.url
        elif not self._cluster.pools(self.name):
            self._where = None
        elif self._where is None and isinstance(place, Place):
            self._where = place.url
        # Workers that no run needs for now may freeze as well, where the last run had them, and
        # runs may be there that nobody claims any more.
        url = self._where or Problem("NoRuns", "no run asks for the store")
        run_ids = {run.run_id for run in active if run.run_id is not None} | self._sweep.orphans
        return await self._store.look(url, run_ids, now_ms=now_ms)

    async def _swept(
        self, around: Around, place: Place | Problem, store: StoreSeen, *, now_ms: int
    ) -> Around:
        """With the runs that nobody claims; nothing may go before they can be looked for."""
        try:
            goes = around.unread is None and await self._sweep.caught_up()
            if goes and store.problem is None and self._store.client is not None:
                goes = await self._sweep.look(self._store.client, now_ms=now_ms)
            elif goes and isinstance(place, Place):
                goes = self._where is None  # a store that does not answer may hold some
        except ApiFailure as failure:
            if hindrance(failure.status, str(failure)) is None:
                raise
            goes = False
        return replace(around, orphans=self._sweep.orphans, nothing_goes=not goes)

    async def _tenancy(
        self, place: Place | Problem, around: Around, *, needed: bool, now_ms: int
    ) -> list[Admit | Expel] | Problem:
        """What is to be done for the namespace's user in the shared store, or why nothing can be."""
        if isinstance(place, Problem) or place.tenant is None or (needed and around.terminating):
            return []
        tenant, secret = place.tenant, place.secret
        try:
            if needed:
                client = await self._store.opened(place.url)
                return await self._admission(client, tenant, secret, now_ms=now_ms)
            if secret is not None or self._admitted:
                await self._store.opened(place.url)
                uid = None if secret is None else meta_of(secret).uid
                why = "no pool of the namespace is left"
                return [
                    Expel(user=tenant.user, secret=tenant.secret_name, secret_uid=uid, reason=why)
                ]
        except AAAError as error:
            log.warning("the user of namespace %s cannot be looked after: %s", self.name, error)
            if isinstance(error, AccessRefused) or not isinstance(error, StoreUnavailable):
                return Problem(type(error).__name__, str(error))
        return []  # nothing to do, or the look at the store says that it is out of reach

    async def _admission(
        self, client: Client, tenant: Tenant, secret: dict[str, Any] | None, *, now_ms: int
    ) -> list[Admit | Expel]:
        wanted = access(
            tenant,
            secret,
            now_ms=now_ms,
            rotation_ms=self._settings.store_rotation_s * 1000,
            fresh=lambda: "".join(self._clock.token() for _ in range(4)),
        )
        self._admitted = True
        known = await client.users.admitted(tenant.user, wanted.digests)
        told = stands(secret, wanted.secret)
        if known and told:
            return []
        why = "the Secret of its workers" if known else "the server does not know the user"
        return [
            Admit(
                user=tenant.user,
                digests=wanted.digests,
                secret=None if told else wanted.secret,
                reason=why,
            )
        ]

    async def _known_uid(self) -> str:
        if not self._uid:
            found = await self._api.get_path(f"/api/v1/namespaces/{self.name}")
            self._uid = found["metadata"]["uid"]
        return self._uid

    async def _around(self, active: list[RunSeen], *, now_ms: int) -> Around:
        deleting = any(run.meta.deleting for run in active)
        terminating = False
        if deleting:
            found = await self._api.get_path(f"/api/v1/namespaces/{self.name}")
            terminating = (found.get("status") or {}).get("phase") == "Terminating"
        unread: Problem | None = None
        config_maps: dict[str, Mapping[str, Any]] = {}
        accounts: dict[str, bool] = {}
        secrets: dict[str, bool] = {}
        try:
            for run in active:
                if not run.started and run.manifest is not None:
                    await self._named_by(run.manifest, config_maps, accounts, secrets)
        except ApiFailure as failure:
            unread = hindrance(failure.status, str(failure))
            if unread is None:
                raise
        return Around(
            namespace_uid=self._uid,
            terminating=terminating,
            config_maps=config_maps,
            worker_accounts=frozenset(name for name, fits in accounts.items() if fits),
            store_secrets=frozenset(name for name, fits in secrets.items() if fits),
            decisions_barred=await self._barred(),
            quarantined=self._quarantined(now_ms),
            hindered=self._hindered,
            unread=unread,
        )

    async def _named_by(
        self,
        manifest: AgentRun,
        config_maps: dict[str, Mapping[str, Any]],
        accounts: dict[str, bool],
        secrets: dict[str, bool],
    ) -> None:
        """Look at what a run that is to begin refers to."""
        spec = manifest.spec
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
        try:
            policy = await self._get_path(policy_path(name))
            binding = await self._get_path(binding_path(name))
        except ApiFailure as failure:
            unread = hindrance(failure.status, str(failure))
            if unread is None:
                raise
            return unread
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
