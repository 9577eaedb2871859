"""ProviderClient: real models (OpenAI, Anthropic, Google, anything that speaks OpenAI's protocol).

It stands on pydantic-ai's direct requests, behind the extra ``llm``, and is imported only when a
client is used. It guarantees that one ``complete`` is at most one request to the provider: the
provider libraries' own retries are off, a time limit of ours covers the whole answer, and a
stream that ends before the model said that it was finished counts as broken off. Keys never
appear in a ``repr`` or an error. Repeating is up to whoever calls.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from aaa.errors import ConfigError, ModelUnavailable, extra_hint
from aaa.llm.messages import ModelReply, ModelRequest

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters

#: What this module settles by itself.
_OURS = ("max_retries", "timeout", "request_timeout", "first_event_timeout")
MAX_TIMEOUT_S = 3_600.0
#: How the library names the variable that it misses.
_KEY: Final = re.compile(r"[A-Z][A-Z_]*_API_KEY")
#: Where the providers' libraries find a key that was not given; never shown in an error.
_KEY_VARIABLES = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY")


class ProviderClient:
    """An LLMClient over one model of one provider, such as ``ProviderClient("openai:gpt-5.2")``.

    ``model`` is ``provider:name``. With ``base_url``, ``openai:`` means any server that speaks the
    chat-completions protocol, and the key of the environment is not sent there: give ``api_key``.
    Without, the provider's own environment variable is used (``OPENAI_API_KEY``,
    ``ANTHROPIC_API_KEY``, ``GOOGLE_API_KEY``). ``timeout_s`` bounds one whole answer. ``stream``
    asks for the answer bit by bit, each bit of text going to ``on_text``. ``settings`` are
    pydantic-ai's model settings, such as ``{"temperature": 0, "max_tokens": 2000}``.

    Raises ConfigError for what can be seen without asking the provider: the form of the settings
    at once, a missing key or an unknown provider in :meth:`prepare` or the first ``complete``.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        stream: bool = False,
        on_text: Callable[[str], None] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        _check(model, timeout_s, settings or {})
        self.model = model
        self._base_url, self._api_key = base_url, api_key
        self._timeout_s, self._stream, self._on_text = float(timeout_s), stream, on_text
        self._settings = {**(settings or {}), "max_retries": 0, "timeout": self._timeout_s}
        self._prepared: Model[Any] | None = None

    def __repr__(self) -> str:
        return f"<ProviderClient {self.model}>"

    def prepare(self) -> None:
        """Make the provider's client now, so that a missing key fails before the first request."""
        self._made()

    async def complete(self, request: ModelRequest) -> ModelReply:
        """One request to the provider; raises a ModelError, or ConfigError as above."""
        from aaa.llm.wire import to_parameters, to_provider, to_reply

        made = self._made()
        system = made.system
        messages, parameters = to_provider(request.messages, system), to_parameters(request.tools)
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._ask(made, messages, parameters)
        except TimeoutError:
            raise ModelUnavailable(
                f"{self.model} did not finish its answer within {self._timeout_s:g} s"
            ) from None
        except Exception as error:  # noqa: BLE001 - each provider's library has its own
            from aaa.llm.failures import to_model_error

            # Without the cause: a provider's exception holds the request, and that the key.
            raise to_model_error(error, model=self.model, secrets=self._secrets()) from None
        return to_reply(response, system)

    async def aclose(self) -> None:
        """Close the connections; the next request opens new ones."""
        made, self._prepared = self._prepared, None
        if made is not None:
            async with made:  # leaving the last such block closes what it opened
                pass

    async def _ask(
        self, made: Model[Any], messages: list[Any], parameters: ModelRequestParameters
    ) -> ModelResponse:
        from pydantic_ai.direct import model_request, model_request_stream

        asked: dict[str, Any] = {
            "model_settings": self._settings,
            "model_request_parameters": parameters,
            "instrument": False,  # telemetry wraps the port itself
        }
        if self._stream:
            async with model_request_stream(made, messages, **asked) as stream:
                async for event in stream:
                    self._show(event)
                response = stream.get()
            if not _has_ended(response):
                raise ModelUnavailable(f"the answer of {self.model} broke off before its end")
        else:
            response = await model_request(made, messages, **asked)
        if response.finish_reason == "error":
            raise ModelUnavailable(f"{self.model} gave up in the middle of its answer")
        return response

    def _show(self, event: Any) -> None:
        if self._on_text is None:
            return
        # A part begins with its first bit and goes on in deltas.
        source = getattr(event, "delta", None) or getattr(event, "part", None)
        kind = getattr(source, "part_delta_kind", None) or getattr(source, "part_kind", None)
        if kind == "text" and event.event_kind in ("part_start", "part_delta"):
            bit = getattr(source, "content_delta", None) or getattr(source, "content", "")
            if bit:
                self._on_text(bit)

    def _made(self) -> Model[Any]:
        if self._prepared is None:
            self._prepared = _make(self.model, base_url=self._base_url, api_key=self._api_key)
        return self._prepared

    def _secrets(self) -> tuple[str, ...]:
        used = getattr(getattr(self._prepared, "client", None), "api_key", None)
        password = urlsplit(self._base_url or "").password
        named = (os.environ.get(name) for name in _KEY_VARIABLES)
        return tuple(secret for secret in (self._api_key, used, password, *named) if secret)


