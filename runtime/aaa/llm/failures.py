"""Turns what a provider's library raises into the tree's ModelErrors, in this one place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic_ai import exceptions

from aaa.errors import ModelError, ModelRateLimited, ModelRefused, ModelUnavailable

#: A provider's own words are quoted up to this length.
MAX_QUOTED_CHARS = 300


def to_model_error(error: Exception, *, model: str, secrets: Iterable[str]) -> ModelError:
    """The ModelError for ``error``, in one sentence and without any of ``secrets``."""
    if isinstance(error, ModelError):
        return error
    status = getattr(error, "status_code", None)
    said = _quote(error, secrets)
    message = f"{model}: HTTP {status}: {said}" if status is not None else f"{model}: {said}"
    if _is_rate_limit(error, status):
        wait_s = getattr(error, "retry_after", None)
        return ModelRateLimited(message, status=status, retry_after_s=wait_s)
    if _is_refusal(error, status):
        return ModelRefused(message, status=status)
    return ModelUnavailable(message, status=status)


def _is_rate_limit(error: Exception, status: int | None) -> bool:
    if isinstance(error, exceptions.ModelQuotaExceededError):  # waiting brings no money
        return False
    return isinstance(error, exceptions.ModelRateLimitError) or status == 429


def _is_refusal(error: Exception, status: int | None) -> bool:
    refusals = (
        exceptions.ModelRequestRejectedError,
        exceptions.ModelQuotaExceededError,
        exceptions.ContentFilterError,
        exceptions.UserError,
    )
    if isinstance(error, refusals):
        return True
    if status is not None:
        return 400 <= status < 500 and status != 408
    # The library could not make a request of this conversation: it would fail again.
    return isinstance(error, (TypeError, LookupError, AttributeError, AssertionError))


def _quote(error: Exception, secrets: Iterable[str]) -> str:
    body: Any = getattr(error, "body", None)
    if isinstance(body, dict):  # {"message": …} or {"error": {"message": …}}
        inner = body.get("error", body)
        body = inner.get("message") if isinstance(inner, dict) else inner
    said = body if isinstance(body, str) and body else str(error) or type(error).__name__
    for secret in secrets:
        said = said.replace(secret, "***")
    said = " ".join(said.split())
    return said if len(said) <= MAX_QUOTED_CHARS else said[:MAX_QUOTED_CHARS] + "…"
