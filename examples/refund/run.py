"""Runs refund.yaml beside its payment provider and shows what both of them recorded.

    python examples/refund/run.py

The store and the provider's ledger are kept in ``.aaa/`` of the working folder: run it again and
the same run shows its result at once, without another refund.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rich.console import Console

from service import HERE, aaa_command, environment, ledger_table, running_provider

MANIFEST = HERE / "refund.yaml"
RUN = "refund-a-100"


def main() -> int:
    """The exit code of ``aaa run``."""
    console = Console()
    with running_provider(Path(".aaa/payments.db")) as provider:
        env = environment(provider)
        console.print(f"payment provider: {provider.url} (process {provider.pid})")
        console.print(f"$ aaa run {_short(MANIFEST)}")
        code = subprocess.run(aaa_command("run", str(MANIFEST)), env=env, check=False).returncode
        console.print(f"\n$ aaa show {RUN}")
        subprocess.run(aaa_command("show", RUN), env=env, check=False)
        console.print()
        console.print(ledger_table(provider.ledger()))
    return code


def _short(path: Path) -> str:
    """As somebody in the working folder would type it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
