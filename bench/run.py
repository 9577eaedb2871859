"""Print what this machine does: figures, never a verdict. ``make bench`` runs it.

One agent run is a model turn (an instant fake), one no-op guarded tool, and a second model turn,
durable at every step. Servers are real and started for the purpose; their data lies in a
temporary folder. ``--quick`` measures less and longer things not at all.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from aaa.algos import ToolLoop  # noqa: E402 - after the path
from aaa.llm import FakeLLMClient, LLMHandler, ModelReply, ModelRequest  # noqa: E402
from aaa.llm.fake import text, tool_call  # noqa: E402
from aaa.runtime import Engine  # noqa: E402
from aaa.store import open_store  # noqa: E402
from aaa.tools import ToolHandler, ToolRegistry, tool  # noqa: E402
from servers import PostgresServer, RedisServer  # noqa: E402


@tool
async def noop(value: str) -> str:
    """Do nothing."""
    return value


def model(request: ModelRequest) -> ModelReply:
    """One tool call, then an answer."""
    if request.messages[-1].role == "user":
        return tool_call("noop", value="x")
    return text("done")


def engine_on(url: str) -> tuple[Engine, ToolLoop]:
    """An engine with the one no-op tool."""
    registry = ToolRegistry([noop])
    engine = Engine(open_store(url))
    LLMHandler(FakeLLMClient(model)).attach(engine)
    ToolHandler(registry).attach(engine)
    return engine, ToolLoop(registry)


async def runs_per_second(url: str, *, runs: int, in_flight: int) -> dict[str, float]:
    """Throughput, and the latency of one run, with so many at once."""
    engine, loop = engine_on(url)
    async with engine:
        await asyncio.gather(*[engine.run(loop, {"task": "warm up"}) for _ in range(64)])
        gate, took = asyncio.Semaphore(in_flight), []

        async def one() -> None:
            async with gate:
                began = time.perf_counter()
                outcome = await engine.run(loop, {"task": "go"})
                took.append(time.perf_counter() - began)
                if outcome.status != "completed":
                    raise SystemExit(f"a run ended as {outcome}")

        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*[one() for _ in range(runs)])
        seconds = time.perf_counter() - began
        return {
            "runs/s": runs / seconds,
            "p50 ms": statistics.median(took) * 1000,
            "p99 ms": sorted(took)[int(len(took) * 0.99)] * 1000,
            "cpu ms/run": (time.process_time() - cpu) / runs * 1000,
        }


async def long_run(url: str, *, events: int) -> tuple[float, float]:
    """Milliseconds a step of one run: around its 100th event, and around its last."""
    marks: list[float] = []

    def talk(_: ModelRequest) -> ModelReply:
        marks.append(time.perf_counter())
        return text("done") if len(marks) >= events // 5 else tool_call("noop", value="x")

    registry = ToolRegistry([noop])
    engine = Engine(open_store(url))
    LLMHandler(FakeLLMClient(talk)).attach(engine)
    ToolHandler(registry).attach(engine)
    async with engine:
        await engine.run(ToolLoop(registry, max_turns=10_000), {"task": "go"})
    steps = [(after - before) * 1000 for before, after in pairwise(marks)]
    return statistics.median(steps[20:220]), statistics.median(steps[-200:])


def seconds_of(command: list[str], *, times: int = 7) -> float:
    """The median of a whole command."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def idle_worker_mib() -> float:
    """Resident memory of an ``aaa worker`` that has nothing to do."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "aaa", "worker", "--app", "agent:app"),
            *("--store", f"sqlite:///{folder}/idle.db"),
        ]
        with subprocess.Popen(
            command, cwd=ROOT / "examples/refund", stderr=subprocess.PIPE, text=True
        ) as worker:
            try:
                if worker.stderr is None or " serves " not in worker.stderr.readline():
                    raise SystemExit("the idle worker did not start")
                return psutil.Process(worker.pid).memory_info().rss / 2**20
            finally:
                worker.terminate()


@contextmanager
def stores(folder: Path) -> Iterator[dict[str, str]]:
    """The URL of each store, with durable settings."""
    with ExitStack() as stack:
        always = stack.enter_context(RedisServer(fsync="always"))
        everysec = stack.enter_context(RedisServer(fsync="everysec"))
        postgres = stack.enter_context(PostgresServer())
        yield {
            "memory": "memory:",
            "sqlite (WAL, FULL)": f"sqlite:///{folder}/bench.db",
            "redis (always)": always.url,
            "redis (everysec)": everysec.url,
            "postgres": postgres.url,
        }


def fsync_ms(folder: Path) -> float:
    """The median of forcing one small write to this disk."""
    took = []
    with (folder / "fsync").open("wb") as file:
        for _ in range(50):
            file.write(b"x" * 512)
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


def row(table: Table, name: str, measure: Callable[[], Awaitable[dict[str, float]]]) -> None:
    """Measure, and add a line."""
    got = asyncio.run(measure())
    table.add_row(
        name, *[f"{got[key]:,.2f}" for key in ("runs/s", "p50 ms", "p99 ms", "cpu ms/run")]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer runs, no long run")
    options = parser.parse_args()
    console, runs = Console(width=100), 300 if options.quick else 2_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        console.print(f"{os.cpu_count()} cores; fsync p50 {fsync_ms(folder):.2f} ms")
        table = Table("store, runs in flight", "runs/s", "p50 ms", "p99 ms", "cpu ms/run")
        with stores(folder) as urls:
            for store, url in urls.items():
                for many, share in ((64, 1), (1, 10)):
                    console.print(f"measuring {store}, {many} in flight …", style="dim")
                    count = max(100, runs // share)
                    row(
                        table,
                        f"{store}, {many}",
                        lambda u=url, m=many, c=count: runs_per_second(u, runs=c, in_flight=m),
                    )
            console.print(table)
            if not options.quick:
                early, late = asyncio.run(long_run("memory:", events=50_000))
                console.print(
                    f"a step around event 100: {early:.3f} ms; around 50,000: {late:.3f} ms; ratio {late / early:.2f}"
                )
    python = sys.executable
    bare = seconds_of([python, "-c", "pass"])
    console.print(f"import aaa: {(seconds_of([python, '-c', 'import aaa']) - bare) * 1000:.0f} ms")
    console.print(f"aaa --help: {seconds_of([python, '-m', 'aaa', '--help']) * 1000:.0f} ms")
    console.print(f"an idle worker: {idle_worker_mib():.0f} MiB")


if __name__ == "__main__":
    main()
