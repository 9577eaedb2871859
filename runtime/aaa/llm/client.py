"""LLMClient: the port through which a model is asked."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from aaa.llm.messages import ModelReply, ModelRequest


@runtime_checkable
class LLMClient(Protocol):
    """Asks a model once.

    One call is at most one request to a provider: whoever calls decides about repeating it (G24).
    Raises a :class:`aaa.errors.ModelError`. A cancelled call may have been answered and billed;
    nothing of it is kept.
    """

    async def complete(self, request: ModelRequest) -> ModelReply:
        """The model's answer to the conversation."""
        ...
