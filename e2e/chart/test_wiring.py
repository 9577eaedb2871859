"""What the chart hands to the programs is what they read."""

import base64
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import redis

from aaa.app import load_app
from aaa.store.redis.address import parse
from aaa_operator import awaited, crds, names, uninstall
from aaa_operator.admission import judge_admission
from aaa_operator.settings import PREFIX, PoolSettings, Settings
from aaa_operator.stores import url_in
from chart.matrix import MATRIX
from chart.rendering import CHART, Helm, Raw, pod_specs
from servers.binaries import redis_binary
from servers.process import HOST, free_port, wait_until

CERTIFICATES = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
#: Settings that nobody changes, or not without the rest of the chart; `operator.env` can set them.
WITHOUT_VALUE = {
    "pools", "retry_s", "retry_max_s", "read_port", "health_port", "metrics_port", "heartbeat_s",
    "watch_limit_s",
}  # fmt: skip


def environment(deployment: Raw) -> dict[str, str]:
    found = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    assert len({each["name"] for each in found}) == len(found)  # server-side apply refuses two
    return {each["name"]: each["value"] for each in found}


@pytest.mark.parametrize("case", MATRIX)
def test_the_operator_understands_every_setting_that_it_is_given(helm: Helm, case: str) -> None:
    name = "second-operator" if case == "second release" else "aaa-operator"
    given = environment(helm.one("Deployment", name, MATRIX[case]))
    settings = Settings.from_environment(given)
    assert settings.lease_namespace == "shop"
    assert settings.pools.image.endswith("aaa-worker:0.1.0")
    assert settings.pools.user_id == 10001
    assert settings.pools.image_pull_secrets == (("registry",) if case == "everything on" else ())
    cluster = case == "whole cluster"
    several = ("shop", "billing", "support")
    assert settings.namespaces == (
        () if cluster else several if case == "three namespaces" else ("shop",)
    )


def test_each_default_of_a_value_is_the_operators_own_default(helm: Helm) -> None:
    given = Settings.from_environment(environment(helm.one("Deployment", "aaa-operator")))
    differs = {
        "image", "user_id", "namespaces", "lease_namespace", "lease_name", "pools", "store_file",
    }  # fmt: skip
    plain = Settings(pools=PoolSettings(image=given.pools.image))
    for kind, ours, theirs in ((PoolSettings, given.pools, plain.pools), (Settings, given, plain)):
        for item in fields(kind):
            if item.name not in differs:
                assert getattr(ours, item.name) == getattr(theirs, item.name), item.name


def test_every_setting_can_be_set_by_a_value(helm: Helm) -> None:
    given = environment(helm.one("Deployment", "aaa-operator", MATRIX["everything on"]))
    known = {each.name for kind in (PoolSettings, Settings) for each in fields(kind)}
    left = known - {each.removeprefix(PREFIX).lower() for each in given}
    assert left <= WITHOUT_VALUE


def test_probes_and_services_lead_to_ports_that_are_open(helm: Helm) -> None:
    container = helm.one("Deployment", "aaa-operator")["spec"]["template"]["spec"]["containers"][0]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"read": 8080, "health": 8081, "metrics": 9090}
    service = helm.one("Service", "aaa-operator")
    assert {each["targetPort"] for each in service["spec"]["ports"]} == {"read", "metrics"}
    for probe, path in (("startup", "healthz"), ("liveness", "healthz"), ("readiness", "readyz")):
        wanted = {"path": f"/{path}", "port": "health"}
        assert container[f"{probe}Probe"]["httpGet"] == wanted
    settings = Settings(pools=PoolSettings(image="x"))
    for name, number in ports.items():
        assert getattr(settings, f"{name}_port", number) == number


def test_commands_are_modules_of_the_operators_image(helm: Helm) -> None:
    commands = {
        "aaa_operator.main": helm.one("Deployment", "aaa-operator")["spec"]["template"],
        "aaa_operator.uninstall": helm.one("Job", "aaa-uninstall")["spec"]["template"],
        "aaa_operator.awaited": helm.one("Pod", "aaa-test"),
    }
    for module, template in commands.items():
        container = template["spec"]["containers"][0]
        assert container["command"] == ["python", "-m", module]
        assert container["image"] == "aaa-operator:0.1.0"


def test_the_hooks_arguments_are_taken_by_their_programs(
    helm: Helm, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Any] = []

    async def noted(given: Any) -> int:
        taken.append(given)
        return 0

    monkeypatch.setattr(uninstall, "_run", noted)
    monkeypatch.setattr(awaited, "_run", noted)
    for program, template in (
        (uninstall, helm.one("Job", "aaa-uninstall")["spec"]["template"]),
        (awaited, helm.one("Pod", "aaa-test")),
    ):
        assert program.main(template["spec"]["containers"][0]["args"]) == 0
    job, test = taken
    assert (job.operator, job.namespace) == ("shop/aaa-operator", ["shop"])
    labels = helm.one("Deployment", "aaa-operator")["spec"]["selector"]["matchLabels"]
    assert job.selector == ",".join(f"{key}={value}" for key, value in labels.items())
    assert (test.name, test.namespace) == ("aaa-test", "shop")


