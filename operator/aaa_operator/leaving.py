"""Which pods go when a pool shrinks: those that run other images than the pool, then the least busy. Pure.

A ReplicaSet asks each pod what it costs to delete it. Those that are to go say that they cost the
least, before the number of pods is lowered; each of them then drains on SIGTERM: it claims nothing
more, and lets its calls end. One that the ReplicaSet picks otherwise drains all the same.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from aaa_operator import names
from aaa_operator.actions import Annotate
from aaa_operator.observe import PodSeen, Pool, Snapshot, meta_of, pod_of_worker

_CHEAP: Final = "-1000"


def choose(pool: Pool, snapshot: Snapshot, *, left: int) -> list[Annotate]:
    """Annotations of the pods that are to go when only ``left`` of them stay."""
    leases = Counter(
        pod_of_worker(worker) for run in snapshot.store.runs.values() for worker in run.holders
    )
    recorded = meta_of(pool.deployment or {}).annotations.get(names.IMAGE_IDS, "").split(",")

    def worth(pod: PodSeen) -> tuple[bool, bool, int, int]:
        fits = not recorded[0] or not pod.image_id or pod.image_id in recorded
        return pod.ready, fits, leases[pod.meta.name], -pod.meta.created_ms

    alive = sorted((pod for pod in pool.pods if not pod.meta.deleting), key=worth)
    going = {pod.meta.name for pod in alive[: max(0, len(alive) - left)]}
    return [
        Annotate(
            kind="Pod",
            name=pod.meta.name,
            annotations={names.DELETION_COST: _CHEAP if goes else None},
            reason="the least busy pods go first" if goes else "other pods are less busy now",
        )
        for pod in alive
        if (goes := pod.meta.name in going)
        != (pod.meta.annotations.get(names.DELETION_COST) == _CHEAP)
    ]
