"""How a case is declared: a coroutine, a sentence, and the guarantees that it shows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aaa.testing.harness import Harness
from aaa.testing.scene import Scene

Body = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One behaviour of the port. ``guarantees`` are ids of docs/guarantees.md."""

    name: str
    sentence: str
    guarantees: tuple[str, ...]
    body: Body

    async def run(self, harness: Harness) -> None:
        """Hold the harness's store to the behaviour. Raises ``AssertionError``."""
        scene = Scene(harness)
        try:
            await self.body(scene)
        finally:
            await scene.close()


CASES: list[Case] = []


def case(*guarantees: str) -> Callable[[Body], Body]:
    """Register a coroutine as a case; its docstring is the sentence."""

    def register(body: Body) -> Body:
        name = getattr(body, "__name__", "case")
        sentence = (body.__doc__ or name).strip()
        CASES.append(Case(name=name, sentence=sentence, guarantees=guarantees, body=body))
        return body

    return register
