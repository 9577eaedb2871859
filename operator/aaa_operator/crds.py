"""The cluster's definitions (CRDs), made from the models of :mod:`aaa.manifest`.

``python -m aaa_operator.crds FOLDER`` writes one file a kind. The schemas are structural, as the
API server demands: no references, no unions but int-or-string, no keys that pydantic invents.
What JSON Schema cannot say across fields is said in CEL; what CEL cannot see (free-form fields)
the operator judges in ``Accepted``.

The annotation ``aaa.dev/schema-hash`` lets the operator notice at its start that the cluster's
definitions are not the ones that it was built with.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from aaa.manifest import KINDS

GROUP: Final = "aaa.dev"
VERSION: Final = "v1alpha1"
HASH_ANNOTATION: Final = "aaa.dev/schema-hash"
HEADER: Final = "# Made from the models in aaa.manifest by `make crds`; not edited by hand.\n"

PLURALS: Final = {
    "AgentRun": "agentruns",
    "ToolPolicy": "toolpolicies",
    "ToolDecision": "tooldecisions",
}
_SHORT: Final = {"AgentRun": ["arun"], "ToolPolicy": ["tpol"], "ToolDecision": ["tdec"]}
#: Pydantic's keys that a structural schema has in the same words.
_KEPT: Final = (
    "type",
    "description",
    "enum",
    "format",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "pattern",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-preserve-unknown-fields",
)
_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
_QUANTITY_PATTERN: Final = "(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei"


def _rule(rule: str, message: str, field_path: str = "") -> dict[str, str]:
    found = {"rule": rule, "message": message}
    return {**found, "fieldPath": field_path} if field_path else found


def _fixed_once_begun(field: str) -> dict[str, str]:
    same = f"self.spec.{field} == oldSelf.spec.{field}"
    if field == "store":
        same = (
            f"has(self.spec.store) == has(oldSelf.spec.store) && (!has(self.spec.store) || {same})"
        )
    return _rule(
        f"!has(oldSelf.status) || !has(oldSelf.status.runId) || {same}",
        f"spec.{field} cannot be changed once the run has an id; create another AgentRun",
        f".spec.{field}",
    )


_SELF_CONSISTENT: Final = [
    _rule(
        "!has(self.heartbeatSeconds) || !has(self.leaseTtlSeconds)"
        " || self.heartbeatSeconds < self.leaseTtlSeconds",
        "heartbeatSeconds must be below leaseTtlSeconds",
    ),
    _rule(
        "!has(self.enabled) || self.enabled || !has(self.delivery)"
        " || self.delivery != 'AtMostOnce'",
        "enabled: false cannot stand with delivery: AtMostOnce",
    ),
]
_CONDITION_OF_LABEL: Final = _rule(
    "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
    "In and NotIn need values; Exists and DoesNotExist take none",
)

#: CEL rules by kind and path; ``[]`` is a list's element.
RULES: Final[Mapping[str, Mapping[str, list[dict[str, str]]]]] = {
    "AgentRun": {
        "": [
            _fixed_once_begun("agent"),
            _fixed_once_begun("store"),
            _fixed_once_begun("isolation"),
        ],
        "spec": [
            _rule(
                "has(self.runKey) == has(oldSelf.runKey)"
                " && (!has(self.runKey) || self.runKey == oldSelf.runKey)",
                "spec.runKey cannot be changed; create another AgentRun",
                ".runKey",
            ),
            _rule(
                "oldSelf.desiredState != 'Cancelled' || self.desiredState == 'Cancelled'",
                "a cancelled run stays cancelled; create another AgentRun",
                ".desiredState",
            ),
            _rule(
                "!has(self.workers) || self.isolation == 'Dedicated'",
                "workers may only be given with isolation: Dedicated",
                ".workers",
            ),
        ],
        "spec.workers": [
            _rule(
                "!has(self.minReplicas) || !has(self.maxReplicas)"
                " || self.minReplicas <= self.maxReplicas",
                "minReplicas must not be above maxReplicas",
                ".minReplicas",
            )
        ],
        "spec.agent.env[]": [
            _rule(
                "!self.name.startsWith('AAA_') && !self.name.startsWith('PYTHON')"
                " && !self.name.startsWith('LD_')",
                "AAA_*, PYTHON* and LD_* are reserved; choose another name",
                ".name",
            ),
            _rule(
                "!(has(self.value) && has(self.valueFrom))",
                "valueFrom cannot stand beside value; keep one",
                ".valueFrom",
            ),
        ],
        "spec.agent.env[].valueFrom": [
            _rule(
                "(has(self.secretKeyRef) ? 1 : 0) + (has(self.configMapKeyRef) ? 1 : 0)"
                " + (has(self.fieldRef) ? 1 : 0) == 1",
                "needs exactly one of secretKeyRef, configMapKeyRef and fieldRef",
            )
        ],
    },
    "ToolPolicy": {
        "spec.selector.matchExpressions[]": [_CONDITION_OF_LABEL],
        "spec.defaults": _SELF_CONSISTENT,
        "spec.tools[]": [
            *_SELF_CONSISTENT,
            _rule(
                "!has(self.enabled) || self.enabled"
                " || !has(self.requiresApproval) || !self.requiresApproval",
                "enabled: false cannot stand with requiresApproval: true",
            ),
        ],
    },
    "ToolDecision": {
        "": [
            _rule(
                "self.spec == oldSelf.spec",
                "a ToolDecision cannot be changed; create another one",
                ".spec",
            )
        ],
        "spec": [
            _rule(
                "self.decision != 'Approve' || has(self.expiresAt)",
                "expiresAt is missing; an approval has an end",
                ".expiresAt",
            ),
            _rule(
                "self.decision != 'Reject' || has(self.reason)",
                "reason is missing; say why the call is rejected",
                ".reason",
            ),
        ],
    },
}

#: Objects below these paths keep unknown fields: pruning a misspelt protection would fail open.
_KEPT_UNKNOWN: Final = {"ToolPolicy": "spec"}

_COLUMNS: Final = {
    "AgentRun": [
        (
            "Status",
            "string",
            '.status.conditions[?(@.type=="Succeeded")].reason',
            "Where it stands.",
        ),
        ("Tools", "integer", ".status.toolCalls.completed", "Calls with a result."),
        ("Pool", "string", ".status.pool.name", "The worker pool."),
        ("Policy", "string", ".status.policy.name", "The policies in force."),
        ("Age", "date", ".metadata.creationTimestamp", "Since it was created."),
    ],
    "ToolPolicy": [
        ("Accepted", "string", '.status.conditions[?(@.type=="Accepted")].status', "Is it valid."),
        ("Propagated", "string", '.status.conditions[?(@.type=="Propagated")].status', "In force."),
        ("Runs", "integer", ".status.boundRuns", "Runs that it binds."),
        ("Age", "date", ".metadata.creationTimestamp", "Since it was created."),
    ],
    "ToolDecision": [
        ("Run", "string", ".spec.runRef.name", "The run."),
        ("Call", "string", ".spec.callId", "The call."),
        ("Decision", "string", ".spec.decision", "What was decided."),
        ("By", "string", ".spec.decidedBy", "Who decided."),
        ("Accepted", "string", '.status.conditions[?(@.type=="Accepted")].status', "Was it taken."),
        ("Age", "date", ".metadata.creationTimestamp", "Since it was created."),
    ],
}


def definition(kind: str) -> dict[str, Any]:
    """The CustomResourceDefinition of one kind."""
    plural = PLURALS[kind]
    columns = [
        {"name": name, "type": type_, "jsonPath": path, "description": words}
        for name, type_, path, words in _COLUMNS[kind]
    ]
    spec = {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {
            "kind": kind,
            "listKind": f"{kind}List",
            "plural": plural,
            "singular": kind.lower(),
            "shortNames": _SHORT[kind],
            "categories": ["aaa"],
        },
        "conversion": {"strategy": "None"},
        "versions": [
            {
                "name": VERSION,
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "additionalPrinterColumns": columns,
                "schema": {"openAPIV3Schema": schema(kind)},
            }
        ],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{GROUP}",
            "annotations": {HASH_ANNOTATION: schema_hash(spec)},
        },
        "spec": spec,
    }


def schema_hash(spec: Mapping[str, Any]) -> str:
    """32 hex digits over what a definition says."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def schema(kind: str) -> dict[str, Any]:
    """The structural schema of one kind."""
    model = KINDS[kind].model_json_schema(by_alias=True)
    found = _Structural(kind, model.get("$defs", {})).of(model, "")
    found["properties"]["metadata"] = {"type": "object"}
    for name in ("apiVersion", "kind"):
        found["properties"][name] = {
            "type": "string",
            "description": found["properties"][name]["description"],
        }
    found["required"] = ["spec"]
    return found


