"""Runs what stands in fenced blocks of the documentation, a page at a time, in a temporary folder.

What a block is follows from its fence:

- ``python``: run in this process; the blocks of a page share their names.
- ``python title="agent.py"``, ``yaml title="run.yaml"``: saved under that name, for commands.
- ``yaml``: if it is a manifest of ours, it must load; a saved one too.
- ``console``: lines that begin with ``$ `` are typed into one shell, in the page's folder; what
  stands below each is what it prints, where ``…`` stands for anything, in a line or for lines.
  Times, dates, digests and names of workers may differ. A command that fails is one that
  ``echo $?`` follows.
- ``console cluster``: the same in a cluster; typed by the end-to-end tests, shown only here.
- ``sh``, ``text``, ``sql`` and blocks without a name are shown only.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from sybil import Document, Example, Region
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

import aaa
from aaa.manifest import load_manifests

ROOT = Path(__file__).parents[2]
RUNTIME = Path(aaa.__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LIMIT_S = 90.0
KNOWN = {"python", "yaml", "console", "sh", "text", "sql", ""}
_INFO = re.compile(r'(?P<language>\w*)(?P<cluster> cluster)?(?: title="(?P<title>[^"]+)")?[ \t]*\n')
_END = "\x1e"


def run_page(page: Path, folder: Path) -> int:
    """Run a page's blocks in order; how many there were. Raises for the first that fails."""
    shell = Shell(folder)
    blocks = list(Document.parse(str(page), Blocks(page, folder, shell)).examples())
    for block in blocks:
        block.evaluate()
    return len(blocks)


class Blocks:
    """Sybil's parser for our fences."""

    def __init__(self, page: Path, folder: Path, shell: Shell) -> None:
        self.page, self.folder, self.shell = page, folder, shell
        self._python = PythonEvaluator()

    def __call__(self, document: Document) -> Iterable[Region]:
        for region in RawFencedCodeBlockLexer(_INFO)(document):
            language, title = region.lexemes["language"], region.lexemes["title"]
            if language not in KNOWN:
                raise AssertionError(f"{self.page.name}: nobody runs a block of {language!r}")
            region.parsed = region.lexemes["source"]
            if region.lexemes["cluster"]:
                continue
            if title:
                region.evaluator = self._save
            elif language == "python":
                region.evaluator = self._python
            elif language == "yaml":
                region.evaluator = self._load
            elif language == "console":
                region.evaluator = self._type
            else:
                continue
            yield region

    def _save(self, example: Example) -> None:
        name = example.region.lexemes["title"]
        (self.folder / name).write_text(example.parsed)
        if name.endswith(".yaml"):
            self._load(example)

    def _load(self, example: Example) -> None:
        if "apiVersion: aaa.dev" in example.parsed:
            load_manifests(example.parsed, file=f"{self.page.name}:{example.line}")

    def _type(self, example: Example) -> None:
        steps = steps_of(example.parsed)
        told = self.shell.type([command for command, _ in steps])
        for index, ((command, expected), (out, code)) in enumerate(zip(steps, told, strict=True)):
            follows = steps[index + 1][0] if index + 1 < len(steps) else ""
            where = f"{self.page.name}:{example.line}: $ {command}\n{out}"
            assert code == 0 or follows == "echo $?", f"{where}\nexit code {code}"
            assert matches(expected, out), f"{where}\ninstead of:\n{expected}"


def steps_of(block: str) -> list[tuple[str, str]]:
    """A console block as commands with what each prints."""
    steps: list[tuple[str, str]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            steps.append((line[2:], ""))
        elif steps and steps[-1][0].endswith("\\"):
            steps[-1] = (steps[-1][0][:-1] + line.lstrip("> "), "")
        elif steps:
            command, expected = steps.pop()
            steps.append((command, f"{expected}{line}\n"))
        else:
            raise AssertionError(f"a console block begins with '$ ', not with {line!r}")
    return steps


class Shell:
    """Types commands into ``bash``, where ``aaa`` and ``python`` are the ones under test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        commands = folder / ".commands"
        commands.mkdir()
        for name, arguments in (("aaa", ["-m", "aaa"]), ("python", [])):
            shim = commands / name
            shim.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *arguments])} "$@"\n')
            shim.chmod(0o755)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("AAA_")}
        self.env: Mapping[str, str] = kept | {
            "PATH": f"{commands}{os.pathsep}{kept['PATH']}",
            "PYTHONPATH": str(RUNTIME),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "NO_COLOR": "1",
            "COLUMNS": "100",
            "LOGNAME": "ann",
        }

    def type(self, commands: list[str]) -> list[tuple[str, int]]:
        """What each printed, and its exit code."""
        script = "".join(
            f"{each}\n{{ __code=$?; printf '{_END}%s{_END}' $__code; }} 2>/dev/null\n(exit $__code)\n"
            for each in commands
        )
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.folder,
            env=dict(self.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            told, _ = shell.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"one of these did not end: {commands}") from None
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
                shell.communicate()
        parts = told.split(_END)
        assert len(parts) == 2 * len(commands) + 1, told
        return [(parts[at], int(parts[at + 1])) for at in range(0, len(parts) - 1, 2)]


_MAY_DIFFER = [
    (re.compile(r"bash: line \d+: +\d+ (Killed)\b.*"), r"\1"),
    (re.compile(r"\d{4}-\d\d-\d\d"), "DATE"),
    (re.compile(r"\d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"\+\d+\.\d+"), "+T"),
    (re.compile(r"\d+(\.\d+)? (s|min)\b"), "T s"),
    (re.compile(r"\b[0-9a-f]{12,32}\b"), "DIGEST"),
    (re.compile(r"\b[\w.-]+-\d+-[0-9a-f]{8}\b"), "WORKER"),
    (re.compile(r"[ \t]+"), " "),
]


def matches(expected: str, told: str) -> bool:
    """Whether the output is what the page shows, up to what may differ and to ``…``."""
    want, have = _lines(expected), _lines(told)
    pattern = ""
    for line in want:
        if line == "…":
            pattern += r"(?:.*\n)*"
        else:
            pattern += re.escape(line).replace("…", ".*") + r"\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in have)) is not None


def _lines(text: str) -> list[str]:
    for pattern, instead in _MAY_DIFFER:
        text = pattern.sub(instead, text)
    return [line.strip() for line in textwrap.dedent(text).splitlines() if line.strip()]
