"""Whatever values it is given, the chart renders objects that an API server would take."""

import json
from typing import Any

import pytest

from aaa.manifest import KINDS
from chart.fields import OTHERS, problems
from chart.matrix import MATRIX
from chart.rendering import CHART, KUBERNETES, Helm, Refused, is_hook, pod_specs


def test_helm_finds_nothing_to_say_about_the_chart(helm: Helm) -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in helm("lint", "--strict", str(CHART))


@pytest.mark.parametrize("case", MATRIX)
def test_every_field_is_one_that_kubernetes_has(helm: Helm, case: str) -> None:
    for each in helm.objects(MATRIX[case]):
        if each["apiVersion"] not in OTHERS:
            assert problems(each) == []
        elif each["kind"] in KINDS:
            KINDS[each["kind"]].model_validate(each)


@pytest.mark.parametrize("case", MATRIX)
def test_no_two_objects_are_the_same_one_and_each_has_its_namespace(helm: Helm, case: str) -> None:
    found = helm.objects(MATRIX[case])
    names = [(e["kind"], e["metadata"].get("namespace"), e["metadata"]["name"]) for e in found]
    assert len(set(names)) == len(names)
    global_kinds = ("Cluster", "Custom", "Validating")
    for kind, namespace, name in names:
        assert (namespace is None) == kind.startswith(global_kinds), f"{kind} {name}"
        assert len(name) <= 63


def test_both_helms_render_the_same(helm: Helm) -> None:
    other = Helm("helm4" if helm.flavour == "helm" else "helm")

    def plain(one: Helm) -> list[str]:
        # Passwords are made anew each time.
        rest = [each for each in one.objects() if each["kind"] != "Secret"]
        return sorted(json.dumps(each, sort_keys=True) for each in rest)

    assert plain(helm) == plain(other)


@pytest.mark.parametrize("version", KUBERNETES)
def test_it_renders_for_the_oldest_and_the_newest_kubernetes(helm: Helm, version: str) -> None:
    assert helm.objects(kubernetes=version)


def test_an_older_kubernetes_is_refused(helm: Helm) -> None:
    with pytest.raises(Refused, match=r"1\.30"):
        helm.objects(kubernetes="1.29.9")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"operater": {}}, "operater"),
        ({"operator": {"replicas": 2}}, "replicas"),
        ({"redis": {"storage": {"sise": "1Gi"}}}, "sise"),
        ({"workers": {"concurrency": 0}}, "concurrency"),
        ({"workers": {"minReplicas": 5, "maxReplicas": 2}}, "above workers.maxReplicas"),
        ({"store": {"url": "sqlite:///runs.db"}, "redis": {"enabled": False}}, "url"),
        ({"store": {"url": "redis://here"}}, "redis.enabled=false"),
        ({"store": {"sharedSecretName": "x"}}, "set redis.enabled=false or redis.existingSecret"),
        (
            {
                "redis": {"enabled": False},
                "store": {"sharedSecretName": "x", "url": "redis://here"},
            },
            "leave store.url empty",
        ),
        ({"store": {"caCertificates": "no"}}, "caCertificates"),
        (
            {"store": {"caCertificates": "-----BEGIN CERTIFICATE-----"}},
            "put them into it as ca.crt",
        ),
        ({"store": {"secretName": "aaa-shared-store"}}, "choose another name"),
        ({"store": {"rotationSeconds": 60}}, "rotationSeconds"),
        ({"watch": {"namespaces": ["a"], "cluster": True}}, "leave one of them out"),
        ({"images": {"worker": {"digest": "latest"}}}, "digest"),
        ({"operator": {"env": [{"name": "AAA_OPERATOR_LEASE_NAME"}]}}, "a value of its own"),
    ],
)
def test_wrong_values_are_refused_by_name(helm: Helm, values: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused, match=said):
        helm.objects(values)


def test_the_notes_say_what_is_watched_and_what_to_type_next() -> None:
    helm = Helm("helm4")  # Helm 3 asks a cluster before it shows them
    words = ["install", "aaa", str(CHART), "-n", "shop", "--dry-run=client"]
    told = helm(*words).partition("NOTES:")[2]
    assert "AgentRuns in shop." in told
    assert "helm test aaa -n shop" in told
    everywhere = helm(*words, values={"watch": {"cluster": True}}).partition("NOTES:")[2]
    assert "AgentRuns in every namespace." in everywhere


@pytest.mark.parametrize("case", MATRIX)
def test_every_pod_keeps_the_restricted_profile(helm: Helm, case: str) -> None:
    for owner, template in pod_specs(helm.objects(MATRIX[case])):
        spec = template["spec"]
        pod = spec["securityContext"]
        assert (pod["runAsNonRoot"], pod["runAsUser"]) == (True, 10001), owner["metadata"]["name"]
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC"))
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert isinstance(container["command"], list)


@pytest.mark.parametrize("case", MATRIX)
def test_what_pods_mount_and_selectors_select_is_there(helm: Helm, case: str) -> None:
    found = helm.objects(MATRIX[case])
    for owner, template in pod_specs(found):
        spec, name = template["spec"], owner["metadata"]["name"]
        claims = owner["spec"].get("volumeClaimTemplates") or ()
        volumes = {each["name"] for each in spec.get("volumes") or ()}
        volumes |= {each["metadata"]["name"] for each in claims}
        for container in spec["containers"]:
            assert {each["name"] for each in container.get("volumeMounts") or ()} <= volumes, name
        if "selector" in owner["spec"]:
            wanted = owner["spec"]["selector"]["matchLabels"].items()
            assert wanted <= template["metadata"]["labels"].items(), name
    labels = [template["metadata"].get("labels", {}) for _, template in pod_specs(found)]
    for each in found:
        if each["kind"] == "Service":
            assert sum(each["spec"]["selector"].items() <= ours.items() for ours in labels) == 1


@pytest.mark.parametrize("case", MATRIX)
def test_what_holds_runs_and_their_rules_outlives_the_release(helm: Helm, case: str) -> None:
    for each in helm.objects(MATRIX[case]):
        notes = each["metadata"].get("annotations") or {}
        kept = notes.get("helm.sh/resource-policy") == "keep"
        name = each["metadata"]["name"]
        lasting = each["kind"].startswith(("Custom", "Validating")) or (
            each["kind"] == "Secret" and name.endswith("-redis")
        )
        assert kept == lasting, f"{each['kind']} {name}"
        if each["kind"] == "StatefulSet":
            assert each["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Retain"


def test_uninstalling_is_prepared_by_a_job_with_rights_of_its_own(helm: Helm) -> None:
    hooks = [each for each in helm.objects() if is_hook(each)]
    before = {
        (each["kind"], int(each["metadata"]["annotations"]["helm.sh/hook-weight"]))
        for each in hooks
        if each["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    }
    assert before == {("ServiceAccount", -1), ("Role", -1), ("RoleBinding", -1), ("Job", 0)}
    job = helm.one("Job", "aaa-uninstall")
    assert job["spec"]["activeDeadlineSeconds"] < 300  # helm's own patience
    assert not [e for e in helm.objects(MATRIX["everything off"]) if e["kind"] == "Job"]
