"""A worker process that claims every call of a run's partition and holds on: ``holder URL RUN``."""

from __future__ import annotations

import asyncio
import sys

from aaa.ids import partition_of
from aaa.store import open_store
from aaa.store.port import Claim, Claims, Offer
from aaa.testing.scene import APP, REFUND, terms


async def main(url: str, run_id: str) -> None:
    store = open_store(url)
    await store.open()
    offer = Offer(worker="holder", nonce="n", limit=9, queues={REFUND: terms(ttl_ms=50)})
    partition = partition_of(run_id, store.partitions)
    (claims,) = (await store.commit(partition, [Claim(app=APP, offer=offer)])).verdicts
    assert isinstance(claims, Claims)
    print("held", len(claims.claimed), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
