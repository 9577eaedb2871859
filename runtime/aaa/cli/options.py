"""Options that several commands share, so that they mean the same everywhere."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="AAA_STORE",
        metavar="URL",
        help="Where runs are kept: sqlite:///file.db, postgresql://…, redis://…"
        "  [default: sqlite:///.aaa/aaa.db]",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON for machines: no colours, no progress.")
]
ByOption = Annotated[
    str | None,
    typer.Option(
        "--by", metavar="NAME", help="Who says so.  [default: your user name]", show_default=False
    ),
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
CallArgument = Annotated[str, typer.Argument(metavar="CALL", help="The call's id, such as c3-0.")]
DigestOption = Annotated[
    str | None,
    typer.Option(
        "--digest",
        metavar="DIGEST",
        help="Approve only if the call still has these arguments ('pending' shows it).",
        show_default=False,
    ),
]
ForOption = Annotated[
    str, typer.Option("--for", metavar="DURATION", help="How long it holds until the call runs.")
]
ResultArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[RESULT]", help="With --done: what it gave, as JSON.", show_default=False
    ),
]
DoneOption = Annotated[bool, typer.Option("--done", help="It did happen.")]
NotDoneOption = Annotated[bool, typer.Option("--not-done", help="It did not happen.")]
RetryOption = Annotated[
    bool, typer.Option("--retry", help="Run it again, under the same idempotency key.")
]
HowOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="How you know.")]


def said_by(by: str | None) -> str:
    """The name that is recorded with a decision."""
    if by:
        return by
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "unknown"
