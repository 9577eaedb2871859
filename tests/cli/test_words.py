"""What the command makes of events and of strangers' text."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from aaa import events as ev
from aaa.cli import exits
from aaa.cli.duration import parse_duration
from aaa.cli.logs import Rarely
from aaa.cli.text import as_json, clean, seconds, short
from aaa.cli.words import _WORDS
from aaa.errors import ConfigError, StoreUnavailable
from cli.desk import Desk


def test_every_event_type_has_words() -> None:
    assert set(_WORDS) == set(ev.TYPES)


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPdevice\x1b\\text", "text"),
        ("\x9b2Jtext\x9c", "text"),
        ("\x1b]never ends", ""),
        ("\x1bctext\x08\x7f", "text"),
        ("a\u202eb\u2066c", "abc"),
        ("lone \udc9b surrogate", "lone ? surrogate"),
        ("kept\n\tas it is: ü → 漢", "kept\n\tas it is: ü → 漢"),
    ],
)
def test_nothing_that_a_terminal_obeys_is_left(given: str, left: str) -> None:
    assert clean(given) == left


def test_json_cannot_act_on_a_terminal_and_stays_the_same_value() -> None:
    value = {"key \x9b": "\x1b[2J\u202e ü"}
    text = as_json(value)
    assert json.loads(text) == value
    assert text == clean(text)


def test_short_text_is_one_line_of_bounded_length() -> None:
    assert short("a\nb " + "x" * 300, 10) == "a b xxxxx…"


def test_times_read_as_people_say_them() -> None:
    assert [seconds(ms) for ms in (5, 1_200, 250_000, 7_500_000)] == [
        "0.01 s",
        "1.2 s",
        "4 min 10 s",
        "2 h 5 min",
    ]


def test_durations_have_a_unit_and_a_bound() -> None:
    assert [parse_duration(text, option="--for") for text in ("90s", "1.5h", "7d")] == [
        90,
        5_400,
        604_800,
    ]
    for text in ("0s", "5", "1w", "-1s", "9999d"):
        with pytest.raises(ConfigError, match="--for"):
            parse_duration(text, option="--for")


def test_errors_have_the_documented_codes() -> None:
    codes = [
        exits.code_of(error) for error in (ConfigError("x"), StoreUnavailable("x"), KeyError())
    ]
    assert codes == [2, 3, 70]


def test_help_loads_nothing_heavy_and_teaches_by_example(desk: Desk) -> None:
    code = (
        "import sys; from aaa.cli.program import run; run(['--help']); "
        "print(sorted(m for m in ('pydantic','yaml','rich','asyncio','aaa.runtime') "
        "if m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=desk.env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "[]"
    for command in (["run"], ["worker"], ["approve"], ["policy", "explain"], ["check"]):
        assert "Example" in desk.aaa(*command, "--help").out


def test_completion_offers_commands(desk: Desk) -> None:
    done = subprocess.run(
        desk.command(),
        env=desk.env
        | {"_AAA_COMPLETE": "complete_bash", "COMP_WORDS": "aaa re", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split() == ["reject", "resolve", "resume"]


def test_the_version_is_printed(desk: Desk) -> None:
    import aaa

    assert desk.aaa("version").out == desk.aaa("--version").out == f"{aaa.__version__}\n"


def test_an_outage_says_the_same_thing_once_in_ten_seconds_with_a_count() -> None:
    rarely, told = Rarely(), []
    for second, event in [
        (0, "unavailable"),
        (1, "unavailable"),
        (1, "went_back"),
        (2, "went_back"),
    ]:
        told += _passed(rarely, f"aaa.store.{event}", float(second))
    told += _passed(rarely, "aaa.store.unavailable", 9.9)
    told += _passed(rarely, "aaa.store.unavailable", 10.0)
    told += _passed(rarely, "aaa.store.unavailable", 20.0)
    assert told == [
        "unavailable at 0",
        "went_back at 1",
        "went_back at 2",
        "unavailable at 10 (2 more since the last)",
        "unavailable at 20",
    ]


def _passed(rarely: Rarely, event: str, at: float) -> list[str]:
    record = logging.LogRecord("aaa", 30, "", 0, "%s at %g", (event.rpartition(".")[2], at), None)
    record.event, record.created = event, at
    return [record.getMessage()] if rarely.filter(record) else []
