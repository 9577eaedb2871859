"""What a tool's ``verify=`` function answers about an effect whose outcome was lost.

It is asked before an outcome is handed to a person or the model as unknown (G4). ``NotDone``
means "not seen yet": the lost attempt may still act, so it never permits another one by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Done:
    """The effect has happened; ``result`` is what the tool would have returned."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class NotDone:
    """The effect has not been seen in the target system."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The target system cannot say; ``reason`` is shown to the person who decides."""

    reason: str = ""


Verdict = Done | NotDone | Unknown
