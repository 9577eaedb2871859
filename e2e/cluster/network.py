"""The cluster's network: a bridge on the host, one cable to each node, routes to pods and Services.

The host reaches nodes, pods and Services by their addresses, and pods reach servers on the host at
`HOST_IP`; nothing is translated, and no packet filter of the host is touched. A cable that is set
down is a real partition of that node.
"""

import ipaddress
import json
from collections.abc import Mapping, Sequence

from cluster.node import Node
from cluster.shell import ClusterError, run, succeeds

BRIDGE = "aaa-e2e"
HOST_IP = "172.30.250.1"
NODE_RANGE = "172.30.250.0/24"
POD_RANGE = "10.244.0.0/16"
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_IP = "10.96.0.1"
DNS_IP = "10.96.0.10"


def build() -> None:
    """Make the bridge, unless the host already uses one of the ranges for something else."""
    taken = clashes(json.loads(run(["ip", "-json", "-4", "route", "show"])))
    if taken:
        raise ClusterError(
            f"the test cluster needs {NODE_RANGE}, {POD_RANGE} and {SERVICE_RANGE} for itself, but "
            f"this machine routes {', '.join(taken)}"
        )
    run(["ip", "link", "add", BRIDGE, "type", "bridge"])
    run(["ip", "addr", "add", f"{HOST_IP}/24", "dev", BRIDGE])
    run(["ip", "link", "set", BRIDGE, "up"])


def clashes(routes: Sequence[Mapping[str, object]]) -> list[str]:
    """Which of the host's routes overlap the cluster's ranges."""
    ours = [ipaddress.ip_network(each) for each in (NODE_RANGE, POD_RANGE, SERVICE_RANGE)]
    found = []
    for route in routes:
        destination = str(route["dst"])
        if destination == "default" or route.get("dev") == BRIDGE:
            continue
        network = ipaddress.ip_network(destination, strict=False)
        if any(network.overlaps(each) for each in ours):
            found.append(destination)
    return found


def connect(node: Node, *, first: bool) -> None:
    """Lay the node's cable and tell the host how to reach what is behind it."""
    inside = f"{node.link}n"
    pid = str(node.first_process())
    run(["ip", "link", "add", node.link, "type", "veth", "peer", "name", inside, "netns", pid])
    run(["ip", "link", "set", node.link, "master", BRIDGE, "up"])
    lines = [
        "set -eu",
        "ip link set lo up",
        f"ip link set {inside} name eth0",
        f"ip addr add {node.ip}/24 dev eth0",
        "ip link set eth0 up",
        f"ip route add default via {HOST_IP}",
        # Cluster DNS answers on every node by itself.
        f"ip addr add {DNS_IP}/32 dev lo",
        "echo 1 >/proc/sys/net/ipv4/ip_forward",
    ]
    node.run(["sh", "-c", "\n".join(lines)])
    run(["ip", "route", "replace", node.pod_range, "via", node.ip])
    if first:
        run(["ip", "route", "replace", SERVICE_RANGE, "via", node.ip])


def join(one: Node, other: Node) -> None:
    """Tell two nodes how to reach each other's pods."""
    one.run(["ip", "route", "replace", other.pod_range, "via", other.ip])
    other.run(["ip", "route", "replace", one.pod_range, "via", one.ip])


def unplug(node: Node) -> None:
    """Cut the node off from everything outside it."""
    run(["ip", "link", "set", node.link, "down"])


def plug(node: Node) -> None:
    """Undo `unplug`."""
    run(["ip", "link", "set", node.link, "up"])


def links() -> list[str]:
    """The cluster's interfaces on this host."""
    names = [str(each["ifname"]) for each in json.loads(run(["ip", "-json", "link", "show"]))]
    return [name for name in names if name == BRIDGE or name.startswith(f"{BRIDGE}-")]


def remove() -> None:
    """Delete every interface of the cluster; its routes go with them."""
    for name in links():
        # A cable may be gone together with its node between the look and the deed.
        if not succeeds(["ip", "link", "del", name]) and name in links():
            raise ClusterError(f"the interface {name} could not be deleted")
