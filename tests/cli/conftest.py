"""The desk of the command's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.desk import Desk


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    for name in ("AAA_STORE", "AAA_APP", "AAA_DEBUG", "AAA_SCOPE"):
        monkeypatch.delenv(name, raising=False)
    return Desk(tmp_path)
