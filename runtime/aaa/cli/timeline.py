"""``aaa show``: a run's log as a timeline that people can read, and what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aaa import events as ev
from aaa.cli.approved import unbegun
from aaa.cli.scope import RUN, split
from aaa.cli.text import as_json, clean, moment, one, seconds, short
from aaa.cli.words import STYLES, Names, line_of, result_text
from aaa.client import CallView
from aaa.events import Event
from aaa.runtime.outcome import outcome_of
from aaa.store.port import RunInfo

#: Columns from which on the timeline has one each for attempt and worker.
WIDE = 100
#: Events that end what began with a request.
_ENDS = (ev.TOOL_COMPLETED, ev.TOOL_FAILED, ev.LLM_COMPLETED, ev.LLM_FAILED)


def header(info: RunInfo, events: Sequence[Event]) -> Text:
    """``refund-a-100  completed  in 1.2 s, begun 2026-12-01 03:24:57``."""
    status = status_of(info)
    text = Text(info.run_id, style="bold")
    text.append(f"  {status}", style=STYLES[tone_of(status)])
    if info.closed_ms is not None:
        text.append(f" in {seconds(info.closed_ms - info.created_ms)}")
    text.append(f", begun {moment(info.created_ms)}, {one(len(events), 'event')}")
    return text


def status_of(info: RunInfo) -> str:
    """The run's status in a word or two."""
    if info.deleted:
        return "deleted"
    if info.status != "open":
        return info.status
    for holds, words in (
        (info.cancelling, "being cancelled"),
        (info.parked, "parked"),
        (info.suspended, "suspended"),
        (info.awaiting, "waiting for approval"),
        (info.unknown, "open, with an unknown outcome"),
    ):
        if holds:
            return words
    return "open"


def tone_of(status: str) -> str:
    """The tone in which a status is shown."""
    if status == "completed":
        return "good"
    return "bad" if status in ("failed", "cancelled", "parked") else "ask"


def timeline(events: Sequence[Event], *, wide: bool = True) -> Table:
    """A row an event: seconds since the beginning, seq, what, attempt, worker, more.

    Where it is not ``wide``, attempt and worker stand in the words.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, expand=False)
    table.add_column("time", justify="right", style="dim", no_wrap=True)
    table.add_column("seq", justify="right", style="dim", no_wrap=True)
    table.add_column("what", no_wrap=True)
    if wide:
        table.add_column("try", justify="right", no_wrap=True)
        table.add_column("by", no_wrap=True)
    table.add_column("what happened", overflow="fold")
    workers = _workers(events)
    began = events[0].time if events else 0
    times, names = _starts(events), Names()
    for event in events:
        line = line_of(event, names)
        data = event.data
        told = Text(line.words, style=STYLES[line.tone])
        if event.type == ev.TOOL_STARTED and not wide:
            told.append(f" by {workers.get(str(data.get('worker', '')), '?')}")
        if event.type in _ENDS and event.parent in times:
            told.append(f" ({seconds(event.time - times[event.parent])})", style="dim")
        if line.detail:
            told.append(f"  {short(line.detail, 120)}", style="dim")
        attempt = str(data.get("attempt", "")) if event.type.startswith("aaa.tool.") else ""
        worker = workers.get(str(data.get("worker", "")), "")
        at = f"+{(event.time - began) / 1000:.3f}"
        table.add_row(at, str(event.seq), line.subject, *((attempt, worker) if wide else ()), told)
    return table


def _starts(events: Sequence[Event]) -> dict[str | None, int]:
    """Request id → when its newest attempt began; a model's, when it was asked for."""
    times: dict[str | None, int] = {}
    for event in events:
        if event.type == ev.LLM_REQUESTED:
            times[event.id] = event.time
        elif event.type == ev.TOOL_STARTED:
            times[event.parent] = event.time
    return times


def _workers(events: Sequence[Event]) -> dict[str, str]:
    """Worker → a short name, in the order of appearance."""
    named: dict[str, str] = {}
    for event in events:
        worker = event.data.get("worker") if event.type == ev.TOOL_STARTED else None
        if isinstance(worker, str):
            named.setdefault(worker, f"w{len(named) + 1}")
    return named