def test_the_admission_policy_is_the_one_that_the_operator_trusts(helm: Helm) -> None:
    name = Settings(pools=PoolSettings(image="x")).admission_policy
    policy = helm.one("ValidatingAdmissionPolicy", name)
    binding = helm.one("ValidatingAdmissionPolicyBinding", name)
    assert judge_admission(policy, binding, name=name) is None
    fixed = helm.one("ValidatingAdmissionPolicy", f"{name}-fixed")
    assert fixed["spec"]["validations"][0]["expression"] == "object.spec == oldObject.spec"
    assert fixed["spec"]["matchConstraints"]["resourceRules"][0]["operations"] == ["UPDATE"]


def test_the_definitions_are_those_of_the_models(helm: Helm) -> None:
    for kind, plural in crds.PLURALS.items():
        found = helm.one("CustomResourceDefinition", f"{plural}.{crds.GROUP}")
        del found["metadata"]["annotations"]["helm.sh/resource-policy"]
        assert found == crds.definition(kind)


def test_the_test_runs_an_agent_that_can_be_imported(
    helm: Helm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in helm.one("ConfigMap", "aaa-test")["data"].items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "agent", raising=False)
    app = load_app(helm.one("AgentRun", "aaa-test")["spec"]["agent"]["app"], folder=tmp_path)
    assert app.tools is not None
    monkeypatch.delitem(sys.modules, "agent", raising=False)


@pytest.mark.parametrize("case", [name for name in MATRIX if name.startswith("a store")])
def test_a_stores_address_reaches_its_secret_unchanged(helm: Helm, case: str) -> None:
    values = MATRIX[case]
    found = [each for each in helm.objects(values) if each["kind"] == "Secret"]
    if "url" not in values["store"]:
        assert found == []  # theirs to make
        return
    (secret,) = found
    text = base64.b64decode(secret["data"]["url"]).decode()
    assert text == values["store"]["url"]
    assert url_in(text, where="Secret") == text
    shared = text.startswith("redis") and values["store"].get("userPerNamespace", True)
    # Workers may mount what carries the label; a shared store's address is the operator's alone.
    assert ("aaa.dev/store" in secret["metadata"]["labels"]) is not shared
    assert secret["metadata"]["name"] == ("aaa-shared-store" if shared else "aaa-store")


@pytest.mark.parametrize(
    ("url", "shared", "wanted"),
    [
        ("rediss://a:b@h/0", True, "rediss://a:b@h/0?ssl_ca_certs=/etc/aaa/store/ca.crt"),
        (
            "rediss+cluster://h/?timeout_s=2",
            False,
            "rediss+cluster://h/?timeout_s=2&ssl_ca_certs=/etc/aaa/store/ca.crt",
        ),
        (
            "postgresql://h/d",
            False,
            "postgresql://h/d?sslrootcert=/etc/aaa/store/ca.crt&sslmode=verify-full",
        ),
        (
            "postgresql://h/d?sslmode=verify-ca",
            True,
            "postgresql://h/d?sslmode=verify-ca&sslrootcert=/etc/aaa/store/ca.crt",
        ),
    ],
)
def test_certificates_of_a_private_authority_lie_beside_the_address_that_trusts_them(
    helm: Helm, url: str, shared: bool, wanted: str
) -> None:
    store = {"url": url, "userPerNamespace": shared, "caCertificates": CERTIFICATES}
    values = {"redis": {"enabled": False}, "store": store}
    operators = shared and url.startswith("redis")
    secret = helm.one("Secret", "aaa-shared-store" if operators else "aaa-store", values)
    texts = {key: base64.b64decode(text).decode() for key, text in secret["data"].items()}
    assert texts == {"url": wanted, names.CA_KEY: CERTIFICATES}
    assert names.CA_FILE in wanted


@pytest.mark.parametrize("case", MATRIX)
def test_only_the_operator_mounts_the_shared_stores_address(helm: Helm, case: str) -> None:
    values = MATRIX[case]
    found = helm.objects(values)
    named = values.get("store", {}).get("sharedSecretName")
    made = [
        each["metadata"]["name"]
        for each in found
        if each["kind"] == "Secret" and each["metadata"]["name"].endswith("-shared-store")
    ]
    shared = {named} if named else {*made}
    mounted = [
        (template["metadata"]["labels"]["app.kubernetes.io/name"], source["secret"]["name"])
        for _, template in pod_specs(found)
        for volume in template["spec"].get("volumes") or ()
        for source in volume.get("projected", {}).get("sources", ())
    ]
    assert mounted == [("aaa-operator", each) for each in shared for _ in ("url", "ca.crt")]
    secrets = {
        volume["secret"]["secretName"]
        for _, template in pod_specs(found)
        for volume in template["spec"].get("volumes") or ()
        if "secret" in volume
    }
    assert not shared & secrets
    for owner, template in pod_specs(found):
        if owner["kind"] == "Deployment":
            container = template["spec"]["containers"][0]
            file = environment(owner).get(f"{PREFIX}STORE_FILE")
            assert file == ("/etc/aaa/store/url" if shared else None)
            folders = {each["mountPath"] for each in container["volumeMounts"]}
            assert ("/etc/aaa/store" in folders) is bool(shared)


