"""LLMHandler: asks a model, leased and bounded like a tool call (G24).

A client sends one request per call. Repeating is decided here alone: ``retries`` times inside one
leased attempt, for errors that a repeat can mend, with exponential back-off or the provider's own
advice. A worker that dies is another attempt, up to ``max_attempts``; an answer is recorded once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from aaa.errors import ConfigError, ModelRateLimited, RetryError
from aaa.llm.client import LLMClient
from aaa.llm.messages import ModelReply, ModelRequest


class _Engine(Protocol):
    def use_model(self, handler: LLMHandler) -> None: ...


class LLMHandler:
    """A model client, with how often it may be asked.

    ``retries`` bounds the repeats of one attempt after a :class:`aaa.errors.RetryError`;
    ``backoff_s`` doubles from one to the next, up to ``max_backoff_s``. ``lease_ttl_s`` and
    ``max_attempts`` are as in GuardConfig.
    """

    def __init__(
        self,
        client: LLMClient,
        *,
        retries: int = 2,
        backoff_s: float = 0.5,
        max_backoff_s: float = 30.0,
        lease_ttl_s: float = 15.0,
        max_attempts: int = 3,
    ) -> None:
        if not isinstance(client, LLMClient):
            raise ConfigError(f"LLMHandler needs a client with complete(), not {client!r:.80}")
        if not 0 <= retries <= 100:
            raise ConfigError(f"LLMHandler: retries must be between 0 and 100, not {retries}")
        if not 1 <= max_attempts <= 1_000:
            raise ConfigError(
                f"LLMHandler: max_attempts must be between 1 and 1000, not {max_attempts}"
            )
        self.client = client
        self.retries = retries
        self.backoff_s = backoff_s
        self.max_backoff_s = max_backoff_s
        self.lease_ttl_s = lease_ttl_s
        self.max_attempts = max_attempts

    def attach(self, engine: _Engine) -> None:
        """Let the engine ask this model."""
        engine.use_model(self)

    def prepare(self) -> None:
        """Make what the client needs, if it can say so early. Raises :class:`ConfigError`."""
        prepare = getattr(self.client, "prepare", None)
        if prepare is not None:
            prepare()

    async def ask(
        self, request: ModelRequest, *, sleep: Callable[[float], Awaitable[None]]
    ) -> ModelReply:
        """The model's answer; raises what the client raised last."""
        for tried in range(self.retries):
            try:
                return await self.client.complete(request)
            except RetryError as error:
                await sleep(self._wait_s(tried, error))
        return await self.client.complete(request)

    def _wait_s(self, tried: int, error: Exception) -> float:
        advised = error.retry_after_s if isinstance(error, ModelRateLimited) else None
        wait_s = self.backoff_s * 2**tried if advised is None else advised
        return min(self.max_backoff_s, max(0.0, wait_s))
