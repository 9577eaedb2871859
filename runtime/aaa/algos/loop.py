"""ToolLoop: ask the model, run the tools that it calls, give it the results, until it answers.

Unknown tools, bad arguments, failures, unknown outcomes and rejections all come back to the model
as messages. The run ends with the model's first answer that calls no tool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from aaa.algos.algorithm import ask_model, call_tool, complete, fail
from aaa.algos.state import RunState, Turn
from aaa.errors import ConfigError
from aaa.events import Event
from aaa.tools.registry import ToolRegistry

MAX_TURNS = 10_000


class ToolLoop:
    """The agent loop of most agents.

    ``system`` is the system prompt. ``max_turns`` bounds the model requests of a run; beyond it
    the run fails as ``TurnLimit``. ``parallel=False`` runs the calls of one turn one after the
    other. ``on_unknown="wait"`` parks the conversation until a person has resolved an unknown
    outcome; ``"tell"`` hands it to the model at once.
    """

    name = "aaa.tool_loop"
    version = "1"

    def __init__(
        self,
        registry: ToolRegistry,
        *,
        system: str | None = None,
        max_turns: int = 50,
        parallel: bool = True,
        on_unknown: Literal["tell", "wait"] = "tell",
    ) -> None:
        if isinstance(max_turns, bool) or not isinstance(max_turns, int):
            raise ConfigError(f"ToolLoop: max_turns must be a whole number, not {max_turns!r}")
        if not 1 <= max_turns <= MAX_TURNS:
            raise ConfigError(
                f"ToolLoop: max_turns must be between 1 and {MAX_TURNS}, not {max_turns}"
            )
        if on_unknown not in ("tell", "wait"):
            raise ConfigError(f"ToolLoop: on_unknown must be 'tell' or 'wait', not {on_unknown!r}")
        self.registry = registry
        self.system = system
        self.max_turns = max_turns
        self.parallel = parallel
        self.on_unknown = on_unknown

    def missing(self, *, tools: ToolRegistry | None, model: bool) -> str | None:
        """What a process with these handlers lacks to drive a run of this loop, in a sentence."""
        if not model:
            return "ToolLoop asks a model, but there is no LLMHandler"
        here = {tool.name for tool in tools or ()}
        absent = sorted(tool.name for tool in self.registry if tool.name not in here)
        if absent:
            has = "no ToolHandler" if tools is None else "a ToolHandler without it"
            return f"ToolLoop offers the tool {absent[0]}, but there is {has}"
        return None

    def decide(self, event: Event, state: RunState) -> Iterable[Event]:
        """The next requests, or the end; nothing while something is still open."""
        turn = state.turn
        if turn is None:
            return [ask_model(state.root or event, turn=1)]
        if turn.failed is not None:
            error, message = turn.failed.data["error"], turn.failed.data["message"]
            return [fail(turn.failed, error=error, message=message)]
        if turn.reply is None or turn.completed is None:
            return []
        if self.on_unknown == "wait" and state.unknown:
            return []
        if len(turn.calls) < len(turn.reply.tool_calls):
            return list(self._requests(turn, turn.completed))
        if state.open_calls:
            return []
        return [self._after(turn, turn.completed, state)]

    def _requests(self, turn: Turn, completed: Event) -> Iterator[Event]:
        if turn.reply is None or (not self.parallel and turn.open_calls):
            return
        wanted = turn.reply.tool_calls
        last = len(wanted) if self.parallel else len(turn.calls) + 1
        for index in range(len(turn.calls), last):
            call = wanted[index]
            yield call_tool(
                completed,
                name=call.name,
                arguments=dict(call.arguments),
                call_id=f"c{completed.seq}-{index}",
                turn=turn.number,
                provider_call_id=call.id,
                arguments_error=call.arguments_error,
            )

    def _after(self, turn: Turn, completed: Event, state: RunState) -> Event:
        """All calls of the turn have settled: ask again, or end."""
        # The conversation holds at least the reply; anything beyond is news for the model.
        news = len(state.messages) > state.asked_through + 1
        if turn.reply is not None and not news:
            return complete(completed, {"text": turn.reply.content})
        if turn.number >= self.max_turns:
            return fail(
                completed,
                error="TurnLimit",
                message=f"The model had not finished after {self.max_turns} turns.",
            )
        return ask_model(completed, turn=turn.number + 1)
