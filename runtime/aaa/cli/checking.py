"""``aaa check``: replay histories against the guarantees, and name each statement they break."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from aaa.cli import exits, loop
from aaa.cli.options import JsonOption, StoreOption
from aaa.errors import ConfigError

if TYPE_CHECKING:
    from aaa.check import Violation


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
    from aaa.check import check_store, check_stored
    from aaa.cli import screen
    from aaa.cli.stores import looking
    from aaa.cli.text import one

    async with looking(store) as client:
        if run is not None:
            await client.info(run)  # raises if there is none
            _, found = await check_stored(client.store, run)
            _show(found, json=json)
            checked, broken, more = 1, len(found), False
        else:
            report = await check_store(
                client.store, on_progress=lambda _done, _of, found: _show(found, json=json)
            )
            checked, broken, more = report.runs, report.found, report.more
    if not json:
        told = one(broken, "broken statement") if broken else "nothing is broken"
        style = "red" if broken else "green"
        screen.say(f"{one(checked, 'run')} checked: {told}", style=style)
    if more:
        screen.note("the store may hold more runs, which were not checked")
    return exits.FAILED if broken else exits.DONE


def _show(found: list[Violation], *, json: bool) -> None:
    from aaa.cli import screen

    for violation in found:
        if json:
            screen.say_json(dataclasses.asdict(violation))
        else:
            screen.say(str(violation), style="red")
