"""``runs``, ``show``, ``events``, ``pending``, ``unknown``: reading, from any machine, at any time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from aaa.cli import loop
from aaa.cli.options import JsonOption, RunArgument, StoreOption
from aaa.errors import ConfigError

if TYPE_CHECKING:
    from aaa.cli.approved import Approved
    from aaa.client import CallView, Client
    from aaa.store.port import RunInfo

STATUSES: Final = ("open", "completed", "failed", "cancelled", "waiting", "unknown")
FOLLOW_POLL_S: Final = 0.3


def runs(
    store: StoreOption = None,
    status: Annotated[
        str | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help=f"Only these: {', '.join(STATUSES)}.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 50,
    json: JsonOption = False,
) -> int:
    """List runs, newest first.

    \b
    Example:
      aaa runs --status waiting
    """
    if status is not None and status not in STATUSES:
        raise ConfigError(f"--status: {status!r} is not one of {', '.join(STATUSES)}")
    return loop.run(_runs(store, status, limit, json))


async def _runs(store: str | None, status: str | None, limit: int, json: bool) -> int:
    from aaa.cli import screen
    from aaa.cli.approved import of_run
    from aaa.cli.listing import RunRow, print_runs
    from aaa.cli.stores import looking
    from aaa.cli.timeline import status_of

    async with looking(store) as client:
        found = await client.store.runs(status=status, limit=limit)
        approved = {} if json else {i.run_id: await of_run(client.store, i) for i in found}
    if json:
        for info in found:
            screen.say_json(_info_json(info))
        return 0
    if not found:
        screen.note("no runs" if status is None else f"no runs are {status}")
        return 0
    rows = []
    for info in found:
        words = status_of(info)
        if words == "open" and approved[info.run_id]:
            words = approved[info.run_id][0].status
        rows.append(RunRow(info.run_id, words, info.created_ms, info.closed_ms, info.head.seq))
    print_runs(screen.out(), rows)
    return 0


def show(run: RunArgument, store: StoreOption = None, json: JsonOption = False) -> int:
    """Show a run's timeline, its result, and what it waits for.

    \b
    Example:
      aaa show refund-a-100
    """
    return loop.run(_show(run, store, json))


async def _show(run: str, store: str | None, json: bool) -> int:
    from aaa.cli import screen
    from aaa.cli.stores import looking, tail
    from aaa.cli.timeline import print_run

    async with looking(store) as client:
        info = await client.info(run)
        events = await client.events(run)
        pending = await client.pending(run) if info.awaiting else []
        unknown = await client.unknown(run) if info.unknown else []
    if json:
        whole = _info_json(info) | {
            "events": [event.to_json() for event in events],
            "pending": [view_json(view) for view in pending],
            "unknown": [view_json(view) for view in unknown],
        }
        screen.say_json(whole)
    else:
        print_run(screen.out(), info, events, pending=pending, unknown=unknown, tail=tail(store))
    return 0


def events(
    run: RunArgument,
    store: StoreOption = None,
    json: JsonOption = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")
    ] = False,
    after: Annotated[int, typer.Option("--after", min=0, help="Only events after this seq.")] = 0,
) -> int:
    """Print a run's events, one a line.

    \b
    Example:
      aaa events refund-a-100 --json --follow | jq .type
    """
    return loop.run(_events(run, store, json=json, follow=follow, after=after))


async def _events(run: str, store: str | None, *, json: bool, follow: bool, after: int) -> int:
    import asyncio

    from aaa import events as ev
    from aaa.cli import screen
    from aaa.cli.lines import event_line
    from aaa.cli.stores import looking
    from aaa.cli.words import Names

    names = Names()
    async with looking(store) as client:
        ended = False
        while True:
            for event in await client.events(run, after=after):
                after, ended = event.seq, ended or event.type in ev.ENDINGS
                if json:
                    screen.say_json(event.to_json())
                else:
                    screen.out().print(event_line(event, names), soft_wrap=True)
            if not follow or ended or (await client.info(run)).status != "open":
                return 0
            await asyncio.sleep(FOLLOW_POLL_S)


def pending(store: StoreOption = None, json: JsonOption = False) -> int:
    """List the calls that wait for approval.

    \b
    Example:
      aaa pending
    """
    return loop.run(_views("pending", store, json))


def unknown(store: StoreOption = None, json: JsonOption = False) -> int:
    """List the calls whose effect is unknown, with the evidence.

    \b
    Example:
      aaa unknown
    """
    return loop.run(_views("unknown", store, json))


async def _views(which: str, store: str | None, json: bool) -> int:
    from aaa.cli import screen
    from aaa.cli.stores import looking, tail
    from aaa.cli.timeline import print_pending, print_unknown

    async with looking(store) as client:
        found = await _found(client, which)
        approved = await _approved(client) if which == "pending" and not json else []
    for number, view in enumerate(found):
        if json:
            screen.say_json(view_json(view))
            continue
        if number:
            screen.say("")
        (print_pending if which == "pending" else print_unknown)(screen.out(), view, tail(store))
    for call in approved:
        screen.note(str(call))
    if not found and not approved and not json:
        screen.note("nothing waits for approval" if which == "pending" else "nothing is unknown")
    return 0


async def _approved(client: Client) -> list[Approved]:
    from aaa.cli.approved import of_run

    infos = await client.store.runs(status="open")
    return [call for info in infos for call in await of_run(client.store, info)]


async def _found(client: Client, which: str) -> Sequence[CallView]:
    return await (client.pending() if which == "pending" else client.unknown())


def view_json(view: CallView) -> dict[str, Any]:
    """A waiting call for machines."""
    return {
        "run_id": view.run_id,
        "call_id": view.call_id,
        "name": view.name,
        "arguments": view.arguments,
        "args_digest": view.args_digest,
        "idempotency_key": view.idempotency_key,
        "reason": view.reason,
        "attempts": view.attempts,
        "since_ms": view.since_ms,
        "evidence": [event.to_json() for event in view.evidence],
    }


def _info_json(info: RunInfo) -> dict[str, Any]:
    return {
        "run_id": info.run_id,
        "app": info.app,
        "status": info.status,
        "events": info.head.seq,
        "cancelling": info.cancelling,
        "suspended": info.suspended,
        "parked": info.parked,
        "awaiting": info.awaiting,
        "unknown": info.unknown,
        "created_ms": info.created_ms,
        "closed_ms": info.closed_ms,
    }
