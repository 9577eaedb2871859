"""The desk of the command's tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.desk import Desk


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    for name in [name for name in os.environ if name.startswith("AAA_") and "_TEST_" not in name]:
        monkeypatch.delenv(name, raising=False)
    return Desk(tmp_path)
