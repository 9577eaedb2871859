"""The test cluster itself: it runs pods as a real one does, and its faults are what they claim."""

import http.server
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import Cluster, ClusterError
from cluster.shell import wait_until
from workloads import FETCH, web


@pytest.fixture
def app(cluster: Cluster, python_image: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A web server's Deployment and Service, named after the test."""
    name = f"web-{zlib.crc32(request.node.name.encode()):x}"
    cluster.kubectl.apply(*web(name, python_image))
    yield name
    cluster.kubectl("delete", "deployment,service", name, "--wait=false")


def fetch(cluster: Cluster, pod: str, url: str) -> str:
    return cluster.kubectl("exec", pod, "--", "python3", "-c", FETCH, url).strip()


def reaches(cluster: Cluster, pod: str, url: str) -> bool:
    try:
        fetch(cluster, pod, url)
    except ClusterError:
        return False
    return True


def one_pod(cluster: Cluster, app: str) -> dict[str, Any]:
    return cluster.kubectl.wait_ready(f"app={app}", timeout_s=60)[0]


def restarts(cluster: Cluster, pod: str) -> int:
    return int(cluster.kubectl.get("pod", pod)["status"]["containerStatuses"][0]["restartCount"])


def test_a_deployment_becomes_ready_and_its_pod_answers_exec_and_logs(
    cluster: Cluster, app: str
) -> None:
    pod = one_pod(cluster, app)["metadata"]["name"]
    assert cluster.kubectl("exec", pod, "--", "id", "-u").strip() == "10001"
    assert "listening" in cluster.kubectl("logs", pod)


def test_a_pod_reaches_services_by_name_itself_the_api_server_and_servers_on_this_machine(
    cluster: Cluster, app: str
) -> None:
    pod = one_pod(cluster, app)["metadata"]["name"]
    wait_until(
        lambda: fetch(cluster, pod, f"http://{app}.default.svc.cluster.local") == pod,
        what="the Service by its name",
        timeout_s=20,
    )
    assert fetch(cluster, pod, f"http://{app}") == pod
    resolve = "import socket; print(socket.gethostbyname('kubernetes.default'))"
    address = cluster.kubectl.get("service", "kubernetes")["spec"]["clusterIP"]
    assert cluster.kubectl("exec", pod, "--", "python3", "-c", resolve).strip() == address
    with http.server.ThreadingHTTPServer((cluster.host_ip, 0), Hello) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert fetch(cluster, pod, f"http://{cluster.host_ip}:{server.server_port}") == "hello"
        server.shutdown()


def test_a_stopped_pod_stays_running_and_falls_silent_until_it_is_thawed(
    cluster: Cluster, app: str
) -> None:
    pod = one_pod(cluster, app)["metadata"]["name"]
    cluster.pods.stop(pod)
    wait_until(
        lambda: not cluster.kubectl.ready_pods(f"app={app}"),
        what="the stopped pod to be unready",
        timeout_s=30,
    )
    assert cluster.kubectl.get("pod", pod)["status"]["phase"] == "Running"
    cluster.pods.thaw(pod)
    assert one_pod(cluster, app)["metadata"]["name"] == pod
    assert restarts(cluster, pod) == 0


def test_a_stopped_pod_is_evicted_by_its_uid_and_replaced(cluster: Cluster, app: str) -> None:
    pod = one_pod(cluster, app)["metadata"]
    cluster.pods.stop(pod["name"])
    with pytest.raises(ClusterError, match=r"[Uu][Ii][Dd]"):
        cluster.kubectl.evict(pod["name"], uid="00000000-0000-4000-8000-000000000000")
    cluster.kubectl.evict(pod["name"], uid=pod["uid"])
    wait_until(
        lambda: all(
            each["metadata"]["uid"] != pod["uid"]
            for each in cluster.kubectl.all_of("pods", selector=f"app={app}")
        ),
        what="the frozen pod to be gone",
        timeout_s=30,
    )
    assert one_pod(cluster, app)["metadata"]["uid"] != pod["uid"]


def test_a_killed_process_is_started_again_in_the_same_pod(cluster: Cluster, app: str) -> None:
    pod = one_pod(cluster, app)["metadata"]["name"]
    cluster.pods.kill(pod)
    wait_until(lambda: restarts(cluster, pod) == 1, what="the container again", timeout_s=30)
    assert one_pod(cluster, app)["metadata"]["name"] == pod


def test_a_pod_that_is_cut_off_reaches_nobody_while_its_node_still_finds_it_healthy(
    cluster: Cluster, app: str
) -> None:
    pod = one_pod(cluster, app)["metadata"]["name"]
    api = cluster.kubectl.get("service", "kubernetes")["spec"]["clusterIP"]
    asks = ["python3", "-c", f"import socket; socket.create_connection(({api!r}, 443), 2)"]
    cluster.kubectl("exec", pod, "--", *asks)
    cluster.pods.cut_off(pod)
    try:
        with pytest.raises(ClusterError, match="timed out"):
            cluster.kubectl("exec", pod, "--", *asks)
        probes = cluster.kubectl("logs", pod).count("GET /")
        wait_until(
            lambda: cluster.kubectl("logs", pod).count("GET /") >= probes + 3,
            what="the kubelet's probes",
            timeout_s=30,
        )
        assert len(cluster.kubectl.ready_pods(f"app={app}")) == 1
    finally:
        cluster.pods.reconnect(pod)
    cluster.kubectl("exec", pod, "--", *asks)


def test_pods_go_on_while_their_kubelet_is_stopped(cluster: Cluster, app: str) -> None:
    pod = one_pod(cluster, app)
    node = cluster.node(pod["spec"]["nodeName"])
    cluster.stop_kubelet(pod["spec"]["nodeName"])
    try:
        with pytest.raises(ClusterError):
            cluster.kubectl("exec", pod["metadata"]["name"], "--", "true")
        address = pod["status"]["podIP"]
        script = (
            f"exec 3<>/dev/tcp/{address}/8080; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
        )
        assert pod["metadata"]["name"] in node.run(["bash", "-c", script], timeout_s=10)
    finally:
        cluster.start_kubelet(pod["spec"]["nodeName"])
    wait_until(
        lambda: reaches(cluster, pod["metadata"]["name"], "http://127.0.0.1:8080"),
        what="exec through the kubelet",
        timeout_s=30,
    )


def test_a_claim_binds_a_local_volume_and_the_pod_writes_into_its_folder(
    cluster: Cluster, python_image: str
) -> None:
    folder = cluster.local_volume("kept", size="16Mi")
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "kept"},
        "spec": {
            "storageClassName": "",
            "volumeName": "kept",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "16Mi"}},
        },
    }
    container = {
        "name": "writer",
        "image": python_image,
        "command": ["sh", "-c", "id -u >/data/who"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "securityContext": {"runAsUser": 10001},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "writer"},
        "spec": {
            "restartPolicy": "Never",
            "containers": [container],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "kept"}}],
        },
    }
    cluster.kubectl.apply(claim, pod)
    try:
        cluster.kubectl("wait", "pod/writer", "--for=jsonpath={.status.phase}=Succeeded")
        first = cluster.node(cluster.nodes()[0])
        assert first.run(["cat", folder / "who"]).strip() == "10001"
    finally:
        cluster.kubectl("delete", "pod/writer", "pvc/kept", "pv/kept", timeout_s=60)


