"""Who may talk to whom."""

import pytest

from aaa_operator import render
from chart.flows import Pod, allowed
from chart.matrix import MATRIX
from chart.rendering import Helm, pod_specs

OUTSIDE = Pod(None)
STRANGER = Pod("shop", {"app": "web"})


def pods(helm: Helm, case: str) -> dict[str, Pod]:
    """The chart's pods by what they are, and a worker."""
    found = {"worker": Pod("shop", render.labels_of("aaa-1"), {"health": 8081})}
    for owner, template in pod_specs(helm.objects(MATRIX[case])):
        ports = template["spec"]["containers"][0].get("ports") or ()
        name = owner["metadata"]["labels"]["app.kubernetes.io/name"].removeprefix("aaa-")
        numbers = {each["name"]: each["containerPort"] for each in ports}
        found[name] = Pod("shop", template["metadata"]["labels"], numbers)
    return found


def policies(helm: Helm, case: str) -> list[dict[str, object]]:
    return [each for each in helm.objects(MATRIX[case]) if each["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize(
    ("source", "target", "port", "expected"),
    [
        ("operator", "redis", 6379, True),
        ("worker", "redis", 6379, True),
        ("stranger", "redis", 6379, False),
        ("outside", "redis", 6379, False),
        ("operator", "redis", 22, False),
        ("outside", "operator", 8080, True),  # the API server, whose address nobody knows
        ("outside", "operator", 9090, True),
        ("stranger", "operator", 22, False),
        ("operator", "outside", 443, True),
        ("operator", "outside", 6443, True),
        ("operator", "outside", 25, False),
        ("redis", "outside", 443, False),
        ("worker", "outside", 443, True),  # tools call whom they like
        ("stranger", "worker", 8081, False),
        ("worker", "worker", 8081, False),
        ("uninstall", "outside", 6443, True),
        ("test", "outside", 6443, True),
    ],
)
def test_only_what_is_needed_is_reached(
    helm: Helm, source: str, target: str, port: int, expected: bool
) -> None:
    there = pods(helm, "defaults") | {"outside": OUTSIDE, "stranger": STRANGER}
    assert allowed(policies(helm, "defaults"), there[source], there[target], port) == expected


@pytest.mark.parametrize(
    ("case", "namespace", "expected"),
    [
        ("defaults", "billing", False),
        ("three namespaces", "billing", True),
        ("three namespaces", "elsewhere", False),
        ("whole cluster", "elsewhere", True),
    ],
)
def test_workers_of_watched_namespaces_reach_redis(
    helm: Helm, case: str, namespace: str, expected: bool
) -> None:
    there = pods(helm, case)
    worker = Pod(namespace, there["worker"].labels)
    assert allowed(policies(helm, case), worker, there["redis"], 6379) == expected


def test_metrics_can_be_kept_to_those_who_read_them(helm: Helm) -> None:
    there, said = pods(helm, "everything on"), policies(helm, "everything on")
    assert not allowed(said, OUTSIDE, there["operator"], 9090)
    assert not allowed(said, STRANGER, there["operator"], 9090)


def test_a_store_elsewhere_is_reached_on_its_usual_port(helm: Helm) -> None:
    there, said = pods(helm, "a store elsewhere"), policies(helm, "a store elsewhere")
    for port in (6379, 26379, 5432):
        assert allowed(said, there["operator"], OUTSIDE, port)


def test_without_policies_everything_is_open(helm: Helm) -> None:
    assert policies(helm, "everything off") == []
