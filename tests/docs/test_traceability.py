"""docs/traceability.md joins every statement, its checker, its tests and its mutants, both ways."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from aaa.check import CHECKERS, READABLE
from aaa.testing.conformance import CASES

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs/traceability.md"


def statements() -> list[str]:
    return re.findall(r"^\*\*([LG]\d+)\b", (ROOT / "docs/guarantees.md").read_text(), re.M)


def tests() -> dict[str, set[str]]:
    """By statement: the files whose tests are marked with it, and the shipped cases' modules."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.guarantee":
                for each in node.args:
                    if isinstance(each, ast.Constant):
                        found[str(each.value)].add(path.relative_to(ROOT / "tests").as_posix())
    for case in CASES:
        for id_ in case.guarantees:
            found[id_].add(f"{case.body.__module__.removeprefix('aaa.testing.')}")
    return found


def mutants() -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests/mutants/patches").glob("*.txt")):
        match = re.match(r"id: (\S+)\n", path.read_text())
        assert match, path
        found[match[1]].add(path.stem.partition("-")[2])
    return found


def table() -> list[str]:
    """The rows that the sources ask for."""
    tested, broken = tests(), mutants()

    def row(id_: str) -> str:
        checker = CHECKERS.get(id_)
        seen = f"`{checker.__module__}.{checker.__name__}`" if checker else "–"
        cells = (", ".join(f"`{each}`" for each in sorted(of[id_])) for of in (tested, broken))
        return f"| {id_} | {seen} | {' | '.join(cells)} |"

    return [row(id_) for id_ in statements()]


def test_the_table_says_what_the_sources_say() -> None:
    rows = [line for line in TABLE.read_text().splitlines() if re.match(r"\| [LG]\d", line)]
    assert rows == table(), "write docs/traceability.md anew:\n" + "\n".join(table())


def test_every_statement_has_tests_and_a_mutant() -> None:
    tested, broken = tests(), mutants()
    assert [id_ for id_ in statements() if not tested[id_]] == []
    assert [id_ for id_ in statements() if not broken[id_]] == []


def test_nothing_is_tested_checked_or_broken_that_is_not_promised() -> None:
    promised = set(statements())
    assert set(CHECKERS) - {READABLE} <= promised
    assert set(tests()) <= promised
    assert set(mutants()) <= promised


def test_a_statement_without_a_checker_is_one_that_the_page_explains() -> None:
    page = TABLE.read_text()
    unchecked = {id_ for id_ in statements() if id_ not in CHECKERS}
    explained = set(re.findall(r"^- ([LG]\d+):", page, re.M))
    assert explained == unchecked
