"""A frozen pod is found late rather than wrongly: every safety is a row of a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest

from aaa_operator import frozen
from aaa_operator.actions import DeletePod, Evict
from aaa_operator.frozen import Look, Memory, Verdict, judge
from aaa_operator.observe import Meta, PodSeen

TTL_MS = 15_000
STEP_MS = 2_000


def _pod(name: str, *, started_ms: int = -60_000, pool: str = "aaa-1") -> PodSeen:
    meta = Meta(name=name, namespace="shop", uid=f"uid-{name}", resource_version="7")
    return PodSeen(
        meta=meta, pool=pool, phase="Running", ready=True, started_ms=started_ms, restarts=0, image_id=""
    )  # fmt: skip


@dataclass
class Watch:
    """Looks, one every two seconds, at pods ``p0``, ``p1`` … and their workers."""

    pods: dict[str, PodSeen]
    gone: set[str] = field(default_factory=set)
    server: str | None = "run-1"
    canary: bool = True
    now_ms: int = 0
    memory: Memory = field(default_factory=Memory)
    extra: dict[str, str] = field(default_factory=dict)

    def look(self, times: int = 1) -> Verdict:
        verdict = Verdict()
        for _ in range(times):
            self.now_ms += STEP_MS
            live = {f"{name}-1-abc": name for name in self.pods if name not in self.gone}
            look = Look(
                server=self.server,
                now_ms=self.now_ms,
                canary_renewed=self.canary,
                live={**live, **self.extra},
                pods=tuple(self.pods.values()),
            )
            self.memory, verdict = judge(self.memory, look, ttl_ms=TTL_MS)
        return verdict


def _watch(pods: int = 3) -> Watch:
    """Watched for long enough, everybody alive."""
    watch = Watch({f"p{n}": _pod(f"p{n}") for n in range(pods)})
    assert watch.look(20) == Verdict()
    return watch


def _names(verdict: Verdict) -> list[str]:
    return [one.pod.meta.name for one in verdict.frozen]


def test_a_pod_whose_lease_has_gone_is_frozen_after_two_looks() -> None:
    watch = _watch()
    watch.gone = {"p1"}
    assert _names(watch.look()) == []
    verdict = watch.look()
    assert _names(verdict) == ["p1"]
    evidence = verdict.frozen[0].evidence()
    assert (evidence["worker"], evidence["podUid"], evidence["looks"]) == ("p1-1-abc", "uid-p1", 2)


def test_two_looks_must_be_a_second_apart_by_the_stores_own_clock() -> None:
    watch = _watch()
    watch.gone = {"p1"}
    watch.look()
    watch.now_ms += 500 - STEP_MS
    assert _names(watch.look()) == []
    assert _names(watch.look()) == ["p1"]


def test_a_lease_that_comes_back_clears_the_suspicion() -> None:
    watch = _watch()
    watch.gone = {"p1"}
    watch.look()
    watch.gone = set()
    watch.look()
    watch.gone = {"p1"}
    assert _names(watch.look()) == []


@pytest.mark.parametrize("outage", [1, 5, 60])
def test_nobody_is_evicted_for_an_outage_of_the_store(outage: int) -> None:
    watch = _watch()
    watch.server = None
    assert not watch.look(outage).frozen
    watch.server = "run-1"
    # Their leases ran out while they could not be renewed; the workers are as well as before.
    watch.gone = set(watch.pods)
    for _ in range(3):
        assert not watch.look().frozen
    watch.gone = set()
    assert not watch.look(40).frozen


def test_a_store_that_restarted_is_watched_anew_for_two_ttls() -> None:
    watch = _watch()
    watch.server, watch.gone = "run-2", {"p1"}
    looks = 0
    while not watch.look().frozen:
        looks += 1
        assert looks < 40
    assert looks * STEP_MS >= 2 * TTL_MS


def test_a_clock_that_went_back_is_another_server() -> None:
    watch = _watch()
    watch.gone = {"p1"}
    watch.now_ms -= 20_000
    assert not watch.look(3).frozen


def test_a_fresh_operator_believes_nothing_for_two_ttls() -> None:
    watch = Watch({"p0": _pod("p0"), "p1": _pod("p1")})
    watch.look()
    watch.gone = {"p1"}
    seen = 1
    while not watch.look().frozen:
        seen += 1
    assert seen * STEP_MS >= 2 * TTL_MS


def test_a_worker_that_was_never_seen_alive_is_not_judged() -> None:
    watch = Watch({"p0": _pod("p0"), "p1": _pod("p1")}, gone={"p1"})
    assert not watch.look(60).frozen


def test_without_a_renewed_canary_nothing_is_believed() -> None:
    watch = _watch()
    watch.canary, watch.gone = False, {"p1"}
    assert not watch.look(20).frozen
    watch.canary = True
    looks = 0
    while not watch.look().frozen:
        looks += 1
    assert looks * STEP_MS >= TTL_MS - STEP_MS


@pytest.mark.parametrize(
    ("pods", "gone", "at_once"),
    [(1, 1, True), (3, 1, True), (3, 2, False), (10, 2, True), (10, 3, False), (40, 8, True)],
)
def test_many_leases_that_go_together_are_held_until_the_store_has_proved_itself(
    pods: int, gone: int, at_once: bool
) -> None:
    watch = _watch(pods)
    watch.gone = {f"p{n}" for n in range(gone)}
    verdict = watch.look(2)
    assert bool(verdict.frozen) is at_once
    if at_once:
        return
    assert "ran out together" in verdict.holds["aaa-1"]
    since_ms = watch.now_ms
    while not (verdict := watch.look()).frozen:
        assert watch.now_ms - since_ms < 5 * TTL_MS
    assert watch.now_ms - since_ms >= 3 * TTL_MS - 2 * STEP_MS
    assert len(verdict.frozen) == gone


def test_one_pools_trouble_does_not_hold_another_pools_pod() -> None:
    watch = _watch(4)
    watch.pods["q0"] = _pod("q0", pool="aaa-2")
    watch.look(2)
    watch.gone = {"p0", "p1", "p2", "q0"}
    assert _names(watch.look(2)) == ["q0"]


def test_a_container_that_the_kubelet_restarted_in_place_is_not_hit() -> None:
    watch = _watch()
    watch.gone = {"p1"}
    watch.look()
    restarted = replace(watch.pods["p1"], started_ms=watch.now_ms, restarts=1)
    watch.pods["p1"] = restarted
    assert not watch.look(3).frozen
    watch.extra = {"p1-2-def": "p1"}
    assert not watch.look(20).frozen


@pytest.mark.parametrize(
    "change",
    [
        {"phase": "Failed"},
        {"started_ms": None},
        {"meta": Meta(name="p1", uid="uid-p1", deleted_ms=1)},
        {"meta": Meta(name="p1", uid="another")},
    ],
)
def test_only_a_running_pod_that_is_still_the_same_is_frozen(change: dict[str, object]) -> None:
    watch = _watch()
    watch.gone = {"p1"}
    watch.pods["p1"] = replace(watch.pods["p1"], **change)  # type: ignore[arg-type]
    assert not watch.look(5).frozen


def test_a_pod_that_has_gone_is_forgotten() -> None:
    watch = _watch()
    watch.gone = {"p1"}
    del watch.pods["p1"]
    watch.look()
    assert "p1-1-abc" not in watch.memory.leases


def test_an_eviction_that_is_refused_for_too_long_becomes_a_deletion_by_uid() -> None:
    watch = _watch()
    watch.gone = {"p1"}
    verdict = watch.look(2)
    (evict,) = frozen.evictions(verdict, {"uid-p1": 0}, now_ms=1_000)
    assert isinstance(evict, Evict)
    assert (evict.uid, evict.resource_version) == ("uid-p1", "7")
    (delete,) = frozen.evictions(verdict, {"uid-p1": 0}, now_ms=frozen.DEADLINE_MS)
    assert isinstance(delete, DeletePod)
    assert delete.uid == "uid-p1"


def _times(*minutes: int) -> tuple[int, ...]:
    return tuple(minute * 60_000 for minute in minutes)


@pytest.mark.parametrize(
    ("times", "held"),
    [(_times(1, 2), False), (_times(1, 2, 3), True), (_times(-50, 2, 3), False)],
)
def test_a_run_that_freezes_workers_again_and_again_is_quarantined(
    times: Iterable[int], held: bool
) -> None:
    found = frozen.quarantined({"r": tuple(times)}, now_ms=15 * 60_000)
    assert (found == {"r"}) is held
