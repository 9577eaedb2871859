"""What the chart, the example and the page about installing say, is what is there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aaa.app import load_app
from aaa.manifest import KINDS
from aaa.runtime import Engine
from aaa_operator import crds

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "aaa"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
PAGE = ROOT / "docs" / "kubernetes" / "install.md"
#: Whose fields are Kubernetes' own business; `global` is helm's.
OPEN = {
    "global", "nodeAffinity", "podAffinity", "podAntiAffinity", "valueFrom",
}  # fmt: skip


def test_the_charts_definitions_are_those_of_the_models() -> None:
    written = {path.name: path.read_text() for path in (CHART / "files" / "crds").iterdir()}
    assert written == dict(crds.documents()), "run `make crds` and commit what it wrote"


def test_the_chart_and_its_images_have_the_projects_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    line = f'version = "{chart["appVersion"]}"'
    assert line in (ROOT / "pyproject.toml").read_text()
    assert f"ARG VERSION={chart['appVersion']}" in (ROOT / "Dockerfile").read_text()


def _objects(schema: dict[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if schema.get("type") == "object":
        yield name, schema
    for key, below in {**schema.get("properties", {}), **schema.get("definitions", {})}.items():
        yield from _objects(below, key)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _objects(schema[key], name)


def test_no_part_of_the_values_takes_unknown_keys() -> None:
    for name, schema in _objects(SCHEMA, ""):
        others = schema.get("additionalProperties", True)
        assert others is False or isinstance(others, dict) or name in OPEN, name


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    for each in (schema, *schema.get("allOf", ())):
        if "$ref" in each:
            name = each["$ref"].rpartition("/")[2]
            return {**SCHEMA["definitions"][name], **schema}
    return schema


def _rows(schema: dict[str, Any], values: Any, path: str) -> Iterator[tuple[str, Any, str]]:
    """Path, default and meaning of each value; lists, and maps with free keys, are one value."""
    for key, below in schema.get("properties", {}).items():
        if key == "global" and not path:
            continue
        where, found = f"{path}.{key}" if path else key, _resolved(below)
        leaf = not found.get("properties") or "$ref" in str(below.get("allOf", ""))
        if leaf and "enabled" not in found.get("properties", {}):
            yield where, values[key], found["description"]
        else:
            yield from _rows(found, values[key], where)


def table() -> str:
    """The values as install.md shows them."""
    lines = ["| value | default | meaning |", "|---|---|---|"]
    for path, default, meaning in _rows(SCHEMA, VALUES, ""):
        shown = json.dumps(default) if default not in ("", None, {}, []) else ""
        lines.append(f"| `{path}` | {f'`{shown}`' if shown else ''} | {meaning} |")
    return "\n".join(lines) + "\n"


def test_the_page_has_every_value_with_its_default() -> None:
    assert table() in PAGE.read_text(), f"it should say:\n{table()}"


def test_every_default_is_a_value_that_the_schema_has() -> None:
    def known(schema: dict[str, Any], values: Any, path: str) -> None:
        properties = _resolved(schema).get("properties")
        if not isinstance(values, dict) or not properties:
            return
        for key, value in values.items():
            assert key in properties, f"{path}.{key}"
            known(properties[key], value, f"{path}.{key}")

    known(SCHEMA, VALUES, "values")


async def test_the_first_run_of_the_example_greets_the_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ROOT / "examples" / "kubernetes" / "hello.yaml"
    config, run = yaml.safe_load_all(file.read_text())
    KINDS["AgentRun"].model_validate(run)
    assert run["spec"]["agent"]["source"]["configMapRef"]["name"] == config["metadata"]["name"]
    assert config["data"]["agent.py"] == (CHART / "files" / "test" / "agent.py").read_text()
    (tmp_path / "hello_agent.py").write_text(config["data"]["agent.py"])
    monkeypatch.syspath_prepend(str(tmp_path))
    app = load_app("hello_agent:app", folder=tmp_path)
    async with Engine("memory:") as engine:
        app.attach(engine)
        outcome = await engine.run(app.algorithm, run["spec"]["input"], "hello")
    assert isinstance(outcome.value, dict)
    assert outcome.value["text"] == "Hello, world."
