"""Kills the worker with SIGKILL in the middle of a refund, once per delivery mode, and goes on.

    python examples/refund/demo.py [--keep FOLDER]

The provider makes the refund and then delays its answer, so the worker dies at the worst moment:
the money has moved and nothing says so. Then the same command is given again. What the log says is
shown beside what the provider saw.

* ``at_most_once``: no second attempt; ``verify=`` asks the provider and finds the refund.
* ``at_least_once``: a second attempt with the same key; the provider answers with the same refund.

Exits with 1 if a refund was made twice or a run did not complete.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from service import HERE, Provider, aaa_command, environment, ledger_table, running_provider

#: Longer than everything else here: the reply that is waited for never comes.
HANG_S = 300.0
EFFECT_TIMEOUT_S = 60.0
RECOVERY_TIMEOUT_S = 120.0
#: Columns from which on timeline and ledger stand beside each other.
SIDE_BY_SIDE = 150


@dataclass(frozen=True, slots=True)
class Mode:
    """One delivery mode and how many requests the provider should see under it."""

    delivery: str
    run: str
    expected_requests: int

    @property
    def manifest(self) -> Path:
        return HERE / f"{self.run}.yaml"


MODES = (
    Mode("at_most_once", "demo-at-most-once", expected_requests=1),
    Mode("at_least_once", "demo-at-least-once", expected_requests=2),
)


def main() -> int:
    """0 if each run completed with one refund."""
    parser = argparse.ArgumentParser(description="Kill a worker in the middle of a refund.")
    parser.add_argument("--keep", type=Path, help="keep stores, ledgers and logs in this folder")
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="aaa-demo-") as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        kept = [_show(mode, folder=folder / mode.run, console=console) for mode in MODES]
    return 0 if all(kept) else 1


def _show(mode: Mode, *, folder: Path, console: Console) -> bool:
    console.rule(f"[bold]{mode.delivery}")
    shutil.rmtree(folder, ignore_errors=True)  # what an earlier demonstration kept
    folder.mkdir(parents=True)
    store = f"sqlite:///{folder / 'store.db'}"
    with running_provider(folder / "payments.db", hang_after_effect_s=HANG_S) as provider:
        _kill_in_the_middle(mode, store=store, provider=provider, folder=folder, console=console)
        console.print("the same command again:")
        again = subprocess.run(
            aaa_command("run", str(mode.manifest), "--store", store),
            env=environment(provider),
            timeout=RECOVERY_TIMEOUT_S,
            check=False,
        )
        shown = subprocess.run(
            aaa_command("show", mode.run, "--store", store),
            env=environment(provider) | {"COLUMNS": str(_timeline_width(console))},
            capture_output=True,
            text=True,
            timeout=EFFECT_TIMEOUT_S,
            check=False,
        )
        ledger = provider.ledger()
    console.print(_side_by_side(shown.stdout or shown.stderr, ledger_table(ledger), console))
    seen = (len(ledger["requests"]), len(ledger["refunds"]))
    kept = again.returncode == 0 and seen == (mode.expected_requests, 1)
    requests = "one request" if seen[0] == 1 else f"{seen[0]} requests"
    console.print(
        f"{'[green]kept' if kept else '[red]BROKEN'}[/]: {mode.delivery}: "
        f"{requests}, {seen[1]} refund made, exit code {again.returncode}\n"
    )
    return kept


def _kill_in_the_middle(
    mode: Mode, *, store: str, provider: Provider, folder: Path, console: Console
) -> None:
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            aaa_command("run", str(mode.manifest), "--store", store),
            env=environment(provider),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_for_the_effect(provider, worker=worker, log=folder / "worker.log")
            console.print(f"the provider has made the refund; SIGKILL to worker {worker.pid}")
        finally:
            worker.kill()
            worker.wait()


def _wait_for_the_effect(provider: Provider, *, worker: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + EFFECT_TIMEOUT_S
    while not provider.ledger()["refunds"]:
        if worker.poll() is not None:
            raise SystemExit(f"the worker ended before the refund:\n{log.read_text()}")
        if time.monotonic() > deadline:
            raise SystemExit(f"no refund within {EFFECT_TIMEOUT_S:g} s:\n{log.read_text()}")
        time.sleep(0.02)


def _timeline_width(console: Console) -> int:
    """Half of a wide terminal; all of one that is too narrow for timeline and ledger."""
    return console.width // 2 if console.width >= SIDE_BY_SIDE else console.width


def _side_by_side(timeline: str, ledger: Table, console: Console) -> Table | Group:
    left = Text.from_ansi(timeline.rstrip())
    if console.width < SIDE_BY_SIDE:
        return Group(left, Text(), ledger)
    grid = Table.grid(padding=(0, 3))
    grid.add_row(left, ledger)
    return grid


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
