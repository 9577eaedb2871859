"""The values that the chart is rendered with: each name says whose installation it is."""

from typing import Any

MATRIX: dict[str, dict[str, Any]] = {
    "defaults": {},
    "whole cluster": {"watch": {"cluster": True}},
    "three namespaces": {"watch": {"namespaces": ["shop", "billing", "support"]}},
    "second release": {
        "fullnameOverride": "second",
        "crds": {"create": False},
        "roles": {"create": False},
        "admissionPolicy": {"create": False},
    },
    "a store elsewhere": {
        "redis": {"enabled": False},
        "store": {"url": "rediss://aaa:pass%20word@redis.example:6380/0"},
    },
    "a store of a cluster": {
        "redis": {"enabled": False},
        "store": {"url": "redis+cluster://one,two/"},
    },
    "a store with sentinels": {
        "redis": {"enabled": False},
        "store": {"url": "redis+sentinel://one,two/mymaster"},
    },
    "a store in a Secret": {
        "redis": {"enabled": False},
        "store": {"secretName": "ours", "secretKey": "address"},
    },
    "a store without users": {
        "redis": {"enabled": False},
        "store": {"url": "redis://hosted.example/0", "userPerNamespace": False},
    },
    "a store of Postgres": {
        "redis": {"enabled": False},
        "store": {"url": "postgresql://aaa@postgres.example/aaa"},
    },
    "a password of theirs": {
        "redis": {"existingSecret": "vault-made"},
        "store": {"sharedSecretName": "vault-made-store"},
    },
    "everything on": {
        "images": {
            "registry": "registry.example/team/",
            "operator": {"digest": "sha256:" + "0" * 64},
            "pullPolicy": "Always",
            "pullSecrets": ["registry"],
        },
        "redis": {
            "storage": {"storageClassName": "", "selector": {"matchLabels": {"disk": "ssd"}}},
            "config": "loglevel verbose\n",
            "podDisruptionBudget": {"enabled": True},
            "nodeSelector": {"disk": "ssd"},
        },
        "operator": {
            "env": [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://otel:4318"}],
            "tolerations": [{"key": "ops", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "priorityClassName": "system-cluster-critical",
            "podAnnotations": {"a": "b"},
            "podLabels": {"team": "ops"},
        },
        "networkPolicy": {
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}],
            "operatorEgress": [{"ports": [{"port": 4318, "protocol": "TCP"}]}],
        },
        "metrics": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "podMonitor": {"enabled": True},
            "prometheusRule": {"enabled": True},
        },
    },
    "everything off": {
        "networkPolicy": {"enabled": False},
        "uninstall": {"enabled": False},
        "operator": {"resources": {}},
    },
}