def documents() -> Iterator[tuple[str, str]]:
    """File name and text of each definition."""
    for kind, plural in PLURALS.items():
        text = yaml.dump(
            definition(kind), Dumper=_Plain, sort_keys=False, width=100, allow_unicode=True
        )
        yield f"{GROUP}_{plural}.yaml", HEADER + text


class _Plain(yaml.SafeDumper):
    """Writes what stands in two places twice."""

    def ignore_aliases(self, _: object) -> bool:
        return True


class _Structural:
    """Pydantic's JSON Schema of one kind into a structural one."""

    def __init__(self, kind: str, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._rules = RULES.get(kind, {})
        self._keep_below = _KEPT_UNKNOWN.get(kind)
        #: Defaults are the API server's to fill in only where no other layer could say otherwise.
        self._with_defaults = kind == "AgentRun"

    def of(self, given: Mapping[str, Any], path: str) -> dict[str, Any]:
        """The schema at ``path``."""
        node = self._plain(given)
        found: dict[str, Any] = {key: node[key] for key in _KEPT if key in node}
        if "const" in node:
            found.setdefault("enum", [node["const"]])
        default = node.get("default")
        scalar = isinstance(default, (str, bool, int))
        if self._with_defaults and scalar and path.startswith("spec"):
            found["default"] = default
        if _QUANTITY_PATTERN in node.get("pattern", ""):
            found.pop("type")
            found["anyOf"] = [{"type": "integer"}, {"type": "string"}]
            found["x-kubernetes-int-or-string"] = True
        if node.get("type") == "array":
            found["items"] = self.of(node["items"], f"{path}[]")
        if node.get("type") == "object":
            self._object(node, path, found)
        if path in self._rules:
            found["x-kubernetes-validations"] = self._rules[path]
        return found

    def _object(self, node: Mapping[str, Any], path: str, found: dict[str, Any]) -> None:
        if "properties" in node:
            found["properties"] = {
                name: self.of(value, f"{path}.{name}" if path else name)
                for name, value in node["properties"].items()
            }
            if node.get("required"):
                found["required"] = list(node["required"])
            if node.get("additionalProperties") is True or self._keeps_unknown(path):
                found[_PRESERVE] = True
            return
        values = list(node.get("patternProperties", {}).values())
        value = values[0] if values else node.get("additionalProperties")
        if isinstance(value, dict):
            found["additionalProperties"] = self.of(value, f"{path}{{}}")
        else:
            found[_PRESERVE] = True

    def _keeps_unknown(self, path: str) -> bool:
        below = self._keep_below
        return below is not None and (path == below or path.startswith(f"{below}."))

    def _plain(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """Without references, and without the null that ``X | None`` adds."""
        outer = {key: value for key, value in node.items() if key not in ("$ref", "anyOf", "allOf")}
        if "$ref" in node:
            name = str(node["$ref"]).rpartition("/")[2]
            return {**self._plain(self._definitions[name]), **outer}
        for union in ("anyOf", "allOf"):
            options = [each for each in node.get(union, ()) if each.get("type") != "null"]
            if len(options) == 1:
                return {**self._plain(options[0]), **outer}
            if options:
                raise ValueError(f"a structural schema has no unions: {node}")
        return dict(node)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "crds")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in documents():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main()
