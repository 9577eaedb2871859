"""Which pods hold a dead lease, and when that may be believed: a pure state machine.

A worker renews its lease while its loop runs. A pod that is Running whose worker's lease has gone
is frozen: its calls are up for takeover already and its late results are fenced by the log, so
evicting it is tidying, never safety. That is why this machine would rather be late than wrong. It
believes in a frozen pod only if all of these hold:

- the store answers, and is the same server process as in the last two looks (:attr:`Look.server`):
  a restart or a failover may have lost leases, not workers;
- it has watched that server for two TTLs, and the operator's own canary lease was renewed in it;
- this worker incarnation's lease was seen alive, and then seen gone in two looks, at least a second
  apart by the store's clock;
- the pod's container started before the incarnation was last seen alive: otherwise the kubelet has
  restarted it in place, and the healthy successor must not be hit;
- no more than max(1, 20 %) of the pool's leases went in the same window; more looks like the
  store, not like the pods. This hold ends after three TTLs of one server during which the canary's
  lease was renewed in every look.

All times are the store's own (:attr:`Look.now_ms`), but for a container's start, which the kubelet
wrote: the two are only compared with :data:`SKEW_MS` to spare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from aaa_operator.actions import DeletePod, Evict
from aaa_operator.observe import PodSeen

#: How far the clocks of a node and of the store may be apart.
SKEW_MS: Final = 2_000
#: Least time between the two looks that must agree.
APART_MS: Final = 1_000
#: Share of a pool's leases that may go together before it is blamed on the store.
TOGETHER: Final = 0.2
#: Seconds of grace for an evicted pod: its process does not listen anyway.
GRACE_S: Final = 10
#: How long an eviction may be refused until the pod is deleted.
DEADLINE_MS: Final = 120_000
#: A run whose pods froze so often within the window is quarantined.
FREEZES: Final = 3
FREEZE_WINDOW_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at the store and the pods. ``server`` is ``None`` while the store is out of reach.

    ``live`` maps worker incarnations that hold a lease to their pods' names.
    """

    server: str | None
    now_ms: int = 0
    canary_renewed: bool = False
    live: Mapping[str, str] = field(default_factory=dict)
    pods: tuple[PodSeen, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A worker incarnation that was seen alive."""

    pod: str
    pod_uid: str
    pool: str
    last_alive_ms: int
    #: When its lease was first seen gone, and how many looks have agreed.
    gone_ms: int | None = None
    gone_looks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the machine remembers between looks. A fresh one believes nothing."""

    server: str | None = None
    #: Since when this server has been watched without a gap.
    since_ms: int = 0
    #: Since when every look has found the canary renewed; ``None`` if the last one did not.
    canary_since_ms: int | None = None
    last_ms: int = 0
    leases: Mapping[str, Lease] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """A pod to be evicted, with the evidence for it."""

    pod: PodSeen
    worker: str
    last_alive_ms: int
    gone_ms: int
    looks: int
    server: str

    def evidence(self) -> dict[str, object]:
        return {
            "worker": self.worker,
            "pod": self.pod.meta.name,
            "podUid": self.pod.meta.uid,
            "pool": self.pod.pool,
            "lastAliveMs": self.last_alive_ms,
            "goneMs": self.gone_ms,
            "looks": self.looks,
            "server": self.server,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Which pods are frozen; or why nothing is believed now, pool by pool or (``""``) at all."""

    frozen: tuple[Frozen, ...] = ()
    holds: Mapping[str, str] = field(default_factory=dict)


def judge(memory: Memory, look: Look, *, ttl_ms: int) -> tuple[Memory, Verdict]:
    """Take in one look. ``ttl_ms`` is the workers' TTL."""
    if look.server is None:
        return _broken_off(memory), Verdict(holds={"": "the store cannot be reached"})
    if look.server != memory.server or look.now_ms < memory.last_ms:
        fresh = Memory(
            server=look.server,
            since_ms=look.now_ms,
            canary_since_ms=look.now_ms if look.canary_renewed else None,
            last_ms=look.now_ms,
            leases=_seen(_broken_off(memory).leases, look),
        )
        return fresh, Verdict(holds={"": "the store's server has changed or restarted"})
    canary: int | None = (
        memory.canary_since_ms if memory.canary_since_ms is not None else look.now_ms
    )
    if not look.canary_renewed:
        canary = None
    memory = replace(
        memory,
        canary_since_ms=canary,
        last_ms=look.now_ms,
        leases=_seen(memory.leases, look),
    )
    if canary is None:
        return memory, Verdict(holds={"": "the operator's own lease was not renewed"})
    if look.now_ms - memory.since_ms < 2 * ttl_ms or look.now_ms - canary < ttl_ms:
        return memory, Verdict(holds={"": "the store has not been watched for two TTLs yet"})
    return memory, _believed(memory, look, ttl_ms=ttl_ms)


def forget(memory: Memory, worker: str) -> Memory:
    """The pod of this incarnation was evicted, or has gone."""
    left = {name: lease for name, lease in memory.leases.items() if name != worker}
    return replace(memory, leases=left)


def evictions(
    verdict: Verdict, asked_ms: Mapping[str, int], *, now_ms: int
) -> list[Evict | DeletePod]:
    """What to do about the frozen pods; ``asked_ms`` says since when each uid is to be evicted.

    A budget may say no for a while; after :data:`DEADLINE_MS` the pod is deleted by its uid.
    """
    found: list[Evict | DeletePod] = []
    for one in verdict.frozen:
        meta = one.pod.meta
        reason = f"worker {one.worker} holds no lease any more, and its pod still runs"
        if now_ms - asked_ms.get(meta.uid, now_ms) >= DEADLINE_MS:
            found.append(
                DeletePod(pod=meta.name, uid=meta.uid, evidence=one.evidence(), reason=reason)
            )
        else:
            found.append(
                Evict(
                    pod=meta.name,
                    uid=meta.uid,
                    resource_version=meta.resource_version,
                    grace_s=GRACE_S,
                    evidence=one.evidence(),
                    reason=reason,
                )
            )
    return found


# ------------------------------------------------------------------------------------- inside


def _broken_off(memory: Memory) -> Memory:
    """A gap: who was seen gone before it must be seen gone anew, by a server watched anew."""
    leases = {
        name: replace(lease, gone_ms=None, gone_looks=0) for name, lease in memory.leases.items()
    }
    return replace(memory, server=None, canary_since_ms=None, leases=leases)


def _seen(leases: Mapping[str, Lease], look: Look) -> dict[str, Lease]:
    """The leases after a look: alive ones, gone ones counted, those without a pod forgotten."""
    pods = {pod.meta.name: pod for pod in look.pods}
    found: dict[str, Lease] = {}
    for worker, pod_name in look.live.items():
        pod = pods.get(pod_name)
        if pod is not None:
            found[worker] = Lease(
                pod=pod_name, pod_uid=pod.meta.uid, pool=pod.pool, last_alive_ms=look.now_ms
            )
    for worker, lease in leases.items():
        pod = pods.get(lease.pod)
        if worker in found or pod is None or pod.meta.uid != lease.pod_uid:
            continue
        if lease.gone_ms is None:
            found[worker] = replace(lease, gone_ms=look.now_ms, gone_looks=1)
        else:
            found[worker] = replace(lease, gone_looks=lease.gone_looks + 1)
    return found


def _believed(memory: Memory, look: Look, *, ttl_ms: int) -> Verdict:
    pods = {pod.meta.name: pod for pod in look.pods}
    suspects: dict[str, list[Frozen]] = {}
    sizes: dict[str, int] = {}
    for worker, lease in memory.leases.items():
        pod = pods[lease.pod]
        if _succeeded(worker, lease, memory.leases):
            continue
        sizes[lease.pool] = sizes.get(lease.pool, 0) + 1
        if lease.gone_ms is None or not _is_same_process(pod, lease):
            continue
        suspects.setdefault(lease.pool, []).append(
            Frozen(
                pod=pod,
                worker=worker,
                last_alive_ms=lease.last_alive_ms,
                gone_ms=lease.gone_ms,
                looks=lease.gone_looks,
                server=look.server or "",
            )
        )
    frozen: list[Frozen] = []
    holds: dict[str, str] = {}
    for pool, found in suspects.items():
        together = len(found) > max(1, int(TOGETHER * sizes[pool]))
        if together and not _stable(memory, found, ttl_ms=ttl_ms):
            holds[pool] = f"{len(found)} of {sizes[pool]} leases ran out together"
            continue
        frozen += [one for one in found if one.looks >= 2 and look.now_ms - one.gone_ms >= APART_MS]
    return Verdict(frozen=tuple(frozen), holds=holds)


def _is_same_process(pod: PodSeen, lease: Lease) -> bool:
    """The container that runs now is the one that held the lease."""
    running = pod.phase == "Running" and pod.started_ms is not None and not pod.meta.deleting
    return running and (pod.started_ms or 0) + SKEW_MS <= lease.last_alive_ms


def _succeeded(worker: str, lease: Lease, leases: Mapping[str, Lease]) -> bool:
    """Another incarnation lives in the same pod: the container was restarted in place."""
    return any(
        other != worker and one.pod_uid == lease.pod_uid and one.gone_ms is None
        for other, one in leases.items()
    )


def _stable(memory: Memory, found: list[Frozen], *, ttl_ms: int) -> bool:
    """Three TTLs of one server and a renewed canary since the leases ran out."""
    since = max(memory.since_ms, memory.canary_since_ms or memory.last_ms)
    since = max(since, *(one.gone_ms for one in found)) if found else since
    return memory.last_ms - since >= 3 * ttl_ms


def quarantined(
    freezes: Mapping[str, tuple[int, ...]] = MappingProxyType({}), *, now_ms: int
) -> frozenset[str]:
    """Runs whose calls were in flight in so many frozen pods, by run id, within the window."""
    return frozenset(
        run_id
        for run_id, times in freezes.items()
        if sum(now_ms - time <= FREEZE_WINDOW_MS for time in times) >= FREEZES
    )