def _has_ended(response: ModelResponse) -> bool:
    """Whether the provider itself said that the stream was over.

    The library takes silence for a normal end; only its details hold what really came.
    """
    said = (response.provider_details or {}).get("finish_reason")
    return said is not None or response.finish_reason == "content_filter"


def _check(model: object, timeout_s: object, settings: Mapping[str, Any]) -> None:
    if not isinstance(model, str) or not all(model.partition(":")):
        raise ConfigError(
            f"ProviderClient: model must be 'provider:name', such as 'openai:gpt-5.2', not {model!r}"
        )
    number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
    if not number or not 0 < timeout_s <= MAX_TIMEOUT_S:  # type: ignore[operator]
        raise ConfigError(
            f"ProviderClient: timeout_s must be more than 0 and at most {MAX_TIMEOUT_S:g} seconds, "
            f"not {timeout_s!r}"
        )
    if taken := [name for name in _OURS if name in settings]:
        raise ConfigError(
            f"ProviderClient: settings cannot hold {taken[0]!r}: retries belong to the handler, "
            "and the time limit is timeout_s"
        )
    if importlib.util.find_spec("pydantic_ai") is None:
        raise ConfigError(f"ProviderClient needs {extra_hint('llm')}")


def _make(model: str, *, base_url: str | None, api_key: str | None) -> Model[Any]:
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model
    from pydantic_ai.providers import Provider, infer_provider_class

    given = {"base_url": base_url, "api_key": api_key}
    options = {name: value for name, value in given.items() if value is not None}

    def provider(kind: str) -> Provider[Any]:
        if kind == "openai-chat" and base_url is not None:
            from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

            return OpenAICompatibleProvider("openai-compatible", base_url=base_url, api_key=api_key)
        made: Provider[Any] = infer_provider_class(kind)(**options)
        return made

    kind, _, name = model.partition(":")
    # Servers that imitate OpenAI speak its older protocol; few know the newer one.
    chosen = f"openai-chat:{name}" if kind == "openai" and base_url is not None else model
    try:
        return infer_model(chosen, provider_factory=provider)
    except ImportError as error:
        raise ConfigError(f"ProviderClient({model!r}) needs a library: {error}") from None
    except TypeError:
        raise ConfigError(
            f"ProviderClient({model!r}): this provider does not take {' and '.join(options)}"
        ) from None
    except (UserError, ValueError) as error:
        if (wanted := _KEY.search(str(error))) is not None:  # the rest is the library's own advice
            raise ConfigError(
                f"ProviderClient({model!r}) has no key: set {wanted[0]}, or give api_key="
            ) from None
        raise ConfigError(f"ProviderClient({model!r}): {error}") from None
