"""A desk: a folder with the tests' app in it, where ``aaa`` is typed as a real process."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import aaa
from aaa.cli import program

RUNTIME = Path(aaa.__file__).parents[1]
APP = Path(__file__).parent / "app"
#: Bound on every command; far more than any needs.
LIMIT_S = 90.0


class Desk:
    """Commands run in ``folder``; manifests are written there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "shop_agent.py").write_text((APP / "shop_agent.py").read_text())
        kept = {key: value for key, value in os.environ.items() if not key.startswith("AAA_")}
        self.env = kept | {
            "PYTHONPATH": str(RUNTIME),
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "NO_COLOR": "1",
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "aaa", *arguments]

    def aaa(self, *arguments: str) -> Done:
        """Run a command in this process, as one of its own would: it sees only this folder."""
        out, err = io.StringIO(), io.StringIO()
        before, path = Path.cwd(), list(sys.path)
        root = logging.getLogger()
        handlers, level = root.handlers[:], root.level
        os.chdir(self.folder)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = program.run(arguments)
        finally:
            os.chdir(before)
            sys.path[:] = path
            sys.modules.pop("shop_agent", None)
            root.handlers[:] = handlers
            root.setLevel(level)
        return Done(code, out.getvalue(), err.getvalue())

    def real(self, *arguments: str) -> Done:
        """Run a command to its end, in a process of its own."""
        ended = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return Done(ended.returncode, ended.stdout, ended.stderr)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command; its output is to be read from ``stdout``, errors included."""
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def manifest(self, task: str, *, name: str = "dig", more: str = "", app: str = "app") -> str:
        """Write a manifest of one run; ``more`` is appended to its spec. Its file name."""
        text = (
            "apiVersion: aaa.dev/v1alpha1\nkind: AgentRun\n"
            f"metadata:\n  name: {name}\n  labels:\n    team: digging\n"
            f"spec:\n  agent:\n    app: shop_agent:{app}\n  input:\n    task: {task}\n{more}"
        )
        (self.folder / f"{name}.yaml").write_text(text)
        return f"{name}.yaml"

    def effects(self) -> list[str]:
        """What the tools did, in order."""
        file = self.folder / "effects"
        return file.read_text().split() if file.exists() else []

    def types(self, run: str) -> list[str]:
        """The run's event types."""
        return [event["type"] for event in self.aaa("events", run, "--json").lines()]


class Done:
    """How a command ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def lines(self) -> list[dict[str, Any]]:
        """Standard output as one JSON object a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    def __repr__(self) -> str:
        return f"exit {self.code}\n{self.out}\n--\n{self.err}"


def read_until(process: subprocess.Popen[str], *texts: str) -> str:
    """Read its output up to a line that holds them all; the test's own time limit bounds it."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if all(text in line for text in texts):
            return seen
    raise AssertionError(f"it ended without {texts!r}:\n{seen}")
