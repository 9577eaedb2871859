"""ToolRegistry: the tools that one application offers, by name.

It is fixed when it is built, so that what a run was pinned to (its tools' digests, L11) cannot
change under it. It knows nothing of delivery: that is the handler's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from aaa.errors import ConfigError
from aaa.tools.decorator import tool
from aaa.tools.definition import Tool


class ToolRegistry:
    """Tools in the order given; plain functions are made tools; a name stands only once."""

    def __init__(self, tools: Iterable[Tool[..., Any] | Callable[..., Any]] = ()) -> None:
        self._tools: dict[str, Tool[..., Any]] = {}
        for given in tools:
            made = given if isinstance(given, Tool) else tool(given)
            if made.name in self._tools:
                raise ConfigError(
                    f"two tools are called {made.name!r}; give one of them another name with "
                    "@tool(name=...)"
                )
            self._tools[made.name] = made

    def get(self, name: str) -> Tool[..., Any] | None:
        """The tool of that name, or ``None``: a model may ask for one that does not exist."""
        return self._tools.get(name)

    def __iter__(self) -> Iterator[Tool[..., Any]]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def specs(self) -> list[dict[str, Any]]:
        """What a model is told: ``name``, ``description`` and ``schema`` of each tool."""
        return [
            {"name": each.name, "description": each.description, "schema": dict(each.schema)}
            for each in self
        ]

    def digests(self) -> dict[str, str]:
        """Each tool's schema digest by name: what a run is pinned to."""
        return {each.name: each.schema_digest for each in self}

    @property
    def digest(self) -> str:
        """One digest over all of them; their order does not matter."""
        lines = "".join(f"{name}={digest}\n" for name, digest in sorted(self.digests().items()))
        return hashlib.blake2b(lines.encode(), digest_size=16).hexdigest()
