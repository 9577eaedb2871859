"""Run other programs and wait for what they bring about, with a bound on both.

Every failure is a `ClusterError` whose text is for a person: what was tried, what the program said.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class ClusterError(Exception):
    """The test cluster cannot do what was asked; the text says why and what would help."""


class Hopeless(ClusterError):
    """What is waited for can no longer come."""


def run(
    argv: Sequence[str | Path],
    *,
    timeout_s: float = 60.0,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Run a program to its end and return what it printed on standard output."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            input=stdin if stdin is not None else "",
            env=dict(env) if env is not None else None,
            cwd=cwd,
        )
    except FileNotFoundError as missing:
        raise ClusterError(f"the program {words[0]} is not installed") from missing
    except subprocess.TimeoutExpired as late:
        raise ClusterError(f"{_short(words)} did not end within {timeout_s:g} s") from late
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise ClusterError(f"{_short(words)} ended with {done.returncode}: {said}")
    return done.stdout


def succeeds(argv: Sequence[str | Path], *, timeout_s: float = 60.0) -> bool:
    """Whether a program can be run and ends with 0."""
    try:
        run(argv, timeout_s=timeout_s)
    except ClusterError:
        return False
    return True


def wait_until(
    holds: Callable[[], bool], *, what: str, timeout_s: float, every_s: float = 0.1
) -> None:
    """Ask again and again until the answer is yes; an error counts as no until the time is up.

    `Hopeless` ends the wait at once.
    """
    deadline = time.monotonic() + timeout_s
    error: ClusterError | None = None
    while True:
        try:
            if holds():
                return
            error = None
        except Hopeless:
            raise
        except ClusterError as said:
            error = said
        if time.monotonic() >= deadline:
            reason = f": {error}" if error is not None else ""
            raise ClusterError(f"{what}: not within {timeout_s:g} s{reason}")
        time.sleep(every_s)


class Progress:
    """Says on standard error what is being done, and how long the whole has taken so far."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        print(f"cluster: {time.monotonic() - self._started:5.1f} s  {text}", file=sys.stderr)


def _short(words: Sequence[str]) -> str:
    line = " ".join(words)
    return line if len(line) <= 200 else line[:200] + "…"
