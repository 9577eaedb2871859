"""The record of evictions survives the operator, stays small, and is not written without a change."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from aaa_operator import actions as act
from aaa_operator import names
from aaa_operator.apply import Applier, Report
from aaa_operator.evictions import KEPT, entries_in, with_entry
from k8s.fake_api import FakeApi
from k8s.scene import NOW_MS, raw_pod

EVIDENCE = {"worker": "p-1-abc", "pool": "aaa-1", "lastAliveMs": 5}


def _evict(pod: dict[str, Any]) -> act.Evict:
    meta = pod["metadata"]
    return act.Evict(
        pod=meta["name"],
        uid=meta["uid"],
        resource_version=meta["resourceVersion"],
        grace_s=1,
        evidence=EVIDENCE,
        reason="holds no lease",
    )


async def _carry_out(api: FakeApi, *actions: act.Action) -> Report:
    applier = Applier(api.api(), None, namespace="shop", now_ms=NOW_MS)
    return await applier.carry_out(actions)


def _record(api: FakeApi) -> list[dict[str, Any]]:
    return entries_in(api.get("ConfigMap", names.EVICTIONS))


async def test_an_eviction_is_recorded_with_its_evidence_before_the_pod_is_asked_to_go() -> None:
    api = FakeApi()
    report = await _carry_out(api, _evict(api.put(raw_pod("p", "aaa-1"))))
    (entry,) = _record(api)
    assert (entry["pod"], entry["outcome"], entry["evidence"]) == ("p", "Evicted", EVIDENCE)
    kinds = [kind for _, kind, _, _ in api.writes]
    assert kinds == ["ConfigMap", "Pod", "ConfigMap", "Event"]
    assert report.results[0][1] == "done"
    labels = api.get("ConfigMap", names.EVICTIONS)["metadata"]["labels"]
    assert labels == {names.MANAGED_BY: names.MANAGER}


async def test_a_refusal_is_recorded_once_however_often_it_is_repeated() -> None:
    api = FakeApi()
    evict = _evict(api.put(raw_pod("p", "aaa-1")))
    for _ in range(3):
        busy = JSONResponse({"reason": "TooManyRequests"}, status_code=429)
        api.answers["POST", "Pod"] = [busy]
        report = await _carry_out(api, evict)
        assert report.results == [(evict, "TooManyRequests")]
    (entry,) = _record(api)
    assert entry["outcome"] == "Refused (TooManyRequests)"
    assert len(api.writes) == 2
    late = act.DeletePod(pod="p", uid=evict.uid, evidence=EVIDENCE, reason="refused too long")
    assert (await _carry_out(api, late)).done == 1
    assert [one["outcome"] for one in _record(api)] == ["Deleted"]


async def test_a_pod_that_was_another_by_then_is_recorded_as_changed() -> None:
    api = FakeApi()
    evict = _evict(api.put(raw_pod("p", "aaa-1")))
    api.put(raw_pod("p", "aaa-1"))
    assert (await _carry_out(api, evict)).stale == 1
    assert [one["outcome"] for one in _record(api)] == ["Changed"]


def test_the_record_keeps_the_newest_and_survives_nonsense() -> None:
    entries: list[dict[str, Any]] = []
    for index in range(KEPT + 5):
        pod = {"metadata": {"name": f"p{index}", "uid": f"u{index}", "resourceVersion": "1"}}
        entries = with_entry(entries, _evict(pod), "Evicted", now_ms=NOW_MS)
    assert len(entries) == KEPT
    assert entries[-1]["pod"] == f"p{KEPT + 4}"
    assert entries_in({"data": {"evictions.json": "{not json"}}) == []
    assert entries_in({"data": {"evictions.json": '"text"'}}) == []
    assert entries_in(None) == []
