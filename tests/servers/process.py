"""One server process: how it starts, answers, stalls, dies and comes back, whatever it serves.

Guarantees: a server listens on 127.0.0.1 only; its data lies in a temporary folder that goes with
it; it ends with the test process, also when that is killed (Linux: parent-death signal; elsewhere
at exit). Signals go to process ids that this module started, never to names.

Start servers from a thread that lives as long as they should: the parent-death signal is bound to
the thread that made the process.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Self

import psutil

#: How long a server may take to answer, and to end, before that counts as a failure.
START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0
#: Another process may take a free port between our finding it and the server's binding it.
START_TRIES = 5

HOST = "127.0.0.1"
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


class ServerFailed(AssertionError):
    """A server did not start, answer or stop; the message ends with what it logged."""


class Server(ABC):
    """A server under the test's control. ``start()`` again after ``kill()`` keeps port and data."""

    def __init__(self, *, name: str) -> None:
        self.name = name
        self.port = 0
        self.home = _make_home(name)
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.destroy)

    @property
    @abstractmethod
    def url(self) -> str:
        """The address, as a client library takes it."""

    @abstractmethod
    def command(self) -> list[str]:
        """What to start; reads ``self.port``."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether a client gets an answer now; raises nothing."""

    def prepare(self) -> None:  # noqa: B027 - most servers need nothing laid out
        """Lay out ``self.home`` before the first start."""

    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"}

    def user(self) -> str | None:
        """The user to run as; ``None``: the one that runs the tests."""
        return None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start and wait until it answers. On the first start a port is chosen, then kept."""
        if self.running:
            return self
        first = self.port == 0
        if first:
            self.prepare()
        for tries_left in reversed(range(START_TRIES if first else 1)):
            if first:
                self.port = free_port()
            self._spawn()
            if self._wait_until_it_answers():
                return self
            if not tries_left:
                break
        raise ServerFailed(f"{self.name} did not start:\n{self.log_tail()}")

    def stop(self) -> None:
        """End it in order; its data stays for the next ``start()``."""
        if not self.running:
            self._process = None
            return
        self.resume()
        self._end(self._stop_signal())

    def kill(self) -> None:
        """SIGKILL, to the server and its children, as if the machine had lost power."""
        tree = self._tree()
        for process in tree:
            _quietly(process.kill)
        self._reap()
        if not wait_until(lambda: not any(map(_is_alive, tree)), timeout_s=STOP_TIMEOUT_S):
            raise ServerFailed(f"{self.name} does not die: {tree}")

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        for process in self._tree():
            _quietly(process.suspend)

    def resume(self) -> None:
        """SIGCONT: goes on where ``pause()`` stopped it."""
        for process in self._tree():
            _quietly(process.resume)

    def restart(self) -> Self:
        """Stop in order if it runs, then start on the same port with the same data."""
        self.stop()
        return self.start()

    def destroy(self) -> None:
        """End it at once and delete its data; for good."""
        if self.running:
            self.kill()
        shutil.rmtree(self.home, ignore_errors=True)
        atexit.unregister(self.destroy)

    def log_tail(self, *, lines: int = 30) -> str:
        log = self.home / "server.log"
        text = log.read_text(errors="replace") if log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def _stop_signal(self) -> signal.Signals:
        return signal.SIGTERM

    def _spawn(self) -> None:
        user = self.user()
        with (self.home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=self.environment(),
                user=user,
                group=None if user is None else _group_of(user),
                extra_groups=None if user is None else [],
                start_new_session=True,  # Ctrl-C at the tests is not for the server
                preexec_fn=_die_with_parent if _prctl else None,
            )

    def _wait_until_it_answers(self) -> bool:
        return wait_until(lambda: not self.running or self.answers()) and self.running

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(f"{self.name} did not stop:\n{self.log_tail()}") from None
        self._process = None

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def _tree(self) -> list[psutil.Process]:
        if not self.running:
            return []
        root = psutil.Process(self.pid)
        return [root, *root.children(recursive=True)]


def wait_until(true: Callable[[], bool], *, timeout_s: float = START_TIMEOUT_S) -> bool:
    """Ask until ``true()`` or the time is up; says which."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def free_port(*, below: int = 65_536) -> int:
    """A port that nothing listens on now."""
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port: int = probe.getsockname()[1]
        if port < below:
            return port


def _make_home(name: str) -> Path:
    """A folder of our own that another user may pass through but not list."""
    home = Path(tempfile.mkdtemp(prefix=f"aaa-{name}-", dir=_temporary_root()))
    home.chmod(0o711)
    return home


def _temporary_root() -> str:
    """Where temporary folders go; as root one that every user reaches, since servers drop root."""
    chosen = Path(tempfile.gettempdir())
    if os.geteuid() == 0:
        for parent in (chosen, *chosen.parents):
            if not parent.stat().st_mode & 0o001:
                return "/tmp"
    return str(chosen)


def _group_of(user: str) -> int:
    import pwd

    return pwd.getpwnam(user).pw_gid


def _die_with_parent() -> None:
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _is_alive(process: psutil.Process) -> bool:
    """Whether it still holds anything; a dead child that nobody has collected does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _quietly(act: Callable[[], object]) -> None:
    try:
        act()
    except psutil.NoSuchProcess:
        return
