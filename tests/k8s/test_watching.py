"""What the watch and the store deliver, as planning sees it."""

from __future__ import annotations

import kopf

from aaa.client import Member
from aaa_operator import names
from aaa_operator.cluster import Around, Cluster
from aaa_operator.main import Operator, registry_for
from aaa_operator.observe import Problem, StoreSeen, pod_of_worker
from aaa_operator.settings import Settings
from aaa_operator.stores import acknowledged_of, apps_of, code_of, url_in
from k8s.scene import NOW_MS, SETTINGS, raw_decision, raw_pod, raw_policy, raw_run


def _member(worker: str, *apps: str, info: str = "{}") -> Member:
    return Member(worker=worker, apps=apps, info=info.encode())


def test_a_hash_is_acknowledged_when_every_live_worker_of_the_pool_has_read_it() -> None:
    members = [
        _member("a", "p1/loop@1/x", info='{"policies": ["h1", "h2"]}'),
        _member("b", "p1/loop@1/x", info='{"policies": ["h2", "h3"]}'),
        _member("c", "p2/loop@1/x", info='{"policies": ["h1"]}'),
        _member("d", "p3/loop@1/x"),
        _member("e", "p4/loop@1/x", info="not json"),
        _member("canary"),
    ]
    assert acknowledged_of(members) == {
        "p1": {"h2"},
        "p2": {"h1"},
        "p3": frozenset(),
        "p4": frozenset(),
    }
    assert apps_of(members)["p1"] == "p1/loop@1/x"


def test_what_a_pools_code_says_is_known_when_its_workers_say_all_of_it() -> None:
    look = '{"name": "look", "schema": "s"}'
    pay = '{"name": "pay", "schema": "s", "decorator": {"delivery": "at_most_once"}}'
    members = [
        _member("a", "p1/loop@1/x", info=f'{{"policies": [], "tools": [{pay}, {look}]}}'),
        _member("b", "p1/loop@1/x", info=f'{{"policies": [], "tools": [{look}, {pay}]}}'),
        _member("c", "p2/loop@1/x", info=f'{{"policies": [], "tools": [{look}], "left_out": 1}}'),
        _member("d", "p3/loop@1/x", info="not json"),
        _member("canary"),
    ]
    code = code_of(members)
    assert {pool: [tool.name for tool in said.tools] for pool, said in code.items()} == {
        "p1": ["look", "pay"]
    }
    assert code["p1"].digest == code_of(members[1:2])["p1"].digest


def test_a_worker_is_found_in_its_pod_by_its_name() -> None:
    assert pod_of_worker("aaa-0f28-7c9d-x2x5q-7-1a2b3c4d") == "aaa-0f28-7c9d-x2x5q"


def test_a_store_must_be_one_that_other_nodes_can_reach() -> None:
    for fine in ("redis://h/0", "rediss://h", "redis+sentinel://h", "postgresql://h/d"):
        assert url_in(fine, where="Secret") == fine
    for wrong in ("sqlite:////etc/passwd", "memory:", "file:///x", "", "http://h"):
        found = url_in(wrong, where="Secret")
        assert isinstance(found, Problem)
        assert "/etc/passwd" not in found.message  # a Secret's content is not repeated


def test_the_cluster_forgets_what_was_deleted_and_who_set_which_field() -> None:
    cluster = Cluster()
    run = raw_run(metadata={"managedFields": [{"manager": "kubectl"}]})
    for kind, raw in (
        ("AgentRun", run),
        ("ToolPolicy", raw_policy()),
        ("ToolDecision", raw_decision()),
        ("Pod", raw_pod("p", "aaa-1")),
        ("ConfigMap", {"metadata": {"name": "aaa-source-1", "namespace": "shop"}, "data": {}}),
    ):
        assert cluster.heard(kind, raw, deleted=False) == "shop"
    around = Around(namespace_uid="ns")
    seen = cluster.snapshot("shop", store=StoreSeen(), around=around, now_ms=NOW_MS)
    assert (len(seen.runs), len(seen.policies), len(seen.decisions)) == (1, 1, 1)
    assert list(seen.pools) == ["aaa-1"]
    assert list(seen.config_maps) == ["aaa-source-1"]
    assert cluster.undecided("shop")
    assert cluster.runs_to_decide("shop") == {"refund"}
    taken = {"conditions": [{"type": "Accepted", "status": "True", "reason": "Taken"}]}
    cluster.heard("ToolDecision", {**raw_decision(), "status": taken}, deleted=False)
    assert (cluster.undecided("shop"), cluster.runs_to_decide("shop")) == (False, set())
    unknown = {"unknownOutcomes": [{"callId": "c2-0"}]}  # not seen to be answered yet
    cluster.heard("AgentRun", {**run, "status": unknown}, deleted=False)
    assert cluster.runs_to_decide("shop") == {"refund"}
    cluster.heard("AgentRun", run, deleted=True)
    cluster.heard("Pod", raw_pod("p", "aaa-1"), deleted=True)
    seen = cluster.snapshot("shop", store=StoreSeen(), around=around, now_ms=NOW_MS)
    assert (seen.runs, seen.pools) == ((), {})


def test_every_kind_that_planning_reads_is_watched_and_nothing_else_is_registered() -> None:
    registry = registry_for(Operator(Settings(pools=SETTINGS)))
    watched = {
        f"{handler.selector.group or ''}/{handler.selector.version}/{handler.selector.any_name}"
        for handler in registry._watching.get_all_handlers()
        if handler.selector is not None
    }
    assert len(watched) == 8
    assert "aaa.dev/v1alpha1/agentruns" in watched
    assert not registry._changing.get_all_handlers()  # no handler that adds a finalizer
    assert not registry._spawning.get_all_handlers()
    assert kopf.PRESENT is not None
    assert names.GROUP == "aaa.dev"
