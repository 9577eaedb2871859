"""``aaa doctor``: what a store is, what its settings promise, and whether it has lost anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from aaa.cli import exits, loop
from aaa.cli.options import ByOption, JsonOption, StoreOption, said_by

if TYPE_CHECKING:
    from aaa.client import Client
    from aaa.store import EventStore
    from aaa.store.port import StoreInfo

#: Runs that are counted at most.
COUNTED: Final = 10_000


def doctor(
    store: StoreOption = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 3 if its settings can lose data.")
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Go on with a store that went back in time: every call that may have been lost "
            "becomes OutcomeUnknown.",
        ),
    ] = False,
    restored: Annotated[
        bool,
        typer.Option(
            "--restored",
            help="With --accept-loss: the store was put back from a backup while no worker ran "
            "that could have noticed.",
        ),
    ] = False,
    by: ByOption = None,
    json: JsonOption = False,
) -> int:
    """Say what a store is and what it promises.

    \b
    Examples:
      aaa doctor --store redis://localhost:6379/0 --strict
      aaa doctor --store redis://localhost:6379/0 --accept-loss --by ann
      aaa doctor --store redis://localhost:6379/0 --accept-loss --restored --by ann
    """
    from aaa.errors import ConfigError

    if restored and not accept_loss:
        raise ConfigError("--restored goes with --accept-loss: it says which loss is accepted")
    accept = said_by(by) if accept_loss else None
    return loop.run(_doctor(store, strict=strict, accept=accept, restored=restored, json=json))


async def _doctor(
    store: str | None, *, strict: bool, accept: str | None, restored: bool, json: bool
) -> int:
    from aaa.cli import screen
    from aaa.cli.stores import looking, tail

    async with looking(store) as client:
        info = await client.store.open()
        unknown = await client.accept_loss(by=accept, restored=restored) if accept else None
        behind = await _behind(client.store)
        counts = await _counts(client)
    told = _told(info, counts, behind=behind, unknown=unknown)
    if json:
        screen.say_json(told)
    else:
        _print(told, tail(store))
    bad = bool(behind) or (strict and bool(info.warnings))
    return exits.NO_STORE if bad else exits.DONE


async def _behind(store: EventStore) -> list[int]:
    """Partitions that refuse claims because they hold less than a worker has seen (G23).

    Asked with an offer of no slots, of nobody's app: it takes nothing.
    """
    from aaa.store.port import Claim, Offer, Refused, Why

    found = []
    for partition in range(store.partitions):
        offer = Offer(worker="aaa-doctor", nonce="aaa-doctor", limit=0, queues={})
        claim = Claim(app="aaa-doctor", offer=offer)
        verdict = (await store.commit(partition, [claim])).verdicts[0]
        if isinstance(verdict, Refused) and verdict.why is Why.BEHIND:
            found.append(partition)
    return found


async def _counts(client: Client) -> dict[str, int]:
    from aaa.cli.looking import STATUSES

    found = {}
    for status in STATUSES:
        found[status] = len(await client.store.runs(status=status, limit=COUNTED))
    return found


def _told(
    info: StoreInfo, counts: dict[str, int], *, behind: list[int], unknown: int | None
) -> dict[str, Any]:
    told: dict[str, Any] = {
        "backend": info.backend,
        "server": info.server,
        "identity": info.identity,
        "partitions": info.partitions,
        "schema": info.schema,
        "runs": counts,
        "warnings": list(info.warnings),
        "behind": behind,
    }
    if unknown is not None:
        told["accepted_loss"] = {"unknown_calls": unknown}
    return told


def _print(told: dict[str, Any], tail: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from aaa.cli import screen
    from aaa.cli.text import one

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    runs = ", ".join(
        f"{count}{'+' if count == COUNTED else ''} {status}"
        for status, count in told["runs"].items()
        if count
    )
    rows = ("backend", "server", "identity", "partitions", "schema")
    for name in rows:
        if told[name] != "":
            table.add_row(name, Text(str(told[name])))
    table.add_row("runs", Text(runs or "none"))
    screen.out().print(table)
    for warning in told["warnings"]:
        screen.say(f"warning: {warning}", style="yellow")
    if not told["warnings"] and not told["behind"]:
        screen.say("its settings keep everything that it has acknowledged", style="green")
    if "accepted_loss" in told:
        lost = one(told["accepted_loss"]["unknown_calls"], "call")
        screen.say(
            f"loss accepted: {lost} became OutcomeUnknown; see 'aaa unknown{tail}'", style="yellow"
        )
    if told["behind"]:
        screen.say(
            f"it has gone back in time in {one(len(told['behind']), 'partition')}: it holds less "
            "than a worker has seen, and nothing is claimed there until "
            f"'aaa doctor --accept-loss{tail}'",
            style="red",
        )
