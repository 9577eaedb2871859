"""A key is looked at once however often it was asked for, never twice at a time, and again."""

from __future__ import annotations

import asyncio

from aaa_operator.queue import Again, KeyedQueue

BOUND_S = 5


class _Looks:
    """Looks that wait until they are let go, and answer as they are told."""

    def __init__(self, *answers: Again | Exception) -> None:
        self.answers = list(answers)
        self.began: list[str] = []
        self.going = asyncio.Semaphore(0)
        self.changed = asyncio.Event()
        self.at_a_time = self.most = 0

    async def __call__(self, key: str) -> Again:
        self.began.append(key)
        self.at_a_time += 1
        self.most = max(self.most, self.at_a_time)
        self.changed.set()
        try:
            await self.going.acquire()
        finally:
            self.at_a_time -= 1
        answer = self.answers.pop(0) if self.answers else Again()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def until(self, count: int) -> None:
        async with asyncio.timeout(BOUND_S):
            while len(self.began) < count:
                self.changed.clear()
                await self.changed.wait()


def _queue(looks: _Looks) -> KeyedQueue:
    return KeyedQueue(looks, retry_s=0.001, retry_max_s=0.004, at_once=2)


async def test_a_key_asked_for_during_its_look_is_looked_at_once_more() -> None:
    looks = _Looks()
    queue = _queue(looks)
    for _ in range(3):
        queue.ask("a")
    await looks.until(1)
    for _ in range(3):
        queue.ask("a")
    looks.going.release()
    await looks.until(2)
    looks.going.release()
    await asyncio.sleep(0)
    assert looks.began == ["a", "a"]
    assert looks.most == 1
    await queue.close()


async def test_keys_run_side_by_side_up_to_the_limit() -> None:
    looks = _Looks()
    queue = _queue(looks)
    for key in "abc":
        queue.ask(key)
    await looks.until(2)
    assert looks.most == 2
    looks.going.release()
    await looks.until(3)
    assert looks.most == 2
    await queue.close()


async def test_a_failure_or_a_defect_brings_the_key_back_and_success_ends_the_back_off() -> None:
    looks = _Looks(Again(failed=True), RuntimeError("a defect"), Again())
    queue = _queue(looks)
    queue.ask("a")
    for count in (1, 2, 3):
        await looks.until(count)
        assert queue.failures("a") == count - 1
        looks.going.release()
    async with asyncio.timeout(BOUND_S):
        while queue.failures("a"):
            await asyncio.sleep(0)
    await queue.close()


async def test_a_key_comes_back_when_its_look_says_so() -> None:
    looks = _Looks(Again(in_s=0.001))
    queue = _queue(looks)
    queue.ask("a")
    looks.going.release()
    await looks.until(2)
    await queue.close()


async def test_nothing_is_looked_at_after_closing() -> None:
    looks = _Looks()
    queue = _queue(looks)
    queue.ask("a")
    await looks.until(1)
    await queue.close()
    queue.ask("b")
    queue.ask_in("c", 0)
    await asyncio.sleep(0)
    assert looks.began == ["a"]
    assert looks.at_a_time == 0
