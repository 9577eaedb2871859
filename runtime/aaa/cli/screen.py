"""Where output goes: results and lines to stdout, what is said about them to stderr."""

from __future__ import annotations

import sys
from functools import cache

from rich.console import Console
from rich.text import Text

from aaa.cli.text import as_json, clean


@cache
def out() -> Console:
    """Standard output."""
    return Console(highlight=False, emoji=False)


@cache
def err() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False, emoji=False)


def say(text: str, *, style: str = "") -> None:
    """A line to stdout, as it is: cleaned, but neither wrapped nor read as markup."""
    out().print(Text(clean(text), style=style), soft_wrap=True)


def note(text: str, *, style: str = "") -> None:
    """A line about what happens, to stderr."""
    err().print(Text(clean(text), style=style), soft_wrap=True)


def say_json(value: object) -> None:
    """One JSON value on one line."""
    sys.stdout.write(as_json(value) + "\n")
    sys.stdout.flush()
