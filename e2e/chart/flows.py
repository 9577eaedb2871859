"""Which pod may talk to which, as NetworkPolicies say it: for clusters that do not enforce them.

A connection is allowed if the egress rules of its pod and the ingress rules of the other one allow
it; a pod that no policy of a direction selects is open in that direction.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Raw = dict[str, Any]


@dataclass(frozen=True)
class Pod:
    """One end; ``None`` as its namespace is somewhere outside the cluster."""

    namespace: str | None
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Its ports by name.
    ports: Mapping[str, int] = field(default_factory=dict)


def allowed(policies: list[Raw], source: Pod, target: Pod, port: int) -> bool:
    """Whether ``source`` reaches the TCP port of ``target``."""
    ports = target.ports
    return _side(policies, "egress", source, target, ports=ports, port=port) and _side(
        policies, "ingress", target, source, ports=ports, port=port
    )


def _side(
    policies: list[Raw],
    way: Literal["ingress", "egress"],
    one: Pod,
    other: Pod,
    *,
    ports: Mapping[str, int],
    port: int,
) -> bool:
    ours = [
        each
        for each in policies
        if each["metadata"]["namespace"] == one.namespace
        and way.title() in each["spec"]["policyTypes"]
        and _matches(each["spec"]["podSelector"], one.labels)
    ]
    rules = [rule for each in ours for rule in each["spec"].get(way) or ()]
    peers = "from" if way == "ingress" else "to"
    return not ours or any(
        _port_fits(rule.get("ports"), ports, port)
        and _peer_fits(rule.get(peers), other, policy_namespace=one.namespace)
        for rule in rules
    )


def _port_fits(wanted: list[Raw] | None, ports: Mapping[str, int], port: int) -> bool:
    return not wanted or any(
        each.get("protocol", "TCP") == "TCP" and ports.get(str(each["port"]), each["port"]) == port
        for each in wanted
    )


def _peer_fits(peers: list[Raw] | None, other: Pod, *, policy_namespace: str | None) -> bool:
    if not peers:
        return True
    for peer in peers:
        if "ipBlock" in peer or other.namespace is None:
            continue
        namespaces = peer.get("namespaceSelector")
        if namespaces is None:
            inside = other.namespace == policy_namespace
        else:
            inside = _matches(namespaces, {"kubernetes.io/metadata.name": other.namespace})
        if inside and _matches(peer.get("podSelector") or {}, other.labels):
            return True
    return False


def _matches(selector: Raw, labels: Mapping[str, str]) -> bool:
    if "matchExpressions" in selector:
        raise AssertionError("the chart's policies have no expressions")
    return (selector.get("matchLabels") or {}).items() <= dict(labels).items()
