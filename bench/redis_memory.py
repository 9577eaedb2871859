"""How much memory a finished run takes in Redis, and how fast the store itself takes it.

    python bench/redis_memory.py [--url redis://…] [--runs 5000]

Without a URL, a server of the tests is started (appendfsync always). A run is nine events: request,
model turn, one guarded tool, model turn, end; 64 are in flight. Nothing else should use the server.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import redis

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "runtime"), str(ROOT / "tests")]

from aaa import events as ev  # noqa: E402
from aaa.events import Event, run_requested  # noqa: E402
from aaa.ids import digest_of, json_text, partition_of, result_id  # noqa: E402
from aaa.store import port  # noqa: E402
from aaa.store.port import Append, Create, Entry, Head, Settle  # noqa: E402
from aaa.store.redis import RedisEventStore  # noqa: E402

APP, WORKER, IN_FLIGHT = "local", "bench-0123456789abcdef", 64
TERMS = {
    "llm/model": port.ToolTerms(delivery="at_least_once", max_attempts=3, lease_ttl_ms=15_000),
    "tool/refund": port.ToolTerms(
        delivery="at_most_once", max_attempts=3, lease_ttl_ms=15_000, policy="0" * 32
    ),
}


class Run:
    """One run, driven by hand: seven commits, as an engine without coalescing would send them."""

    def __init__(self, store: RedisEventStore, number: int, terms: dict[int, int]) -> None:
        self.id = f"run-{number:012d}"
        self.store, self.partition = store, partition_of(self.id, store.partitions)
        self.term = terms[self.partition]
        self.head = Head(0, "")
        self.offers = 0

    async def go(self) -> None:
        request = run_requested(self.id, {"app": APP, "input": {"order": "A-1001", "amount": 20}})
        created = await self._commit(
            Create(
                run_id=self.id,
                app=APP,
                digest=digest_of(request.raw),
                entries=(Entry(request),),
            )
        )
        self.head = created.head
        answer = await self._call(request, ev.LLM_REQUESTED, "c1-0", "model", "llm/model")
        result = await self._call(answer, ev.TOOL_REQUESTED, "c3-0", "refund", "tool/refund")
        last = await self._call(result, ev.LLM_REQUESTED, "c6-0", "model", "llm/model")
        end = last.caused(ev.RUN_COMPLETED, {"value": "The order A-1001 has been refunded."})
        await self._decide(Entry(end, port.CloseRun("completed")))

    async def _call(self, cause: Event, kind: str, call: str, name: str, queue: str) -> Event:
        args = {"order": "A-1001", "amount": 20}
        event = cause.caused(kind, {"args": args, "call_id": call, "name": name})
        opens = port.OpenCall(
            queue=queue,
            call_json=json_text(call),
            name_json=json_text(name),
            key_json=json_text(f"{self.id}/{call}"),
            args_digest=digest_of(event.raw),
        )
        (claimed,) = (await self._decide(Entry(event, opens))).claimed
        done = ev.TOOL_COMPLETED if kind == ev.TOOL_REQUESTED else ev.LLM_COMPLETED
        outcome = event.named(result_id(event.id), done, {"attempt": 1, "result": {"ok": True}})
        settled = await self._commit(
            Settle(
                run_id=self.id,
                request_id=event.id,
                attempt=claimed.attempt,
                worker=WORKER,
                outcome=outcome,
            )
        )
        self.head = settled.head
        return outcome

    async def _decide(self, entry: Entry) -> Any:
        self.offers += 1
        offer = port.Offer(worker=WORKER, nonce=f"{self.id}/{self.offers}", limit=1, queues=TERMS)
        verdict = await self._commit(
            Append(
                run_id=self.id,
                entries=(entry,),
                at=self.head,
                term=self.term,
                worker=WORKER,
                offer=offer,
            )
        )
        self.head = verdict.head
        return verdict

    async def _commit(self, operation: port.Operation) -> Any:
        return (await self.store.commit(self.partition, [operation])).verdicts[0]


async def measure(url: str, runs: int) -> None:
    client = redis.Redis.from_url(url, protocol=2)
    store = RedisEventStore(url)
    await store.open()
    terms = {}
    for number in range(store.partitions):
        own = port.Own(app=APP, worker=WORKER, ttl_ms=3_600_000)
        terms[number] = (await store.commit(number, [own])).verdicts[0].term  # type: ignore[union-attr]
    before: Any = client.info()
    numbers = iter(range(runs))

    async def work() -> None:
        for number in numbers:
            await Run(store, number, terms).go()

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
    took, spent = time.perf_counter() - began, time.process_time() - cpu
    after: Any = client.info()
    info = await store.run("run-000000000000")
    assert info is not None
    assert (info.status, info.head.seq) == ("completed", 9), info
    calls: Any = client.info("commandstats")
    fcall = calls.get("cmdstat_fcall", {})
    await store.close()
    size = (after["used_memory"] - before["used_memory"]) / runs
    print(f"{size:,.0f} bytes a run of nine events ({runs} runs)")
    print(f"{runs / took:,.0f} runs/s, {spent / runs * 1e3:.3f} ms of client CPU a run")
    busy = sum(
        after[name] - before[name] for name in ("used_cpu_user", "used_cpu_sys") if name in after
    )
    print(f"{fcall.get('usec_per_call')} µs a call at the server, {fcall.get('calls')} calls")
    print(f"{busy / runs * 1e3:.3f} ms of the server's CPU a run")
    for name, kind in (("r", "hash"), ("e", "list"), ("i", "hash")):
        key = f"aaa:{{p{partition_of('run-000000000000', 64)}}}:{name}:run-000000000000"
        used = client.memory_usage(key)
        print(f"  {name}: {kind}, {client.object('encoding', key)!r}, {used} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--runs", type=int, default=5_000)
    options = parser.parse_args()
    if options.url:
        asyncio.run(measure(options.url, options.runs))
        return
    from servers import RedisServer

    with RedisServer() as server:
        asyncio.run(measure(server.url, options.runs))


if __name__ == "__main__":
    main()
