"""Algorithms: what decides a run's next step, and the one that most agents need."""

from aaa.algos.algorithm import Algorithm, ask_model, call_tool, complete, fail, set_timer
from aaa.algos.loop import ToolLoop
from aaa.algos.state import CallState, RunState, Turn

__all__ = [
    "Algorithm",
    "CallState",
    "RunState",
    "ToolLoop",
    "Turn",
    "ask_model",
    "call_tool",
    "complete",
    "fail",
    "set_timer",
]
