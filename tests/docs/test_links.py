"""Links lead somewhere, and what pages list is what the code has."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

from aaa import errors, events
from aaa.cli.program import app
from docs.pages import PAGES, ROOT, RUNTIME

OTHERS = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", flags=re.DOTALL | re.MULTILINE)


def text_of(page: Path) -> str:
    """A page without its code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors_of(page: Path) -> set[str]:
    """What a heading is called in a link, as GitHub makes it."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), flags=re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_page_and_to_its_heading(page: Path) -> None:
    for link in _LINK.findall(text_of(page)):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


def test_the_index_leads_to_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link in _LINK.findall(text_of(index))}
    decisions = ROOT / "docs" / "decisions"
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent != decisions]
    assert [page for page in pages if page not in {*linked, index}] == []


def test_the_guarantees_are_numbered_without_gaps() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    ids = re.findall(r"^\*\*([LG]\d+) ", page, flags=re.MULTILINE)
    assert ids == [f"L{n}" for n in range(1, 15)] + [f"G{n}" for n in range(1, 25)]


def test_a_guarantee_that_a_page_or_the_code_names_exists() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    ids = set(re.findall(r"^\*\*([LG]\d+) ", page, flags=re.MULTILINE))
    named = set()
    for path in [*PAGES, *RUNTIME.joinpath("aaa").rglob("*.py")]:
        named |= set(re.findall(r"(?<![\w-])([LG]\d{1,2})(?![\w-])", path.read_text("utf-8")))
    assert named <= ids


def test_the_events_page_lists_the_types_of_the_code() -> None:
    page = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(aaa\.[a-z_.]+)` \|", page, flags=re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == set(events.TYPES)


def test_the_events_page_lists_every_error_that_the_code_records() -> None:
    page = (ROOT / "docs" / "events.md").read_text(encoding="utf-8").split("## Errors")[1]
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    recorded = recorded_errors()
    assert {"ExecutionAbandoned", "RepeatedIntent", "TurnLimit", "UnknownTool"} <= recorded, (
        "it finds no errors"
    )
    assert recorded <= listed
    in_code = "".join(path.read_text() for path in RUNTIME.joinpath("aaa").rglob("*.py"))
    assert [name for name in listed if name not in in_code] == []


def test_the_architecture_names_modules_that_there_are_and_all_packages() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(aaa\.[a-z_.]+)`", page)) - set(events.TYPES) - {"aaa.tool."}
    modules = {name for name in named if not name.endswith(".")}
    assert [name for name in sorted(modules) if find_spec(name) is None] == []
    packages = {f"aaa.{path.parent.name}" for path in RUNTIME.glob("aaa/*/__init__.py")}
    assert packages <= modules
    files = re.findall(r"`(?:aaa/)?((?:runtime|store|policy)/\w+\.py|\w+\.py)`", page)
    assert [name for name in files if not (RUNTIME / "aaa" / name).exists()] == []


def test_the_command_s_page_lists_its_commands() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8").split("## Commands")[1]
    listed = set(re.findall(r"`aaa (policy explain|[a-z]+)", page.split("\n### ")[0]))
    groups = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert listed == {"policy explain", *groups} - {"policy"}


def recorded_errors() -> set[str]:
    """Names that the runtime, the algorithms and the stores write as ``error`` of an event."""
    found = {error.__name__ for error in errors.OutcomeError.__subclasses__()}
    found |= {error.__name__ for error in errors.ModelError.__subclasses__()}
    for folder in ("runtime", "algos", "store", "tools", "llm"):
        for path in RUNTIME.joinpath("aaa", folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                found |= set(_error_in(node))
    return found


_NAME = re.compile(r"(?:[A-Z][a-z]+)+")


def _error_in(node: ast.AST) -> list[str]:
    """The names in ``error: …``, ``error=…``, and what is given to those who write a failure."""
    given: list[ast.expr] = []
    match node:
        case ast.Dict(keys, values):
            both = zip(keys, values, strict=True)
            given = [
                value
                for key, value in both
                if isinstance(key, ast.Constant)
                if key.value == "error"
            ]
        case ast.Assign([ast.Name("error")], value):
            given = [value]
        case ast.Call(func, arguments, keywords):
            given = [each.value for each in keywords if each.arg == "error"]
            if getattr(func, "attr", getattr(func, "id", "")) in ("_failed", "_refuse"):
                given += arguments
    found = [each for value in given for each in ast.walk(value) if isinstance(each, ast.Constant)]
    return [
        each.value for each in found if isinstance(each.value, str) if _NAME.fullmatch(each.value)
    ]
