"""Every program in examples/ runs as its first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aaa.manifest import load_manifests
from docs.pages import ROOT, RUNTIME

EXAMPLES = ROOT / "examples"
LIMIT_S = 110.0


def run(program: Path, folder: Path) -> str:
    """What it prints; it must end well."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("AAA_")}
    ended = subprocess.run(
        [sys.executable, str(program)],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(RUNTIME), "NO_COLOR": "1", "COLUMNS": "160"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_program_with_two_tools_prints_how_each_is_delivered(tmp_path: Path) -> None:
    assert run(EXAMPLES / "guarded_tools.py", tmp_path).splitlines() == [
        "page: at_most_once, lease 15 s",
        "read_metrics: at_least_once, lease 5 s",
        "payments was paged under page:payments, attempt 1",
    ]


def test_the_refund_is_made_once_however_often_it_is_run(tmp_path: Path) -> None:
    first = run(EXAMPLES / "refund" / "run.py", tmp_path)
    again = run(EXAMPLES / "refund" / "run.py", tmp_path)
    for told in (first, again):
        assert "Refunded order A-100: 199.00, refund 1." in told
        assert "1 refund made" in told
    assert "attempt 1 started" in first.split("$ aaa show")[0]
    assert "attempt 1 started" not in again.split("$ aaa show")[0]


@pytest.mark.timeout(240)
def test_a_worker_killed_in_the_middle_refunds_once_in_both_modes(tmp_path: Path) -> None:
    told = run(EXAMPLES / "refund" / "demo.py", tmp_path)
    assert "kept: at_most_once: one request, 1 refund made" in told
    assert "kept: at_least_once: 2 requests, 1 refund made" in told


def test_every_manifest_in_examples_loads() -> None:
    files = sorted(EXAMPLES.rglob("*.yaml"))
    assert files
    for file in files:
        assert load_manifests(file.read_text(encoding="utf-8"), file=str(file))


def test_every_program_in_examples_is_run_by_a_test() -> None:
    """``agent.py``, ``provider.py`` and ``service.py`` are parts of the refund example."""
    parts = {"agent.py", "provider.py", "service.py"}
    programs = {path.name for path in EXAMPLES.rglob("*.py")} - parts
    assert programs == {"guarded_tools.py", "run.py", "demo.py"}
