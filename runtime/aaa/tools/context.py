"""ToolContext: what a running tool may know about its own call.

A tool asks for it by annotating one parameter as ``ToolContext``. It is injected, never part of
the schema that the model sees, and cannot be built from a model's arguments (G13).

It guarantees that ``idempotency_key`` is the same for every attempt and every worker of one call,
that ``attempt`` rises by one with each, and that ``fence`` never goes back under one key. It does not stop a tool: ``cancel_requested`` only
says that somebody would like it to end, which a tool in a thread has to look at itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aaa.errors import ConfigError

ProgressSink = Callable[[str, float | None], None]

#: Progress is for people watching; a longer message is cut.
MAX_PROGRESS_CHARS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """One attempt of one tool call, as the tool sees it.

    ``deadline`` is a moment in seconds on ``clock``'s scale, not a time of day, and comes with
    it; :meth:`remaining_s` is the usual way to use them. Build one yourself to test a tool alone.
    """

    run_id: str
    #: ``c<seq of the turn>-<index>``: ours, unique in the run, never the provider's.
    call_id: str
    #: Pass it to the system that you call: it is the same for every attempt of this call.
    idempotency_key: str
    #: 1 for the first execution; rises by one each time the call is run again.
    attempt: int = 1
    #: Executions before this call under its key: of the calls that it is a retry of.
    attempts_before: int = 0
    deadline: float | None = None
    clock: Callable[[], float] | None = field(default=None, repr=False)
    on_progress: ProgressSink | None = field(default=None, repr=False)
    cancellation: threading.Event = field(default_factory=threading.Event, repr=False)

    def __post_init__(self) -> None:
        if self.deadline is not None and self.clock is None:
            raise ConfigError("ToolContext: a deadline needs the clock that it is read from")

    @property
    def fence(self) -> int:
        """For targets that apply a write only with the highest fence seen under a key.

        The attempt's number; in a retry that a person asked for, it goes on from the call before.
        """
        return self.attempts_before + self.attempt

    @property
    def cancel_requested(self) -> bool:
        """Whether the tool should stop: a tool in a thread polls this, since nothing can stop it."""
        return self.cancellation.is_set()

    def remaining_s(self) -> float | None:
        """Seconds until the call's time limit, never below 0; ``None`` without a limit."""
        if self.deadline is None or self.clock is None:
            return None
        return max(0.0, self.deadline - self.clock())

    def progress(self, message: str, *, fraction: float | None = None) -> None:
        """Tell whoever watches how far the tool is; ``fraction`` runs from 0 to 1.

        May be called from a thread. Progress is shown, never recorded as a result, and not kept
        when the tool is run again.
        """
        if self.on_progress is not None:
            share = None if fraction is None else min(1.0, max(0.0, fraction))
            self.on_progress(message[:MAX_PROGRESS_CHARS], share)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        """Refuse to be part of a schema, at any depth: a model could then set its own key."""
        raise TypeError("a ToolContext is injected and cannot be part of a tool's arguments")
