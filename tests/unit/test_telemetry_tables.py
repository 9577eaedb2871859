"""The documented tables, the registry and what is really emitted say the same."""

from __future__ import annotations

import ast
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from aaa.store import MemoryEventStore
from aaa.telemetry import names
from unit.telemetry_scene import Recorder, run_once

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "runtime" / "aaa"
OPERATOR = ROOT / "operator" / "aaa_operator"
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def table(title: str) -> dict[str, list[str]]:
    """The rows of the section's table, by their first cell."""
    section = (ROOT / "docs" / "telemetry.md").read_text().split(f"\n## {title}\n")[1]
    section = section.split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0].strip(" `"): [cell.strip() for cell in row[1:]] for row in rows}


def listed(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def test_the_table_of_spans_is_the_registry() -> None:
    rows = table("Spans")
    assert {name: (row[0], listed(row[2])) for name, row in rows.items()} == {
        span.name: (span.kind, set(span.attributes)) for span in names.SPANS
    }
    assert all(row[1] for row in rows.values())


def test_the_table_of_metrics_is_the_registry() -> None:
    rows = table("Metrics")
    assert {n: (row[0], row[1].strip("`"), listed(row[2])) for n, row in rows.items()} == {
        each.name: (each.instrument, each.unit, set(each.attributes)) for each in names.METRICS
    }


def test_the_table_of_log_events_is_the_registry() -> None:
    rows = table("Logs")
    assert {name: (row[0], listed(row[2])) for name, row in rows.items()} == {
        event.name: (logging.getLevelName(event.level).lower(), set(event.fields))
        for event in names.LOG_EVENTS
    }


@pytest.mark.parametrize(
    ("kind", "all_of"),
    [("SpanName", names.SPANS), ("MetricName", names.METRICS), ("LogEvent", names.LOG_EVENTS)],
)
def test_everything_that_has_a_name_is_registered_and_used(
    kind: str, all_of: tuple[Any, ...]
) -> None:
    made = {key: value for key, value in vars(names).items() if type(value).__name__ == kind}
    assert list(made.values()) == list(all_of)
    paths = [path for root in (RUNTIME, OPERATOR) for path in root.rglob("*.py")]
    text = "".join(path.read_text() for path in paths if path.name != "names.py")
    assert [key for key in made if f"names.{key}" not in text] == []


def test_the_runtime_logs_through_tell_alone() -> None:
    """So every record has its event name."""
    strays = []
    for path in RUNTIME.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(name), attr=attr)):
                    logs = name.strip("_") in ("log", "logger", "logging") and attr in LEVELS
                    if logs and path.name != "logs.py":
                        strays.append(f"{path.name}:{node.lineno} {name}.{attr}")
    assert strays == []


def test_each_log_call_passes_the_fields_of_its_event() -> None:
    registry = {
        key: set(value.fields)
        for key, value in vars(names).items()
        if isinstance(value, names.LogEvent)
    }
    for path in RUNTIME.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if node.func.id != "tell" or not isinstance(node.args[1], ast.Attribute):
                continue
            passed = {each.arg for each in node.keywords} - {"exc_info"}
            assert passed == registry[node.args[1].attr], f"{path.name}:{node.lineno}"


async def test_what_is_emitted_has_the_registered_names_and_attributes() -> None:
    recorder = Recorder(content=True)
    await run_once(recorder, store=MemoryEventStore())
    spans = {span.name.split("{")[0].strip(): span for span in names.SPANS}
    for emitted in recorder.spans():
        first = emitted.name.split(" ")[0]
        assert set(emitted.attributes or {}) <= set(spans[first].attributes), emitted.name
        assert emitted.kind.name.lower() == spans[first].kind
    metrics = {metric.name: metric for metric in names.METRICS}
    points = recorder.points()
    for name, found in points.items():
        for point in found:
            assert set(point.attributes) <= set(metrics[name].attributes), name
    assert {"aaa.store.duration", "aaa.run.closed", "gen_ai.execute_tool.duration"} <= set(points)
