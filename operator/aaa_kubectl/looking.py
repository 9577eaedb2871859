"""``runs``, ``show``, ``events``, ``pending``, ``unknown``: reading, as the ``aaa`` command prints it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from aaa.cli import loop
from aaa.cli.options import JsonOption

if TYPE_CHECKING:
    from aaa_kubectl.remote import Remote
    from aaa_kubectl.site import Site

PROGRAM: Final = "kubectl aaa"
FOLLOW_POLL_S: Final = 1.0

RunName = Annotated[str, typer.Argument(metavar="RUN", help="The AgentRun's name.")]


def runs(
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="Only these, by the status of 'kubectl get arun', such as AwaitingApproval.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="At most so many.")] = 50,
    json: JsonOption = False,
) -> int:
    """List the namespace's runs, newest first.

    \b
    Example:
      kubectl aaa runs --state AwaitingApproval -n shop
    """
    return loop.run(_runs(state, limit, json))


async def _runs(state: str | None, limit: int, json: bool) -> int:
    from aaa.cli import screen
    from aaa.cli.listing import RunRow, print_runs

    async with reading_all() as (site, remote):
        told: dict[str, Any] = {"runs": [], "left": 0}
        if remote is not None:
            told = await remote.get("/runs", state=state, limit=limit)
    if json:
        for run in told["runs"]:
            screen.say_json(run)
        return 0
    if not told["runs"]:
        screen.note(f"no runs in {site.namespace}" + ("" if state is None else f" are {state}"))
        return 0
    rows = []
    for run in told["runs"]:
        info = run["info"] or {}
        created_ms = info.get("createdMs") or run["createdMs"]
        # Words that the table has a tone for are written as `aaa runs` writes them.
        words = run["state"].lower() if run["state"] in _PLAIN else run["state"]
        row = RunRow(run["name"], words, created_ms, info.get("closedMs"), info.get("events"))
        rows.append(row)
    print_runs(screen.out(), rows)
    if told["left"]:
        screen.note(f"and {told['left']} more; see them with --limit")
    return 0


_PLAIN: Final = ("Completed", "Failed", "Cancelled")


def show(run: RunName, json: JsonOption = False) -> int:
    """Show a run's timeline, its result, and what it waits for.

    Values that are longer than the timeline shows are cut where they are read: 'aaa show' on the
    store itself has them whole.

    \b
    Example:
      kubectl aaa show refund-a-100 -n shop
    """
    return loop.run(_show(run, json))


async def _show(run: str, json: bool) -> int:
    from aaa.cli import screen
    from aaa.cli.timeline import print_run
    from aaa_kubectl.remote import calls_of, event_of, info_of

    async with reading_run(run) as (site, remote):
        told = await remote.get(f"/runs/{run}")
        events, _ = await remote.events(run)
    if json:
        whole = {**told["run"], "events": events}
        screen.say_json({**whole, "pending": told["pending"], "unknown": told["unknown"]})
        return 0
    print_run(
        screen.out(),
        info_of(told["run"]),
        [event_of(each) for each in events],
        pending=calls_of(told["pending"]),
        unknown=calls_of(told["unknown"]),
        tail=site.tail,
        program=PROGRAM,
        needs=_needs(told["run"]),
    )
    return 0


def _needs(run: dict[str, Any]) -> str:
    why = f": {run['message']}" if run["message"] else ""
    return f"{run['state']}{why}"


def events(
    run: RunName,
    json: JsonOption = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")
    ] = False,
    after: Annotated[int, typer.Option("--after", min=0, help="Only events after this seq.")] = 0,
) -> int:
    """Print a run's events, one a line.

    With --json, 'cut' names the values of an event that are not whole.

    \b
    Example:
      kubectl aaa events refund-a-100 --json --follow | jq .type
    """
    return loop.run(_events(run, json=json, follow=follow, after=after))


async def _events(run: str, *, json: bool, follow: bool, after: int) -> int:
    from aaa.cli import screen
    from aaa.cli.lines import event_line
    from aaa.cli.words import Names
    from aaa.clock import SYSTEM_CLOCK
    from aaa_kubectl.remote import event_of

    names = Names()
    async with reading_run(run) as (_, remote):
        while True:
            found, is_open = await remote.events(run, after=after)
            for each in found:
                after = each["seq"]
                if json:
                    screen.say_json(each)
                else:
                    screen.out().print(event_line(event_of(each), names), soft_wrap=True)
            if not follow or not is_open:
                return 0
            await SYSTEM_CLOCK.sleep(FOLLOW_POLL_S)


def pending(json: JsonOption = False) -> int:
    """List the calls of the namespace that wait for approval.

    \b
    Example:
      kubectl aaa pending -n shop
    """
    return loop.run(_calls("pending", json))


def unknown(json: JsonOption = False) -> int:
    """List the calls of the namespace whose effect is unknown, with the evidence.

    \b
    Example:
      kubectl aaa unknown -n shop
    """
    return loop.run(_calls("unknown", json))


async def _calls(which: str, json: bool) -> int:
    from aaa.cli import screen
    from aaa.cli.timeline import print_pending, print_unknown
    from aaa_kubectl.remote import call_of

    told: dict[str, Any] = {"calls": [], "left": 0}
    async with reading_all() as (site, remote):
        if remote is not None:
            told = await remote.get(f"/{which}")
    print_call = print_pending if which == "pending" else print_unknown
    for number, each in enumerate(told["calls"]):
        if json:
            screen.say_json(each)
            continue
        if number:
            screen.say("")
        print_call(screen.out(), call_of(each), site.tail, PROGRAM)
        if each["cut"]:
            screen.note("its arguments are longer than can be shown here")
    if told["left"]:
        screen.note(f"and {told['left']} more")
    if not told["calls"] and not json:
        screen.note("nothing waits for approval" if which == "pending" else "nothing is unknown")
    return 0


@asynccontextmanager
async def reading_run(run: str) -> AsyncIterator[tuple[Site, Remote]]:
    """The cluster and its operator's endpoint, for a run that must be there."""
    from aaa_kubectl.remote import Remote, find_operator
    from aaa_kubectl.site import connected
    from aaa_kubectl.where import here

    async with connected() as site:
        uid = str((await site.run(run))["metadata"]["uid"])
        yield site, Remote(site, await find_operator(site, here().operator), uid=uid)


@asynccontextmanager
async def reading_all() -> AsyncIterator[tuple[Site, Remote | None]]:
    """The same for a whole namespace; no endpoint where the namespace has no AgentRun."""
    from aaa_kubectl.remote import Remote, find_operator
    from aaa_kubectl.site import connected
    from aaa_kubectl.where import here

    async with connected() as site:
        uid = await site.any_uid()
        if uid is None:
            yield site, None
        else:
            yield site, Remote(site, await find_operator(site, here().operator), uid=uid)
