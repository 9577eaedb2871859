"""Runs the payment provider and the ``aaa`` command as processes, for run.py and demo.py."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from rich.table import Table

HERE = Path(__file__).parent
STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A payment provider that is running now."""

    url: str
    pid: int

    def ledger(self) -> dict[str, list[dict[str, Any]]]:
        """Requests that arrived and refunds that were made."""
        answer = httpx2.get(f"{self.url}/ledger", timeout=5)
        answer.raise_for_status()
        ledger: dict[str, list[dict[str, Any]]] = answer.json()
        return ledger


@contextlib.contextmanager
def running_provider(ledger: Path, *, hang_after_effect_s: float = 0.0) -> Iterator[Provider]:
    """Start the provider on a free port; it ends with this block, or with this program."""
    process = subprocess.Popen(
        [
            *(sys.executable, str(HERE / "provider.py"), str(ledger), "--port", "0"),
            *("--hang-after-effect", str(hang_after_effect_s), "--until-stdin-closes"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the agent; the provider ends after it
    )
    try:
        url = process.stdout.readline().strip() if process.stdout else ""
        if not url:
            raise SystemExit("the payment provider did not start; its message is above")
        yield Provider(url=url, pid=process.pid)
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()


def aaa_command(*arguments: str) -> list[str]:
    """The ``aaa`` of the environment that runs this program."""
    return [str(Path(sys.executable).with_name("aaa")), *arguments]


def environment(provider: Provider) -> dict[str, str]:
    """What the agent needs to know about the world."""
    return os.environ | {"PAYMENTS_URL": provider.url}


def ledger_table(ledger: dict[str, list[dict[str, Any]]]) -> Table:
    """What the provider saw, which no log of ours can talk away."""
    table = Table(title="The provider's ledger", title_justify="left")
    for heading in ("request", "Idempotency-Key", "order", "cents", "answer"):
        table.add_column(heading)
    meaning = {"made": "refund made", "same": "same refund again, nothing moved"}
    for row in ledger["requests"]:
        answer = meaning.get(row["answer"], f"refused: {row['answer']}")
        table.add_row(*(str(row[name] or "") for name in _COLUMNS), answer)
    count = len(ledger["refunds"])
    table.caption = f"{count} refund{'' if count == 1 else 's'} made"
    table.caption_justify = "left"
    return table


_COLUMNS = ("number", "key", "order_id", "amount")
