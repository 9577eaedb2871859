"""The cluster's definitions say what the models say, in the form that an API server takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aaa_operator import crds

ROOT = Path(__file__).parents[2]
KINDS = ("AgentRun", "ToolPolicy", "ToolDecision")
_KEYWORDS = {
    "additionalProperties", "anyOf", "default", "description", "enum", "format", "items",
    "maxItems", "maxLength", "maxProperties", "maximum", "minLength", "minimum", "pattern",
    "properties", "required", "type", "x-kubernetes-int-or-string", "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations",
}  # fmt: skip


def _nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, below in node.get("properties", {}).items():
        yield from _nodes(below, f"{path}.{name}" if path else name)
    if "items" in node:
        yield from _nodes(node["items"], f"{path}[]")
    if isinstance(node.get("additionalProperties"), dict):
        yield from _nodes(node["additionalProperties"], f"{path}{{}}")


def test_the_files_are_what_the_models_give() -> None:
    written = {path.name: path.read_text() for path in (ROOT / "crds").iterdir()}
    assert written == dict(crds.documents()), "run `make crds` and commit what it wrote"


@pytest.mark.parametrize("kind", KINDS)
def test_every_schema_is_structural_bounded_and_described(kind: str) -> None:
    for path, node in _nodes(crds.schema(kind)):
        assert set(node) <= _KEYWORDS, path
        free = node.get("x-kubernetes-preserve-unknown-fields")
        quantity = node.get("x-kubernetes-int-or-string")
        assert "type" in node or free or quantity, path
        assert ("anyOf" in node) == bool(quantity), path
        if path != "metadata" and not path.endswith(("[]", "{}")):
            assert node.get("description"), f"{path} says nothing to kubectl explain"
        if node.get("type") == "string" and path not in ("apiVersion", "kind"):
            assert "maxLength" in node or "enum" in node, path
        if node.get("type") == "array":
            assert "maxItems" in node, path
            for key in node.get("x-kubernetes-list-map-keys", ()):
                assert key in node["items"]["required"], path
        if node.get("type") == "object" and "additionalProperties" in node:
            assert "maxProperties" in node, path
        if node.get("type") == "integer":
            assert "minimum" in node, path
        assert set(node.get("required", ())) <= set(node.get("properties", {})), path


@pytest.mark.parametrize("kind", KINDS)
def test_each_rule_stands_where_it_was_meant_and_says_what_to_do(kind: str) -> None:
    nodes = dict(_nodes(crds.schema(kind)))
    for path, rules in crds.RULES[kind].items():
        assert nodes[path]["x-kubernetes-validations"] == rules
        for rule in rules:
            assert len(rule["message"]) > 20
            field = rule.get("fieldPath")
            if field:
                assert f"{path}{field}".lstrip(".") in nodes


def test_an_agent_is_fixed_only_once_its_run_has_an_id() -> None:
    (agent, *_) = crds.schema("AgentRun")["x-kubernetes-validations"]
    assert agent["rule"] == (
        "!has(oldSelf.status) || !has(oldSelf.status.runId) || self.spec.agent == oldSelf.spec.agent"
    )
    assert "create another AgentRun" in agent["message"]


def test_a_policy_has_no_default_and_keeps_what_is_misspelt() -> None:
    nodes = dict(_nodes(crds.schema("ToolPolicy")))
    assert not [path for path, node in nodes.items() if "default" in node]
    for path, node in nodes.items():
        if path.startswith("spec") and "properties" in node:
            assert node["x-kubernetes-preserve-unknown-fields"], path


def test_only_what_is_free_form_by_design_keeps_unknown_fields_elsewhere() -> None:
    free = {
        (kind, path)
        for kind in ("AgentRun", "ToolDecision")
        for path, node in _nodes(crds.schema(kind))
        if node.get("x-kubernetes-preserve-unknown-fields")
    }
    affinity = {"nodeAffinity", "podAffinity", "podAntiAffinity"}
    assert free == {
        ("AgentRun", "spec.input"),
        ("AgentRun", "status.result"),
        ("ToolDecision", "spec.result"),
        *(("AgentRun", f"spec.agent.affinity.{name}") for name in affinity),
    }


def test_a_definition_names_itself_and_carries_the_hash_of_what_it_says() -> None:
    found = crds.definition("AgentRun")
    names = found["spec"]["names"]
    assert (found["metadata"]["name"], names["shortNames"], names["categories"]) == (
        "agentruns.aaa.dev",
        ["arun"],
        ["aaa"],
    )
    (version,) = found["spec"]["versions"]
    assert version["subresources"] == {"status": {}}
    columns = [column["name"] for column in version["additionalPrinterColumns"]]
    assert columns == ["Status", "Tools", "Pool", "Policy", "Age"]
    text = (ROOT / "crds" / "aaa.dev_agentruns.yaml").read_text()
    written = yaml.safe_load(text)
    assert "&id" not in text
    assert written["metadata"]["annotations"][crds.HASH_ANNOTATION] == crds.schema_hash(
        written["spec"]
    )
