"""``policy explain``: what is in force for a run's tools, and which layer said so."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from aaa.cli import loop
from aaa.cli.options import JsonOption
from aaa_kubectl.looking import RunName, reading_run

_NOT_KNOWN: Final = "no worker of the run lives, so what its tools' own code says is not known; these are the policies"


def explain(
    run: RunName,
    tool: Annotated[
        list[str] | None,
        typer.Option("--tool", metavar="NAME", help="Only this tool.", show_default=False),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Show what is in force for a run's tools, and where each value comes from.

    The policies that bind the run, merged with what the tools' own code says, as a worker that lives
    tells it.

    \b
    Example:
      kubectl aaa policy explain refund-a-100 --tool refund -n shop
    """
    return loop.run(_explain(run, tool or [], json))


async def _explain(run: str, tools: list[str], json: bool) -> int:
    from aaa.cli import screen
    from aaa.cli.explain import print_explained

    async with reading_run(run) as (_, remote):
        told = await remote.get(f"/runs/{run}/policy", tool=tools)
    if json:
        screen.say_json(told)
    else:
        print_explained(told, told["policies"], unknown_code=None if told["known"] else _NOT_KNOWN)
    return 0