def print_run(
    console: Console,
    info: RunInfo,
    events: Sequence[Event],
    *,
    pending: Sequence[CallView],
    unknown: Sequence[CallView],
    tail: str = "",
    program: str = "aaa",
    needs: str | None = None,
) -> None:
    """Everything that ``aaa show`` prints.

    ``program`` and ``tail`` begin and end the commands to type; ``needs`` is what it takes for an open
    run to go on, where that is not a worker on this machine.
    """
    console.print(header(info, events), soft_wrap=True)
    console.print()
    console.print(timeline(events, wide=console.width >= WIDE))
    named = _workers(events)
    if named:
        console.print()
        for worker, name in named.items():
            console.print(Text(f"{name} = {short(worker, 120)}", style="dim"), soft_wrap=True)
    console.print()
    if events and events[-1].type in ev.ENDINGS:
        print_result(console, events[-1])
    for view in pending:
        print_pending(console, view, tail, program)
    for view in unknown:
        print_unknown(console, view, tail, program)
    for call in unbegun(events) if info.status == "open" else ():
        console.print(Text(str(call), style=STYLES["ask"]), soft_wrap=True)
    if info.status == "open" and not pending:
        told = _needs(info, events, tail) if needs is None else clean(needs)
        console.print(Text(told, style=STYLES["ask"]), soft_wrap=True)


def print_result(console: Console, ending: Event) -> None:
    """The run's value or error, whole."""
    outcome = outcome_of(ending)
    if outcome.status == "completed":
        value: Any = result_text(outcome.value)
        text = value if isinstance(value, str) else as_json(value, indent=2)
        console.print(Text(clean(text)), soft_wrap=not console.is_terminal)
    elif outcome.error is not None:
        text = f"{outcome.error.error}: {clean(outcome.error.message)}"
        console.print(Text(text, style=STYLES["bad"]), soft_wrap=not console.is_terminal)
    else:
        reason = short(ending.data.get("reason", ""))
        console.print(Text(f"cancelled{f': {reason}' if reason else ''}", style=STYLES["bad"]))


def print_pending(console: Console, view: CallView, tail: str = "", program: str = "aaa") -> None:
    """A call that waits for approval, with the commands to type; ``tail`` names the store."""
    head = Text(f"{view.name} {view.call_id}", style="bold")
    head.append(f" waits for approval ({short(view.reason, 80)}), for", style=STYLES["ask"])
    _print_call(
        console,
        head,
        view,
        f"{program} approve {view.run_id} {view.call_id} --digest {view.args_digest}{tail}",
        f"{program} reject {view.run_id} {view.call_id} --reason '…'{tail}",
    )


def print_unknown(console: Console, view: CallView, tail: str = "", program: str = "aaa") -> None:
    """A call whose effect is unknown, with the evidence and the commands to type."""
    head = Text(f"{view.name} {view.call_id}", style="bold")
    head.append(f" may have happened ({short(view.reason, 80)}); look it up", style=STYLES["bad"])
    words = ("done", "not-done", "retry") if view.retriable else ("done", "not-done")
    resolve = f"{program} resolve {view.run_id} {view.call_id}"
    _print_call(console, head, view, *(f"{resolve} --{word}{tail}" for word in words))
    for event in view.evidence:
        line = line_of(event)
        text = f"evidence: event {event.seq}: {line.words}: {line.detail}"
        console.print(Text(f"  {text}", style="dim"), soft_wrap=True)


def _print_call(console: Console, head: Text, view: CallView, *commands: str) -> None:
    console.print(head)
    console.print(Text(f"  {short(view.arguments, 400)}"), soft_wrap=True)
    console.print(
        Text(f"  key {short(view.idempotency_key, 200)}, since {moment(view.since_ms)}", "dim"),
        soft_wrap=True,
    )
    for command in commands:
        console.print(Text(f"  {command}", style="cyan"), soft_wrap=True)


def _needs(info: RunInfo, events: Sequence[Event], tail: str) -> str:
    """What it takes for an open run to go on (L11)."""
    if info.parked:
        why = next((e.data for e in reversed(events) if e.type == ev.RUN_PARKED), {})
        return (
            f"Its algorithm failed three times ({short(why.get('message', ''), 300)}). "
            f"Mend the code, then: aaa resume {info.run_id}{tail}"
        )
    if info.suspended:
        return f"Nothing new starts until: aaa resume {info.run_id}{tail}"
    scope, algorithm, tools = ([*info.app.split("/"), "", ""])[:3]
    name, policies = split(scope)
    worker = "aaa worker --app MODULE:ATTRIBUTE"
    worker += f" --scope {name}" if name != "local" else ""
    worker += " --policy FILE" if policies else ""
    commands = [f"{worker}{tail}"]
    if name.startswith(RUN):
        commands.insert(0, f"aaa run FILE.yaml{tail}")
    under = ", and the policies" if policies else ""
    code = f"{algorithm}, tools {tools}" + (f", policies {policies[1:]}" if policies else "")
    told = f"It goes on with the algorithm and the tools{under} that it began with ({code}):"
    return "\n  ".join([told, *commands])
