"""Where a command works: context, namespace, and which operator; said once for all commands."""

from __future__ import annotations

import shlex
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Options that may stand anywhere on the line, with all of their names.
ANYWHERE: Final = (
    "-n",
    "--namespace",
    "--context",
    "--kubeconfig",
    "--operator",
)


@dataclass(frozen=True, slots=True)
class Where:
    """What was said on the command line; ``None`` leaves it to the kubeconfig."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: Path | None = None
    operator: str | None = None

    @property
    def tail(self) -> str:
        """What a command that is shown must end with to work in the same place."""
        said = (
            ("-n", self.namespace),
            ("--context", self.context),
            ("--kubeconfig", None if self.kubeconfig is None else str(self.kubeconfig)),
            ("--operator", self.operator),
        )
        return "".join(f" {option} {shlex.quote(text)}" for option, text in said if text)


_WHERE: ContextVar[Where] = ContextVar("aaa_kubectl_where", default=Where())  # noqa: B039 - frozen


def said(where: Where) -> None:
    """Keep what the command line says."""
    _WHERE.set(where)


def here() -> Where:
    """Where this command works."""
    return _WHERE.get()


def hoisted(arguments: list[str]) -> list[str]:
    """The line with the options of :data:`ANYWHERE` at its front, where the parser takes them."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    front: list[str] = []
    rest: list[str] = []
    index = 0
    while index < end:
        word = arguments[index]
        if word in ANYWHERE and index + 1 < end:
            front += arguments[index : index + 2]
            index += 2
            continue
        whole = word.startswith(tuple(f"{name}=" for name in ANYWHERE if name.startswith("--")))
        glued = len(word) > 2 and word.startswith("-n") and not word.startswith("-n=")
        (front if whole or glued or word.startswith("-n=") else rest).append(word)
        index += 1
    return front + rest + arguments[end:]
