"""The password of the chart's Redis is made once: later renderings find it in the cluster."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

from chart.rendering import CHART, KUBERNETES, Helm, Raw

_KEPT = base64.b64encode(b"made-long-ago").decode()


def _password(objects: list[Raw]) -> tuple[str, str]:
    """What Redis is told, and what the store's address says."""
    secrets = {
        each["metadata"]["name"]: each["data"] for each in objects if each["kind"] == "Secret"
    }
    plain = base64.b64decode(secrets["aaa-redis"]["password"]).decode()
    assert base64.b64decode(secrets["aaa-redis"]["auth.conf"]) == f"requirepass {plain}\n".encode()
    return plain, base64.b64decode(secrets["aaa-shared-store"]["url"]).decode()


def _discovery(kinds: set[tuple[str, str]]) -> dict[str, Raw]:
    """What an API server says it has: just these kinds, by their API versions."""
    lists: dict[str, Raw] = {}
    for version, kind in sorted(kinds):
        plural = kind.lower().removesuffix("y") + ("ies" if kind.endswith("y") else "s")
        resource = {"name": plural, "kind": kind, "namespaced": True, "verbs": ["get"]}
        where = "/api/v1" if version == "v1" else f"/apis/{version}"
        empty: Raw = {"kind": "APIResourceList", "groupVersion": version, "resources": []}
        lists.setdefault(where, empty)["resources"].append(resource)
    groups = [
        {"name": name, "versions": [said], "preferredVersion": said}
        for name, _, version in (one["groupVersion"].partition("/") for one in lists.values())
        if version
        for said in [{"groupVersion": f"{name}/{version}", "version": version}]
    ]
    return {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
        **lists,
    }


@contextmanager
def cluster_with(
    secrets: dict[str, Raw], *, kinds: set[tuple[str, str]], home: Path
) -> Iterator[Path]:
    """The least of an API server that helm's `lookup` asks for; the path of its kubeconfig."""
    answers: dict[str, Raw] = {
        "/version": {"major": "1", "minor": "36", "gitVersion": f"v{KUBERNETES[-1]}"},
        **_discovery(kinds),
        **{f"/api/v1/namespaces/shop/secrets/{name}": raw for name, raw in secrets.items()},
    }

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0])
            status = {"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "code": 404}
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(found or status).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "users": [{"name": "u", "user": {}}],
        }
        path = home / "kubeconfig"
        path.write_text(json.dumps(config))
        try:
            yield path
        finally:
            server.shutdown()
            thread.join(timeout=10)


def rendered(helm: Helm, secrets: dict[str, Raw], home: Path) -> tuple[str, str]:
    kinds = {(each["apiVersion"], each["kind"]) for each in helm.objects()}
    with cluster_with(secrets, kinds=kinds, home=home) as config:
        words = ["template", "aaa", str(CHART), "-n", "shop", "--dry-run=server"]
        words += ["--disable-openapi-validation", "--kube-version", KUBERNETES[-1]]
        text = helm(*words, "--kubeconfig", str(config))
    return _password([each for each in yaml.safe_load_all(text) if each])


def test_a_password_that_is_there_is_used_again(helm: Helm, tmp_path: Path) -> None:
    # As an uninstalled release of this name leaves it: that is how Helm takes it over.
    metadata = {
        "name": "aaa-redis",
        "namespace": "shop",
        "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": {
            "meta.helm.sh/release-name": "aaa",
            "meta.helm.sh/release-namespace": "shop",
        },
    }
    kept = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
    password, url = rendered(helm, {"aaa-redis": {**kept, "data": {"password": _KEPT}}}, tmp_path)
    assert password == "made-long-ago"
    assert url == "redis://:made-long-ago@aaa-redis.shop.svc:6379/0"


def test_where_there_is_none_one_is_made_and_nobody_can_guess_it(
    helm: Helm, tmp_path: Path
) -> None:
    first, second = (rendered(helm, {}, tmp_path)[0] for _ in range(2))
    assert first != second
    assert len(first) == 32
