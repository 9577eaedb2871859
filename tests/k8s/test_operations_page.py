"""The page about operations names what the code says: every condition, reason, metric and alert."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import aaa_operator
from aaa import errors
from aaa_operator import names, observe
from aaa_operator.main import Operator
from aaa_operator.settings import Settings
from k8s.scene import SETTINGS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "kubernetes" / "operations.md").read_text("utf-8")
#: Makers of a condition, by its type; of these, the second argument is its reason.
_WITH_REASON = ("yes", "no", "open_")
_JUDGES = (*_WITH_REASON, "because", "_calls")
#: Words that are handed on: Kubernetes' own, and a run's end.
_HANDED_ON = {"FailedCreate", "Failed"}
#: Why a run has not begun: its message is shown, under ``Pending``.
_SENTENCE_ONLY = {"AwaitingPolicy"}
_QUOTED = re.compile(r"`([^`]+)`")


def _calls() -> Iterator[tuple[str, list[set[str]]]]:
    """Every call by name in the operator's modules, with the texts that each argument may be."""
    for module in Path(aaa_operator.__file__).parent.glob("*.py"):
        tree = ast.parse(module.read_text())
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None
            for target in ([node.target] if isinstance(node, ast.AnnAssign) else node.targets)
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield node.func.id, [_texts(each, constants) for each in node.args]


def _texts(node: ast.expr, constants: dict[str, ast.expr]) -> set[str]:
    if isinstance(node, ast.Name):
        node = constants.get(node.id, node)
    if isinstance(node, ast.IfExp):
        return _texts(node.body, constants) | _texts(node.orelse, constants)
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def _said() -> tuple[set[str], set[str]]:
    """The types of conditions and the reasons that stand in the code."""
    types, reasons = set[str](), {*observe._TROUBLE} | _HANDED_ON
    for name, texts in _calls():
        if name == "Problem":
            reasons |= texts[0]
        elif name in _JUDGES:
            types |= texts[0]
            if name in _WITH_REASON:
                reasons |= texts[1]
    return types, reasons


def _section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def _rows(title: str) -> list[tuple[str, str, str]]:
    """The table's rows, below its head."""
    lines = [line for line in _section(title).splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [(first, second, third) for first, second, third in cells]


def test_every_condition_and_every_reason_is_explained_and_nothing_else_is() -> None:
    types, reasons = _said()
    assert len(types) > 10
    assert len(reasons) > 50
    told = _rows("Conditions")
    shown_types = {word for first, _, _ in told for word in _QUOTED.findall(first)}
    shown = {word.rpartition("/")[2] for _, second, _ in told for word in _QUOTED.findall(second)}
    assert shown_types == types
    assert reasons - _SENTENCE_ONLY <= shown
    # What opening a store may raise is handed on by its name.
    assert {name for name in shown - reasons if not hasattr(errors, name)} == set()
    for _, second, third in told:
        assert third.strip(), second


def test_every_metric_has_something_to_do_about_it() -> None:
    operator = Operator(Settings(pools=SETTINGS))
    operator.observe()
    made = {family.name for family in operator.metrics.registry.collect()}
    told = [word for first, _, _ in _rows("Metrics") for word in _QUOTED.findall(first)]
    assert len(told) == len({*told})
    assert {word.removesuffix("_total") for word in told} == made


def test_every_alert_is_explained_in_the_order_of_the_chart() -> None:
    rules = (ROOT / "charts" / "aaa" / "templates" / "monitoring.yaml").read_text()
    told = [word for first, _, _ in _rows("Alerts") for word in _QUOTED.findall(first)]
    assert told == re.findall(r"- alert: (\w+)", rules)


def test_the_names_on_objects_that_people_meet_are_told() -> None:
    for name in (names.EVICTIONS, names.HEARTBEAT, names.RESTART, names.STORE, names.FINALIZER):
        assert f"`{name}" in PAGE, name
