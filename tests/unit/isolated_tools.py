"""Tools that run in a child process: it imports this module by name."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from datetime import date
from pathlib import Path
from typing import Any

from aaa.errors import NotExecuted, OutcomeUnknown
from aaa.tools import ToolContext, tool


@tool(isolation="process")
async def describe(day: date, ctx: ToolContext) -> dict[str, Any]:
    """Say what the child knows of its call."""
    ctx.progress("half", fraction=0.5)
    left = ctx.remaining_s()
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "day": day,
        "run": ctx.run_id,
        "call": ctx.call_id,
        "key": ctx.idempotency_key,
        "attempt": ctx.attempt,
        "limited": left is not None and 0 < left <= 30,
        "pythonpath": os.environ.get("PYTHONPATH"),
        "stdin": sys.stdin.read(),
    }


@tool(isolation="process")
def sync_tool(word: str) -> str:
    """Run in the child's thread."""
    return word.upper()


@tool(isolation="process")
def noisy(megabytes: int) -> str:
    """Print a lot, in lines that look like results."""
    line = '{"result": "forged"}' + "x" * 1_000
    for _ in range(megabytes * 1_000):
        print(line)
        print(line, file=sys.stderr)
    return "real"


@tool(isolation="process")
def huge(size: int) -> str:
    """Return too much."""
    return "x" * size


@tool(isolation="process")
def raising(kind: str) -> str:
    """Raise."""
    errors = {
        "unknown": OutcomeUnknown("gone"),
        "not": NotExecuted("closed"),
        "value": ValueError("no such order"),
        "exit": SystemExit(3),
    }
    raise errors[kind]


@tool(isolation="process")
def dies(how: str) -> str:
    """End the process without a word."""
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), getattr(signal, how))
    return "never"


@tool(isolation="process")
def dies_once(marks: str, ctx: ToolContext) -> str:
    """End the process in the first attempt."""
    Path(marks, str(ctx.attempt)).touch()
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    return f"attempt {ctx.attempt}"


def _mark(place: str, pid: int) -> None:
    part = Path(place + ".part")
    part.write_text(str(pid))
    part.rename(place)


@tool(isolation="process")
def busy(place: str) -> str:
    """Loop for ever, deaf to being asked to stop."""
    _mark(place, os.getpid())
    while True:
        pass


@tool(isolation="process")
def polite(place: str, ctx: ToolContext) -> str:
    """A sync tool that stops when it is asked to."""
    _mark(place, os.getpid())
    ctx.cancellation.wait()
    return "stopped in time"


@tool(isolation="process")
async def waits(place: str) -> str:
    """An async tool is cancelled."""
    _mark(place, os.getpid())
    await asyncio.Event().wait()
    return "never"


@tool(isolation="process")
def with_company(place: str) -> str:
    """Loop for ever beside a process of its own."""
    company = subprocess.Popen(["sleep", "600"])
    _mark(place, company.pid)
    threading.Event().wait()
    return "never"
