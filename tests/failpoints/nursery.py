"""Worker processes by the dozen: forked from one that has everything imported already.

Run as a program it reads a trial a line, forks a worker for it, and writes ``<number> pid <pid>``
and ``<number> ended <exit code>``. No thread is left when it forks.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from failpoints.payments import Trial, work


class Worker:
    """One forked process."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.pid: asyncio.Future[int] = loop.create_future()
        self.ended: asyncio.Future[int] = loop.create_future()

    async def signal(self, number: int) -> None:
        if not self.ended.done():
            os.kill(await self.pid, number)


class Nursery:
    """Starts workers; made by :func:`nursery`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._workers: dict[int, Worker] = {}
        self._numbers = count(1)

    def start(self, trial: Trial, *, failing: bool) -> Worker:
        number, worker = next(self._numbers), Worker()
        self._workers[number] = worker
        order = {"number": number, "failing": failing, "trial": asdict(trial)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order, default=str).encode() + b"\n")
        return worker

    async def listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            number, what, value = line.split()
            worker = self._workers[int(number)]
            (worker.pid if what == b"pid" else worker.ended).set_result(int(value))

    async def close(self) -> None:
        for worker in self._workers.values():
            await worker.signal(signal.SIGKILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


@asynccontextmanager
async def nursery() -> AsyncIterator[Nursery]:
    """A nursery whose workers end with it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "failpoints.nursery"),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    made = Nursery(process)
    listening = asyncio.create_task(made.listen())
    try:
        yield made
    finally:
        await made.close()
        await listening


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _warm_up()
    for line in sys.stdin:
        if os.fork() == 0:
            order = json.loads(line)
            trial = order["trial"] | {"folder": Path(order["trial"]["folder"])}
            _tend(order["number"], Trial(**trial), failing=order["failing"])


def _warm_up() -> None:
    """Load what a worker loads at its first run, which costs it more than the run itself."""
    for module in ("sqlite", "redis", "postgres"):
        importlib.import_module(f"aaa.store.{module}")
    with TemporaryDirectory() as folder:
        work(Trial("memory:", Path(folder), "first", "raise", 1, at="nowhere"), failing=True)
    gc.freeze()


def _tend(number: int, trial: Trial, *, failing: bool) -> None:
    """Fork the worker and tell what becomes of it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        try:
            work(trial, failing=failing)
        except BaseException:  # noqa: BLE001 - a forked process has nobody to raise it to
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _say(number, "pid", pid)
    _say(number, "ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _say(number: int, what: str, value: int) -> None:
    os.write(1, f"{number} {what} {value}\n".encode())


if __name__ == "__main__":
    main()
