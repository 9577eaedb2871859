"""Small workloads that the tests put into the cluster."""

from collections.abc import Sequence
from typing import Any

# Says its name to whoever asks, and what it serves is what it was started with.
WEB = """
import http.server, os, socket
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ["HOSTNAME"].encode())
class Server(http.server.ThreadingHTTPServer):
    allow_reuse_address = True
print("listening", flush=True)
Server(("", 8080), Answer).serve_forever()
"""

# Fetches a URL and prints what it says.
FETCH = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=3).read().decode())"


def web(
    name: str, image: str, *, replicas: int = 1, node: str | None = None
) -> Sequence[dict[str, Any]]:
    """A Deployment of a small web server and its Service on port 80."""
    labels = {"app": name}
    container = {
        "name": "web",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", WEB],
        "ports": [{"containerPort": 8080}],
        "readinessProbe": {"httpGet": {"port": 8080}, "periodSeconds": 1, "timeoutSeconds": 2},
        "resources": {"limits": {"memory": "64Mi"}, "requests": {"cpu": "10m"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    pod: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": 1}
    if node is not None:
        pod["nodeSelector"] = {"kubernetes.io/hostname": node}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    return [deployment, service]
