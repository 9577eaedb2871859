"""``aaa check``: replay histories against the guarantees, and name each statement they break."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from aaa.cli import exits, loop
from aaa.cli.options import JsonOption, StoreOption
from aaa.errors import ConfigError

#: Runs that ``--all`` looks at, at most.
LIMIT = 1_000_000


def check(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="The run's id.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Check every run of the store.")] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Check histories against the guarantees.

    Exits with 1 if a statement is broken.

    \b
    Examples:
      aaa check refund-a-100
      aaa check --all --store redis://localhost:6379/0
    """
    if (run is None) != every:
        raise ConfigError("check: name one run, or say --all")
    return loop.run(_check(run, store, json))


async def _check(run: str | None, store: str | None, json: bool) -> int:
    from aaa.check import check_stored
    from aaa.cli import screen
    from aaa.cli.stores import looking
    from aaa.cli.text import one

    broken = 0
    async with looking(store) as client:
        if run is not None:
            runs = [(await client.info(run)).run_id]
        else:
            runs = [info.run_id for info in await client.store.runs(limit=LIMIT)]
        for run_id in runs:
            _, found = await check_stored(client.store, run_id)
            broken += len(found)
            for violation in found:
                if json:
                    screen.say_json(dataclasses.asdict(violation))
                else:
                    screen.say(str(violation), style="red")
    if not json:
        told = one(broken, "broken statement") if broken else "nothing is broken"
        style = "red" if broken else "green"
        screen.say(f"{one(len(runs), 'run')} checked: {told}", style=style)
    return exits.FAILED if broken else exits.DONE
