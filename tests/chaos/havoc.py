"""Two worker processes that share the work while they are killed, frozen, thawed and drained."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from aaa.ids import partition_of
from aaa.runtime.submission import new_run
from aaa.store import open_store
from aaa.store.port import EventStore
from chaos import payments

#: Exit codes of a worker that cannot work; none of the faults leads to one.
REFUSALS = (1, 2)
HERE = Path(__file__).parent
WORKER_TTL_S = 1.0


@dataclass
class Worker:
    """One worker process, replaced when it is gone."""

    url: str
    ledger: Path
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            *(sys.executable, "-m", "aaa", "worker", "--app", "chaos.payments:app"),
            *("--store", self.url, "--worker-ttl-s", str(WORKER_TTL_S)),
            *("--concurrency", "48", "--drain-timeout-s", "2"),
        ]
        environment = {
            **os.environ,
            "CHAOS_LEDGER": str(self.ledger),
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path]),
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def restart_if_gone(self) -> None:
        code = None if self.process is None else self.process.poll()
        if code in REFUSALS:
            raise AssertionError(f"a worker ended by itself with {code}: {self.log.read_text()}")
        # 3, no store: a frozen worker may hold SQLite's lock just then; who supervises starts it anew.
        if self.process is None or code is not None:
            self.start()

    def stop(self) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(timeout=10)


@dataclass
class Report:
    """What a run of havoc came to."""

    faults: Counter[str] = field(default_factory=Counter)
    finished: int = 0


async def submit(store: EventStore, runs: int) -> list[str]:
    """Create the runs, as a client would that is no worker itself."""
    algorithm = payments.app.algorithm
    digest = payments.registry.digest[:12]
    app = f"local/{algorithm.name}@{algorithm.version}/{digest}"
    names = [f"order-{number:05d}" for number in range(runs)]
    gate = asyncio.Semaphore(64)

    async def one(name: str) -> None:
        async with gate:
            create = new_run(name, app, algorithm, {"task": name})
            await store.commit(partition_of(name, store.partitions), [create])

    await asyncio.gather(*[one(name) for name in names])
    return names


async def havoc(
    url: str, *, folder: Path, runs: int, seed: int, faults: Iterable[str], limit_s: float
) -> Report:
    """Finish ``runs`` runs with two workers under random faults; raises TimeoutError."""
    random, report = Random(seed), Report()
    ledger = folder / "ledger.jsonl"
    ledger.touch()
    workers = [Worker(url, ledger, folder / f"worker-{number}.log") for number in range(2)]
    kinds = list(faults)
    store = open_store(url)
    await store.open()
    try:
        for worker in workers:
            worker.start()
        await submit(store, runs)
        async with asyncio.timeout(limit_s):
            while await _left(store, runs):
                await _one_fault(random, report, workers, kinds)
        report.finished = runs
    finally:
        for worker in workers:
            worker.stop()
        await store.close()
    return report


async def _left(store: EventStore, runs: int) -> int:
    done = [run for run in await store.runs(limit=runs + 1) if run.status != "open"]
    return runs - len(done)


async def _one_fault(
    random: Random, report: Report, workers: list[Worker], kinds: list[str]
) -> None:
    worker, kind = random.choice(workers), random.choice(kinds)
    report.faults[kind] += 1
    match kind:
        case "kill":
            worker.signal(signal.SIGKILL)
        case "drain":
            worker.signal(signal.SIGTERM)
        case "freeze":
            worker.signal(signal.SIGSTOP)
            await asyncio.sleep(random.uniform(0.2, 2.5 * payments.LEASE_TTL_S))
            worker.signal(signal.SIGCONT)
    await asyncio.sleep(random.uniform(0.3, 1.2))
    for each in workers:
        each.restart_if_gone()


def starts(ledger: Path) -> list[dict[str, object]]:
    """The records of the ledger."""
    return [json.loads(line) for line in ledger.read_text().splitlines()]
