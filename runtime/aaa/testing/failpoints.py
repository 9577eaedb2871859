"""Failpoints: a worker that fails, stands still or dies at a step that a test names.

They are put in by wrapping what an engine is given, its store, its algorithm and its tools, so
that nothing of them is in the product's way when no test asks for them. Each step of a run is a
pair of points, ``<step>.before`` and ``<step>.after``; ``after`` is where the step is done and
nobody has heard of it. docs/failpoints.md lists them.
"""

from __future__ import annotations

import copy
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from aaa.algos import Algorithm, RunState
from aaa.errors import StoreUnavailable
from aaa.events import Event
from aaa.store import port
from aaa.store.port import Committed, EventStore, Operation

A = TypeVar("A", bound=Algorithm)
Action = Callable[[str], None]

#: The steps whose points are reached on the way to the store and back.
STORE_STEPS: Final = ("submit", "own", "claim", "settle", "fold", "append", "release")
STEPS: Final = (*STORE_STEPS, "decide", "effect")

_STEP_OF: Final[dict[type[Any], str]] = {
    port.Create: "submit",
    port.Own: "own",
    port.Disown: "own",
    port.Claim: "claim",
    port.Settle: "settle",
    port.Take: "fold",
    port.Append: "append",
    port.Release: "release",
}


def fail(point: str) -> None:
    """Raise: at a store's step ``StoreUnavailable``, as a lost request or reply, else an error."""
    if point.partition(".")[0] in STORE_STEPS:
        raise StoreUnavailable(f"failpoint {point}")
    raise RuntimeError(f"failpoint {point}")


def delay(seconds: float) -> Action:
    """Block the event loop for so long; the heartbeat's thread goes on."""
    return lambda _point: time.sleep(seconds)


def kill(_point: str) -> None:
    """End this process at once, as the kernel would."""
    os.kill(os.getpid(), signal.SIGKILL)


def freeze(_point: str) -> None:
    """Stop this process, heartbeat included, until somebody sends it ``SIGCONT``."""
    os.kill(os.getpid(), signal.SIGSTOP)


@dataclass
class Failpoints:
    """Counts the points that are reached, and acts at the ``nth`` of those called ``at``.

    ``at=None`` counts all points alike. ``reached`` holds their names in order, ``struck`` the one
    that was acted at, written down before the action. For one event loop.
    """

    action: Action | None = None
    at: str | None = None
    nth: int = 1
    on_strike: Callable[[str], None] = lambda _point: None
    reached: list[str] = field(default_factory=list)
    struck: str | None = None

    def reach(self, point: str) -> None:
        """Be at a point: go on, or whatever the action does."""
        self.reached.append(point)
        if self.action is None or self.struck is not None or self.at not in (None, point):
            return
        count = len(self.reached) if self.at is None else self.reached.count(point)
        if count == self.nth:
            self.struck = point
            self.on_strike(point)
            self.action(point)

    @contextmanager
    def around(self, step: str) -> Iterator[None]:
        """The two points of a step. What the step raises itself passes, past ``after``."""
        self.reach(f"{step}.before")
        yield
        self.reach(f"{step}.after")

    def store(self, store: EventStore) -> EventStore:
        """The store, with points around each commit for the steps that its operations are."""
        return _FailingStore(store, self)

    def algorithm(self, algorithm: A) -> A:
        """The algorithm, with points around each decision."""
        failing = copy.copy(algorithm)

        def decide(event: Event, state: RunState) -> Iterable[Event]:
            with self.around("decide"):
                return list(algorithm.decide(event, state))

        vars(failing)["decide"] = decide
        return failing


class _FailingStore:
    """Everything but commits goes to the store as it is, heartbeats included."""

    def __init__(self, inner: EventStore, points: Failpoints) -> None:
        self._inner, self._points = inner, points

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(
        self, partition: int, operations: Sequence[Operation], *, seen: int = 0
    ) -> Committed:
        with ExitStack() as stack:
            for step in _steps(operations):
                stack.enter_context(self._points.around(step))
            return await self._inner.commit(partition, operations, seen=seen)


def _steps(operations: Sequence[Operation]) -> list[str]:
    """What a batch is for: a decision that offers to run what it opens is a claim as well."""
    found: dict[str, None] = {}
    for operation in operations:
        if type(operation) in _STEP_OF:
            found[_STEP_OF[type(operation)]] = None
        if isinstance(operation, port.Append) and operation.offer is not None:
            found["claim"] = None
    return list(found)
