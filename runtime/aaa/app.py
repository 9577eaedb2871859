"""App: what an image, or a folder on a laptop, holds: an algorithm and the handlers that it needs.

A manifest names one as ``module:attribute``. The worker in a pod and ``aaa run`` load the same.
"""

from __future__ import annotations

import copy
import importlib
import sys
import traceback
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Self

from aaa.algos import Algorithm, ToolLoop
from aaa.errors import AAAError, AppError
from aaa.llm import LLMHandler
from aaa.policy import ToolPolicyRules
from aaa.runtime import Engine
from aaa.runtime.submission import app_name
from aaa.store.port import DEFAULT_APP
from aaa.tools import ToolHandler


class App:
    """An algorithm with its handlers.

    ``handlers`` are :class:`LLMHandler` and :class:`ToolHandler` objects, one of a kind at most.
    Raises :class:`AppError` for anything else, and where a :class:`ToolLoop` would wait for ever
    for a handler that is not there.
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
        self._check_handlers()

    def _take(self, handler: object) -> None:
        if isinstance(handler, ToolHandler) and self.tools is None:
            self.tools = handler
        elif isinstance(handler, LLMHandler) and self.model is None:
            self.model = handler
        else:
            raise AppError(
                f"App: handlers may hold one ToolHandler and one LLMHandler, not {handler!r:.80}"
            )

    def _check_handlers(self) -> None:
        if isinstance(self.algorithm, ToolLoop):
            tools = None if self.tools is None else self.tools.registry
            missing = self.algorithm.missing(tools=tools, model=self.model is not None)
            if missing is not None:
                raise AppError(f"App: {missing}; give it to App(handlers=[…])")

    def full_name(self, scope: str = DEFAULT_APP) -> str:
        """What runs of this app are pinned to, and :meth:`aaa.client.Client.submit` takes.

        Workers of this scope (``aaa worker --scope``) with the same algorithm, version and tools
        serve them.
        """
        return app_name(scope, self.algorithm, None if self.tools is None else self.tools.registry)

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
        if f"{module_name}.".startswith(f"{error.name}."):
            where = f" (looked in {folder} first)" if folder is not None else ""
            raise AppError(f"app {name!r}: there is no module {error.name!r}{where}") from error
        raise AppError(
            f"app {name!r}: importing {module_name}: there is no module {error.name!r}"
            f"{_place(error, folder)}"
        ) from error
    except AAAError as error:
        raise AppError(f"app {name!r}: {error}{_place(error, folder)}") from error
    except Exception as error:
        said = f"{type(error).__name__}: {_said(error)}{_place(error, folder)}"
        raise AppError(f"app {name!r}: importing {module_name} raised {said}") from error
    module = value
    for part in attribute.split("."):
        if not hasattr(value, part):
            apps = [each for each, held in vars(module).items() if isinstance(held, App)]
            close = get_close_matches(attribute, apps, n=1)
            hint = f"; did you mean '{module_name}:{close[0]}'?" if close else ""
            raise AppError(f"app {name!r}: module {module_name} has no {attribute!r}{hint}")
        value = getattr(value, part)
    if not isinstance(value, App):
        raise AppError(f"app {name!r} is {type(value).__name__}, not an aaa.app.App")
    return value


def _said(error: Exception) -> str:
    return error.msg if isinstance(error, SyntaxError) else str(error)


def _place(error: Exception, folder: Path | None) -> str:
    """`` (agent.py:12)``: where an import went wrong, in the app's own folder if it can be told."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [(Path(frame.filename), frame.lineno or 0) for frame in frames]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((Path(error.filename), error.lineno or 0))
    ours = (Path(__file__).parent, Path(importlib.__file__).parent)
    theirs = [
        (file, line)
        for file, line in places
        if file.is_absolute() and not any(file.is_relative_to(each) for each in ours)
    ]
    own = [place for place in theirs if folder is not None and place[0].is_relative_to(folder)]
    if own and folder is not None:
        return f" ({own[-1][0].relative_to(folder)}:{own[-1][1]})"
    return f" ({theirs[-1][0]}:{theirs[-1][1]})" if theirs else ""
