"""The engine, and what it returns."""

from aaa.runtime.engine import Engine
from aaa.runtime.outcome import Failure, Outcome, Run

__all__ = ["Engine", "Failure", "Outcome", "Run"]
