"""docs/settings.md has every setting of the code, and no other, with its true default."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import typer

from aaa.algos import ToolLoop
from aaa.app import App
from aaa.cli.follow import WORKER_TTL_S
from aaa.cli.stores import OPEN_TIMEOUT_S
from aaa.cli.worker import worker
from aaa.events import MAX_MESSAGE_CHARS
from aaa.llm import LLMHandler, ProviderClient
from aaa.policy import GuardConfig
from aaa.runtime import Engine
from aaa.runtime.attempt import VERIFY_TIMEOUT_S
from aaa.runtime.owner import MAX_ALGORITHM_ERRORS
from aaa.store.postgres.address import Address as PostgresAddress
from aaa.store.redis.address import OPTIONS
from aaa.store.redis.address import parse as parse_redis
from aaa.telemetry import Telemetry
from aaa.tools import ToolHandler
from aaa.tools.decorator import _define
from docs.pages import ROOT, RUNTIME

PAGE = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")


def table(title: str) -> dict[str, list[str]]:
    """A section's rows by what their first cell names."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = [
        re.split(r" \| ", line.strip("| "))
        for line in section.splitlines()
        if line.startswith("| `")
    ]
    return {name: row[1:] for row in rows for name in re.findall(r"`([^`]+)`", row[0])}


def default(cell: str) -> Any:
    text = cell.strip().strip("`")
    return inspect.Parameter.empty if text == "required" else ast.literal_eval(text)


@pytest.mark.parametrize(
    ("title", "made_by"),
    [
        ("GuardConfig", GuardConfig),
        ("@tool", _define),
        ("ToolHandler", ToolHandler),
        ("LLMHandler", LLMHandler),
        ("ProviderClient", ProviderClient),
        ("ToolLoop", ToolLoop),
        ("App", App),
        ("Engine", Engine),
        ("Telemetry", Telemetry),
    ],
)
def test_the_page_has_each_argument_with_its_default(
    title: str, made_by: Callable[..., Any]
) -> None:
    given = dict(inspect.signature(made_by).parameters)
    given.pop("function", None)
    rows = table(title)
    assert list(rows) == list(given)
    told = {name: default(row[0]) for name, row in rows.items() if name != "clock"}
    assert told == {name: given[name].default for name in told}


def test_the_page_has_each_option_of_the_worker_with_its_default() -> None:
    rows, told = table("aaa worker"), {}
    for name, parameter in inspect.signature(worker, eval_str=True).parameters.items():
        option = next(
            each
            for each in parameter.annotation.__metadata__
            if isinstance(each, typer.models.OptionInfo)
        )
        told[option.default] = option.envvar if name in ("app", "store") else parameter.default
    assert {name: row[0].strip("` ") for name, row in rows.items()} == {
        name: str(value) if not isinstance(value, str) or value.isupper() else f'"{value}"'
        for name, value in told.items()
    }


def test_the_page_has_each_option_of_a_redis_url_with_its_default() -> None:
    rows, plain = table("Redis"), parse_redis("redis://host")
    assert list(rows) == list(OPTIONS)
    for name in ("prefix", "timeout_s", "connect_timeout_s", "wait_replicas", "wait_timeout_ms"):
        assert rows[name][0].strip("` ") == f"{getattr(plain, name)}".removesuffix(".0"), name


def test_the_page_has_each_option_of_a_postgres_url_with_its_default() -> None:
    rows, plain = table("Postgres"), PostgresAddress(conninfo="")
    assert set(rows) == {"schema", "pool", "partitions"}
    assert (rows["schema"][0].strip("` "), rows["pool"][0]) == (plain.schema, str(plain.pool))


def test_the_page_has_each_variable_that_the_code_reads() -> None:
    read = set()
    for path in RUNTIME.joinpath("aaa").rglob("*.py"):
        if "manifest" not in path.parts:
            read |= set(re.findall(r'"(AAA_[A-Z_]+)"', path.read_text()))
    assert read == {name for name in table("Environment") if name.startswith("AAA_")}


def test_what_is_fixed_is_told_as_it_is() -> None:
    fixed = [row.split(" | ")[-1] for row in PAGE.split("## Not settings")[1].splitlines()]
    values = [int(found[0]) for cell in fixed if (found := re.findall(r"^\d+", cell))]
    assert values[:5] == [
        WORKER_TTL_S,
        OPEN_TIMEOUT_S,
        VERIFY_TIMEOUT_S,
        MAX_ALGORITHM_ERRORS,
        MAX_MESSAGE_CHARS,
    ]
