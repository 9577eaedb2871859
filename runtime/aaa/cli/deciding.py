"""``approve``, ``reject``, ``resolve``, ``cancel``, ``suspend``, ``resume``, ``delete``: a person's word.

Each is recorded in the run's log with the name of who said it. A worker need not be running.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aaa.cli import loop
from aaa.cli.duration import parse_duration
from aaa.cli.options import (
    ByOption,
    CallArgument,
    DigestOption,
    DoneOption,
    ForOption,
    HowOption,
    JsonOption,
    NotDoneOption,
    ResultArgument,
    RetryOption,
    RunArgument,
    StoreOption,
    said_by,
)
from aaa.errors import ConfigError

if TYPE_CHECKING:
    from aaa.client import Client, Resolution
    from aaa.events import Event


def approve(
    run: RunArgument,
    call: CallArgument,
    store: StoreOption = None,
    by: ByOption = None,
    digest: DigestOption = None,
    lasts: ForOption = "24h",
    json: JsonOption = False,
) -> int:
    """Approve one waiting call, as it is now.

    The approval is for the arguments that the call has now, and is used up once.

    \b
    Example:
      aaa approve refund-a-100 c3-0 --by ann --for 1h
    """
    for_s = parse_duration(lasts, option="--for")
    return _decide(
        run,
        store,
        lambda client: client.approve(run, call, by=said_by(by), args_digest=digest, for_s=for_s),
        f"approved {call} of {run}, for {lasts}",
        json,
    )


def reject(
    run: RunArgument,
    call: CallArgument,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; the model is told.")
    ],
    store: StoreOption = None,
    by: ByOption = None,
    json: JsonOption = False,
) -> int:
    """Refuse one waiting call.

    The model is told why, and the run goes on.

    \b
    Example:
      aaa reject refund-a-100 c3-0 --reason 'already refunded by phone'
    """
    return _decide(
        run,
        store,
        lambda client: client.reject(run, call, by=said_by(by), reason=reason),
        f"rejected {call} of {run}",
        json,
    )


def resolve(
    run: RunArgument,
    call: CallArgument,
    result: ResultArgument = None,
    done: DoneOption = False,
    not_done: NotDoneOption = False,
    retry: RetryOption = False,
    reason: HowOption = "",
    store: StoreOption = None,
    by: ByOption = None,
    json: JsonOption = False,
) -> int:
    """Say what became of a call of unknown effect.

    Once: it becomes part of the run's history.

    \b
    Examples:
      aaa resolve refund-a-100 c5-0 --done '{"id": "re_1"}'
      aaa resolve refund-a-100 c5-0 --not-done --reason 'not in the ledger'
      aaa resolve refund-a-100 c5-0 --retry
    """
    word, value = resolution(result, done=done, not_done=not_done, retry=retry)
    return _decide(
        run,
        store,
        lambda client: client.resolve(run, call, word, by=said_by(by), result=value, reason=reason),
        f"resolved {call} of {run}: {word.replace('_', ' ')}",
        json,
    )


def cancel(
    run: RunArgument,
    store: StoreOption = None,
    by: ByOption = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why.")] = "",
    json: JsonOption = False,
) -> int:
    """Cancel a run.

    Nothing new starts, and it ends when no call is left in flight.

    \b
    Example:
      aaa cancel refund-a-100 --reason 'wrong order'
    """
    return _decide(
        run,
        store,
        lambda client: client.cancel(run, by=said_by(by), reason=reason),
        f"asked {run} to cancel",
        json,
    )


def suspend(
    run: RunArgument, store: StoreOption = None, by: ByOption = None, json: JsonOption = False
) -> int:
    """Start nothing new in a run until it is resumed.

    \b
    Example:
      aaa suspend refund-a-100
    """
    return _decide(
        run, store, lambda client: client.suspend(run, by=said_by(by)), f"suspended {run}", json
    )


def resume(
    run: RunArgument, store: StoreOption = None, by: ByOption = None, json: JsonOption = False
) -> int:
    """Go on with a suspended or parked run.

    \b
    Example:
      aaa resume refund-a-100
    """
    return loop.run(_resume(run, store, by, json))


async def _resume(run: str, store: str | None, by: str | None, json: bool) -> int:
    from aaa.cli import screen
    from aaa.cli.stores import looking

    async with looking(store) as client:
        info = await client.info(run)
    if info.status != "open" or info.suspended or info.parked:
        return await _decided(
            run, store, lambda client: client.resume(run, by=said_by(by)), f"resumed {run}", json
        )
    if json:
        screen.say_json({"run_id": run, "resumed": False})
    else:
        screen.say(f"{run} is neither suspended nor parked; nothing was changed")
    return 0


def delete(
    run: RunArgument,
    store: StoreOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Even if it has not ended: effects may be in flight.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Remove an ended run; its id stays taken.

    \b
    Example:
      aaa delete refund-a-100
    """
    return loop.run(_delete(run, store, force=force, json=json))


async def _delete(run: str, store: str | None, *, force: bool, json: bool) -> int:
    from aaa.cli import screen
    from aaa.cli.stores import looking

    async with looking(store) as client:
        await client.info(run)
        gone = await client.delete(run, force=force)
    if json:
        screen.say_json({"run_id": run, "deleted": gone})
    else:
        screen.say(f"deleted {run}" if gone else f"{run} was deleted already")
    return 0


def resolution(
    result: str | None, *, done: bool, not_done: bool, retry: bool
) -> tuple[Resolution, Any]:
    """What the options of ``resolve`` say: the one word, and what the call gave."""
    words: dict[Resolution, bool] = {"done": done, "not_done": not_done, "retry": retry}
    chosen = [word for word, said in words.items() if said]
    if len(chosen) != 1:
        raise ConfigError("resolve: say exactly one of --done, --not-done and --retry")
    if result is not None and not done:
        raise ConfigError("resolve: a result goes with --done only")
    return chosen[0], None if result is None else parse_json(result, where="RESULT")


def parse_json(text: str, *, where: str) -> Any:
    """A JSON value from the command line. Raises :class:`ConfigError` with line and column."""
    import json

    from aaa.ids import canonical

    try:
        value = json.loads(text)
    except ValueError as error:
        quoted = f"; a text stands in quotes: '{json.dumps(text)}'" if text.isprintable() else ""
        raise ConfigError(f"{where} is not JSON: {error}{quoted}") from None
    try:
        canonical(value)  # Python reads more than JSON: NaN, half a character
    except ValueError as error:
        raise ConfigError(f"{where} is {error}") from None
    return value


def _decide(
    run: str, store: str | None, said: Callable[[Client], Awaitable[Event]], words: str, json: bool
) -> int:
    return loop.run(_decided(run, store, said, words, json))


async def _decided(
    run: str, store: str | None, said: Callable[[Client], Awaitable[Event]], words: str, json: bool
) -> int:
    from aaa.cli import screen
    from aaa.cli.stores import looking, tail
    from aaa.errors import CallNotFound, DecisionRefused

    async with looking(store) as client:
        try:
            event = await said(client)
        except CallNotFound as error:
            raise CallNotFound(f"{error}; see 'aaa show {run}{tail(store)}'") from error
        except DecisionRefused as error:
            if not str(error).endswith("look at it again"):
                raise
            raise DecisionRefused(f"{error} with 'aaa pending{tail(store)}'") from error
    if json:
        screen.say_json(event.to_json())
    else:
        screen.say(words)
    return 0
