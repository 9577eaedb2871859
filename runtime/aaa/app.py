"""App: what an image, or a folder on a laptop, holds: an algorithm and the handlers that it needs.

A manifest names one as ``module:attribute``. The worker in a pod and ``aaa run`` load the same.
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from aaa.algos import Algorithm
from aaa.errors import AAAError, AppError
from aaa.llm import LLMHandler
from aaa.policy import ToolPolicyRules
from aaa.runtime import Engine
from aaa.tools import ToolHandler


class App:
    """An algorithm with its handlers.

    ``handlers`` are :class:`LLMHandler` and :class:`ToolHandler` objects, one of a kind at most.
    Raises :class:`AppError` for anything else.
    """

    def __init__(
        self, *, algorithm: Algorithm, handlers: Iterable[LLMHandler | ToolHandler] = ()
    ) -> None:
        self.algorithm = algorithm
        self.tools: ToolHandler | None = None
        self.model: LLMHandler | None = None
        if not callable(getattr(algorithm, "decide", None)):
            raise AppError(f"App: algorithm must have a decide() method, not {algorithm!r:.80}")
        for handler in handlers:
            self._take(handler)

    def _take(self, handler: object) -> None:
        if isinstance(handler, ToolHandler) and self.tools is None:
            self.tools = handler
        elif isinstance(handler, LLMHandler) and self.model is None:
            self.model = handler
        else:
            raise AppError(
                f"App: handlers may hold one ToolHandler and one LLMHandler, not {handler!r:.80}"
            )

    def own(self) -> Self:
        """The same app for one more engine: policies attached there leave this one alone."""
        other = copy.copy(self)
        other.tools = copy.copy(self.tools)
        return other

    def attach(self, engine: Engine, *, policies: Sequence[ToolPolicyRules] = ()) -> str:
        """Give the engine everything; returns the full name of the app that it now serves.

        ``policies`` hold beside those that the handler was made with.
        Raises :class:`ConfigError` or :class:`PolicyConflict` naming what does not fit (G17).
        """
        if self.model is not None:
            self.model.attach(engine)
        if self.tools is not None:
            if policies:
                self.tools.use_policies([*self.tools.policies, *policies])
            self.tools.attach(engine)
        return engine.serve(self.algorithm)


def load_app(name: str, *, folder: Path | None = None) -> App:
    """Import ``module:attribute``; ``folder`` is looked in first. Raises :class:`AppError`."""
    module_name, colon, attribute = name.partition(":")
    if not (colon and module_name and attribute):
        raise AppError(f"app {name!r} must be written module:attribute, such as agent:app")
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        value = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        where = f" (looked in {folder} first)" if folder is not None else ""
        raise AppError(f"app {name!r}: there is no module {error.name!r}{where}") from error
    except AAAError as error:
        raise AppError(f"app {name!r}: {error}") from error
    except Exception as error:
        kind = type(error).__name__
        raise AppError(f"app {name!r}: importing {module_name} raised {kind}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise AppError(f"app {name!r}: module {module_name} has no {attribute!r}")
        value = getattr(value, part)
    if not isinstance(value, App):
        raise AppError(f"app {name!r} is {type(value).__name__}, not an aaa.app.App")
    return value