def test_every_alert_is_explained_in_the_documentation(helm: Helm) -> None:
    rule = helm.one("PrometheusRule", "aaa-operator", MATRIX["everything on"])
    alerts = [each for group in rule["spec"]["groups"] for each in group["rules"]]
    page = (CHART.parents[1] / "docs" / "kubernetes" / "operations.md").read_text()
    assert [each["alert"] for each in alerts] == re.findall(r"^\| `(AAA\w+)` \|", page, re.M)
    for each in alerts:
        assert "aaa_operator_" in each["expr"]
        assert {"summary", "description"} == set(each["annotations"])


def test_the_page_about_uninstalling_forgets_all_that_the_chart_leaves_behind(helm: Helm) -> None:
    page = (CHART.parents[1] / "docs" / "kubernetes" / "upgrade.md").read_text()
    commands = page.partition("To forget everything")[2].split("```")[1]
    words = {word for line in commands.splitlines() for word in re.split(r"[\s,]+", line)}
    kept = [
        each
        for each in helm.objects()
        if (each["metadata"].get("annotations") or {}).get("helm.sh/resource-policy") == "keep"
    ]
    assert len(kept) > 5
    assert {each["metadata"]["name"] for each in kept} <= words
    assert {"data-aaa-redis-0", f"{names.MANAGED_BY}={names.MANAGER}"} <= words
    by_hand = page.partition("by hand, in this order")[2].split("```")[1]
    steps = ["deployment aaa-operator", names.HEARTBEAT, names.POOL, "/metadata/finalizers"]
    assert [by_hand.index(step) for step in steps] == sorted(map(by_hand.index, steps))


def test_monitors_look_where_metrics_are(helm: Helm) -> None:
    values = MATRIX["everything on"]
    monitor = helm.one("ServiceMonitor", "aaa-operator", values)
    service = helm.one("Service", "aaa-operator", values)
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    assert wanted <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {each["name"] for each in service["spec"]["ports"]}
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


@pytest.fixture
def redis_pod(helm: Helm, tmp_path: Path) -> Iterator[tuple[int, str]]:
    """The chart's redis.conf under a real server: its port, and the password of the Secret."""
    secret = helm.one("Secret", "aaa-redis")["data"]
    (tmp_path / "auth.conf").write_bytes(base64.b64decode(secret["auth.conf"]))
    port = free_port()
    text = helm.one("ConfigMap", "aaa-redis", MATRIX["everything on"])["data"]["redis.conf"]
    text = text.replace("dir /data", f"dir {tmp_path}").replace("port 6379", f"port {port}")
    text = text.replace("/etc/redis-auth", str(tmp_path))
    (tmp_path / "redis.conf").write_text(text + f"\nbind {HOST}\n")
    server = subprocess.Popen([str(redis_binary().path), str(tmp_path / "redis.conf")])

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, port)) == 0

    try:
        assert wait_until(answers, timeout_s=20)
        yield port, base64.b64decode(secret["password"]).decode()
    finally:
        server.kill()
        server.wait()


def test_redis_starts_with_its_file_asks_for_the_password_and_loses_nothing(
    redis_pod: tuple[int, str],
) -> None:
    port, password = redis_pod
    with (
        redis.Redis(host=HOST, port=port) as nobody,
        pytest.raises(redis.AuthenticationError),
    ):
        nobody.ping()
    with redis.Redis(host=HOST, port=port, password=password, decode_responses=True) as client:
        wanted = {
            "appendonly": "yes",
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
            "loglevel": "verbose",
        }
        for setting, value in wanted.items():
            assert client.config_get(setting) == {setting: value}


def test_the_stores_address_is_that_of_the_releases_redis(helm: Helm) -> None:
    secret = helm.one("Secret", "aaa-shared-store")
    address = parse(base64.b64decode(secret["data"]["url"]).decode())
    password = base64.b64decode(helm.one("Secret", "aaa-redis")["data"]["password"]).decode()
    assert (address.hosts, address.password) == ((("aaa-redis.shop.svc", 6379),), password)
    assert re.fullmatch(r"[A-Za-z0-9]{32}", password)
    assert helm.one("Service", "aaa-redis")["spec"]["ports"][0]["port"] == 6379
