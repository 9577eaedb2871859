"""AAA: durable, leased, fenced tool calls for AI agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("aaa")
    raise AttributeError(f"module 'aaa' has no attribute {name!r}")