def test_an_image_built_on_the_base_image_runs_without_any_registry(
    cluster: Cluster, python_image: str, tmp_path: Path
) -> None:
    dockerfile = tmp_path / "Dockerfile"
    lines = ["ARG BASE", "FROM ${BASE} AS made", "RUN python3 -m venv /opt/venv"]
    lines += ["FROM ${BASE} AS worker", "COPY --from=made /opt/venv /opt/venv", "USER 10001"]
    lines += ['ENTRYPOINT ["/opt/venv/bin/python", "-c", "import sys; print(sys.prefix)"]']
    dockerfile.write_text("\n".join(lines))
    name = cluster.build_image(
        tmp_path,
        name="localhost/e2e-built:local",
        dockerfile=dockerfile,
        target="worker",
        arguments={"BASE": python_image},
    )
    container = {"name": "built", "image": name, "imagePullPolicy": "Never"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "built"},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    cluster.kubectl.apply(pod)
    try:
        cluster.kubectl("wait", "pod/built", "--for=jsonpath={.status.phase}=Succeeded")
        assert cluster.kubectl("logs", "built").strip() == "/opt/venv"
    finally:
        cluster.kubectl("delete", "pod", "built")


def test_pods_on_two_nodes_reach_each_other(cluster: Cluster, app: str, python_image: str) -> None:
    near = one_pod(cluster, app)["metadata"]["name"]
    node = cluster.add_node()
    try:
        cluster.kubectl.apply(*web("far", python_image, node=node))
        far = one_pod(cluster, "far")
        assert fetch(cluster, near, f"http://{far['status']['podIP']}:8080").startswith("far-")
        assert fetch(cluster, far["metadata"]["name"], f"http://{app}") == near
        cluster.unplug(node)
        assert not reaches(cluster, near, f"http://{far['status']['podIP']}:8080")
        cluster.plug(node)
        assert reaches(cluster, near, f"http://{far['status']['podIP']}:8080")
    finally:
        cluster.kubectl("delete", "deployment,service", "far", "--wait=false")
        cluster.remove_node(node)


class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Tests' output is not the place for it."""
