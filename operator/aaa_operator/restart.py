"""``kubectl aaa restart POOL``: each pod of a pool is replaced, one after the other. Pure.

Somebody sets the annotation ``aaa.dev/restart`` on the pool's Deployment to anything but a number.
The operator puts its own time in its place (a clock on somebody's desk decides nothing) and from
then on deletes the oldest pod that was there before, when none is on its way out and the others
are ready. A deleted pod drains on SIGTERM within its own grace period; the Deployment replaces it.
When no old pod is left the annotation goes. An operator that dies in between goes on from it.
"""

from __future__ import annotations

from aaa_operator import names
from aaa_operator.actions import Action, Annotate, Delete
from aaa_operator.observe import PodSeen, Pool, Snapshot, meta_of


def plan_restarts(snapshot: Snapshot) -> list[Action]:
    """The next step of each restart that somebody has asked for."""
    found: list[Action] = []
    for name in sorted(snapshot.pools):
        pool = snapshot.pools[name]
        if pool.deployment is None or meta_of(pool.deployment).deleting:
            continue
        asked = meta_of(pool.deployment).annotations.get(names.RESTART)
        if asked:
            found += _step(pool, asked, now_ms=snapshot.now_ms)
    return found


def restarting_since_ms(pool: Pool) -> int | None:
    """Since when the pool's pods are being replaced; ``None`` if they are not."""
    asked = meta_of(pool.deployment or {}).annotations.get(names.RESTART, "")
    return int(asked) if asked.isdigit() else None


def _step(pool: Pool, asked: str, *, now_ms: int) -> list[Action]:
    if not asked.isdigit():
        return [_mark(pool, str(now_ms), "somebody asked for new pods")]
    if any(pod.meta.deleting for pod in pool.pods):
        return []
    old = sorted(
        _begun_before(pool, int(asked)), key=lambda pod: (pod.meta.created_ms, pod.meta.name)
    )
    if not old:
        return [_mark(pool, None, "every pod has been replaced")]
    wanted = int(((pool.deployment or {}).get("spec") or {}).get("replicas", 1))
    new = [pod for pod in pool.pods if pod not in old]
    # Those that never came up may be what the restart is to mend: they keep no other back.
    if len(pool.pods) < wanted or not all(pod.ready for pod in new):
        return []
    pod = old[0]
    reason = f"the pool is being restarted; {len(old)} to go"
    return [Delete(kind="Pod", name=pod.meta.name, uid=pod.meta.uid, reason=reason)]


def _begun_before(pool: Pool, since_ms: int) -> list[PodSeen]:
    # The API server writes whole seconds.
    return [pod for pod in pool.pods if pod.meta.created_ms < since_ms // 1000 * 1000]


def _mark(pool: Pool, value: str | None, reason: str) -> Annotate:
    return Annotate(
        kind="Deployment", name=pool.name, annotations={names.RESTART: value}, reason=reason
    )
