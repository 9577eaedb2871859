"""Tool: a function together with what the model sees of it and how it may be delivered.

A Tool is immutable, and still callable exactly as the function that it was made of. It checks
arguments, makes the business key and calls the function; whether and how often it is called is
decided by the guard alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar

from aaa.errors import NotExecuted, ToolError
from aaa.policy.keys import MAX_KEY_CHARS
from aaa.tools.context import ToolContext
from aaa.tools.signature import Signature, schema_digest
from aaa.tools.verify import Done, NotDone, Unknown, Verdict

if TYPE_CHECKING:
    from aaa.tools.schema import Arguments

P = ParamSpec("P")
R = TypeVar("R")


class Tool(Generic[P, R]):
    """Made by :func:`aaa.tools.tool`; compare two of them by ``name`` and ``schema_digest``."""

    __name__: str
    function: Callable[P, R]
    name: str
    description: str
    #: JSON Schema of the arguments, as the model gets it.
    schema: Mapping[str, Any]
    schema_digest: str
    #: GuardConfig fields that this tool changes, ``delivery`` among them.
    overrides: Mapping[str, Any]
    requires_approval: bool
    timeout_s: float | None
    verify: Callable[..., Awaitable[Verdict]] | None
    idempotency_key: Callable[[dict[str, Any]], str] | None
    isolation: str | None
    on_repeat: str
    #: ``False``: runs in a thread, which nobody can stop from outside.
    is_async: bool
    _arguments: Arguments
    _signature: Signature
    _verify_signature: Signature | None

    def __init__(
        self,
        *,
        function: Callable[P, R],
        name: str,
        signature: Signature,
        verify_signature: Signature | None,
        **settings: Any,
    ) -> None:
        arguments = signature.arguments(name)
        # Through __dict__, since the attributes of a finished tool cannot be set.
        self.__dict__.update(
            settings,
            function=function,
            name=name,
            schema=arguments.schema,
            schema_digest=schema_digest(arguments.schema),
            is_async=inspect.iscoroutinefunction(function),
            _arguments=arguments,
            _signature=signature,
            _verify_signature=verify_signature,
        )
        # Reads like the function, for documentation tools and tracebacks.
        for attribute in functools.WRAPPER_ASSIGNMENTS:
            self.__dict__[attribute] = getattr(function, attribute, None)
        self.__dict__["__wrapped__"] = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function itself, unguarded: for tests and for use from other code."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"tool {self.name!r} cannot be changed: decorate a function anew")

    __delattr__ = __setattr__  # type: ignore[assignment]

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Checked Python values, defaults included.

        Raises InvalidArguments with one sentence for the model that lists each bad field.
        """
        return self._arguments.validate(arguments)

    def key_for(self, arguments: Mapping[str, Any], *, default: str) -> str:
        """The idempotency key of a call with these validated arguments; pure, computed once.

        Raises NotExecuted if the tool's own function gives none: nothing has begun then.
        """
        if self.idempotency_key is None:
            return default
        try:
            key: object = self.idempotency_key(dict(arguments))
        except Exception as error:
            raise NotExecuted(
                f"{self.name} was not run: its idempotency_key function raised "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY_CHARS or not key.isprintable():
            raise NotExecuted(
                f"{self.name} was not run: its idempotency_key function must return 1 to "
                f"{MAX_KEY_CHARS} printable characters, not {key!r:.80}"
            )
        return key

    async def call(
        self,
        arguments: Mapping[str, Any],
        ctx: ToolContext,
        *,
        executor: Executor | None = None,
    ) -> Any:
        """Run the function once with validated arguments; what it raises comes through.

        A function that is not async runs in ``executor`` (the loop's own if there is none) with
        the caller's context variables. Cancelling this then ends the waiting, not the thread.
        """
        bound = dict(arguments)
        if self._signature.context_parameter is not None:
            bound[self._signature.context_parameter] = ctx
        try:
            if self.is_async:
                result: Any = self.function(**bound)  # type: ignore[call-arg]
            else:
                work = functools.partial(
                    contextvars.copy_context().run, _in_thread, self.function, bound
                )
                result = await asyncio.get_running_loop().run_in_executor(executor, work)
            return await result if inspect.isawaitable(result) else result
        except SystemExit as error:  # would end the worker, and every other call in it
            raise ToolError(f"{self.name} tried to exit the process ({error.code})") from error

    async def ask(self, arguments: Mapping[str, Any], ctx: ToolContext) -> Verdict:
        """Whether the effect of a lost attempt is there, by the tool's ``verify``.

        ``Unknown`` without one and for an answer that is no verdict; what it raises comes
        through, and is as good as ``Unknown``.
        """
        asked = self._verify_signature
        if self.verify is None or asked is None:
            return Unknown("the tool has no verify function")
        bound = {name: arguments[name] for name in asked.names}
        if asked.context_parameter is not None:
            bound[asked.context_parameter] = ctx
        verdict: object = await self.verify(**bound)
        if isinstance(verdict, (Done, NotDone, Unknown)):
            return verdict
        return Unknown(f"verify returned {type(verdict).__name__}, not Done, NotDone or Unknown")


def _in_thread(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return function(**arguments)
    except StopIteration as error:  # a future cannot carry it: the caller would wait for ever
        raise RuntimeError("the tool raised StopIteration") from error
