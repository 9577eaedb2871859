"""``aaa run``: the runs of a manifest, embedded in this process and followed to their end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aaa.cli import exits, loop
from aaa.cli.deciding import parse_json
from aaa.cli.options import JsonOption, StoreOption, said_by
from aaa.errors import AAAError, AppError, ConfigError, ManifestError, RunConflict

if TYPE_CHECKING:
    from aaa.app import App
    from aaa.cli.display import Display
    from aaa.cli.follow import Followed, Follower
    from aaa.cli.manifests import Plan
    from aaa.events import Event


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="AgentRuns and ToolPolicies.")],
    app: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="MODULE:ATTRIBUTE",
            help="The agent's app, in place of the manifest's.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = None,
    input_: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="JSON",
            help="The run's input, in place of the manifest's; @FILE reads a file.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        bool | None,
        typer.Option(
            "--wait/--no-wait",
            help="Go on following while a person is to decide.  "
            "[default: on a terminal wait, in a pipe exit with 4]",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Run the agents of a manifest, here, to their end.

    The run is kept in the store: after Ctrl-C, a crash or a finished run the same command goes on
    with the same run, or shows its result. Nothing is begun twice.

    \b
    Examples:
      aaa run refund.yaml
      aaa run refund.yaml --input '{"task": "refund order A-101"}' --store sqlite:///runs.db
    """
    import sys

    given = None if input_ is None else _input(input_)
    patient = sys.stdout.isatty() and not json if wait is None else wait
    return loop.run(_run(file, app, store, given, wait=patient, json=json))


def _input(text: str) -> Any:
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text()
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise ConfigError(f"--input: {text[1:]} cannot be read: {why}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"--input: {text[1:]} is not UTF-8 text") from None
    value = parse_json(text, where="--input")
    if not isinstance(value, dict):
        raise ConfigError(f'--input must be a JSON object such as {{"task": "…"}}, not {text}')
    return value


async def _run(
    file: Path, app: str | None, store: str | None, given: Any, *, wait: bool, json: bool
) -> int:
    import asyncio

    from aaa.cli import logs
    from aaa.cli.follow import Followed
    from aaa.cli.manifests import plans, read, split
    from aaa.cli.signals import Interrupts, leave
    from aaa.cli.stores import tail, url_of
    from aaa.cli.unmatched import binding_none
    from aaa.telemetry.setup import configure_from_environment

    manifests = read(file)
    todo, url = plans(manifests, file=file, app=app, given=given), url_of(store)
    ended, todo = await _finished(todo, url)
    loaded = {plan.run_id: _load(plan) for plan in todo}
    display = _display(runs=len(todo) > 1, json=json, tail=tail(store))
    logs.through(display)
    configure_from_environment()
    runs, policies = split(manifests)
    for sentence in binding_none(policies, runs):
        display.note(f"warning: {sentence}")
    command, results = f"aaa run {file}{tail(store)}", [*ended]
    followers: list[Follower] = []

    def at_once() -> None:
        display.close()
        left = [Followed(each.plan.run_id, exits.INTERRUPTED) for each in followers if each.open]
        _say_how_to_go_on(command, left, exits.INTERRUPTED)

    try:
        followers.extend(
            _follower(plan, loaded[plan.run_id], url, display, tail(store)) for plan in todo
        )
        with Interrupts(on_first=lambda what: _draining(display, what), on_second=at_once) as heard:
            results += await asyncio.gather(
                *(follower.run(stop=heard.asked, wait=wait) for follower in followers)
            )
    finally:
        display.close()
    for followed in results:
        _tell(followed, json=json, several=len(results) > 1)
    code = _worst([followed.code for followed in results])
    _say_how_to_go_on(command, results, code)
    if any(follower.engine.unstoppable for follower in followers):
        leave(code)  # a tool's thread would keep the process alive
    return code


async def _finished(todo: list[Plan], url: str) -> tuple[list[Followed], list[Plan]]:
    """Runs that have ended already, which need neither app nor engine; and the others."""
    from aaa.cli.follow import Followed, ending_code
    from aaa.cli.stores import bounded_close, bounded_open, make

    ended, rest = [], []
    store = make(url)
    try:
        await bounded_open(store, url)
        for plan in todo:
            info = await store.run(plan.run_id)
            if info is not None and (info.deleted or info.digest != plan.digest):
                _refuse(plan, deleted=info.deleted)
            if info is None or info.status == "open":
                if info is None and plan.manifest.spec.desired_state == "Cancelled":
                    ended.append(Followed(plan.run_id, exits.FAILED))
                    continue
                rest.append(plan)
                continue
            last = (await store.read(plan.run_id, after=info.head.seq - 1))[-1]
            ended.append(Followed(plan.run_id, ending_code(last), last))
    finally:
        await bounded_close(store)
    return ended, rest


def _refuse(plan: Plan, *, deleted: bool) -> None:
    way_out = "give the run another name or spec.runKey"
    if deleted:
        raise RunConflict(f"run {plan.run_id} was deleted, and its id stays taken; {way_out}")
    raise RunConflict(
        f"run {plan.run_id} began with other input than it has now; "
        f"put the input back, or {way_out} to begin another run"
    )


def _load(plan: Plan) -> App:
    from aaa.app import load_app

    try:
        return load_app(plan.app, folder=plan.folder)
    except AppError as error:
        agent = plan.manifest.spec.agent
        more = "; spec.agent.source is for a cluster only" if agent.source is not None else ""
        if plan.app != agent.app:
            raise
        raise plan.manifest.problem(f"{error}{more}", at=("spec", "agent", "app")) from error


def _follower(plan: Plan, app: App, url: str, display: Display, tail: str) -> Follower:
    from aaa.algos import ToolLoop
    from aaa.cli import unmatched
    from aaa.cli.follow import Follower
    from aaa.cli.stores import make

    try:
        by = said_by(None)
        follower = Follower(plan, app, make(url), url=url, display=display, by=by, tail=tail)
    except ManifestError:
        raise
    except AAAError as error:
        raise plan.manifest.problem(str(error)) from error
    for sentence in unmatched.warnings(plan.policies, app, name=plan.app):
        display.note(f"warning: {sentence}")
    if (meant := _misspelt_task(plan.input)) is not None and isinstance(app.algorithm, ToolLoop):
        display.note(
            f"warning: the input of {plan.run_id} has {meant!r} and no 'task', so the model is "
            "given all of it as JSON"
        )
    return follower


def _misspelt_task(given: Any) -> str | None:
    """The key that was meant to be ``task``, if there is none."""
    from difflib import get_close_matches

    if not isinstance(given, dict) or "task" in given:
        return None
    keys = {key.lower(): key for key in given}
    close = get_close_matches("task", list(keys), n=1, cutoff=0.7)
    return keys[close[0]] if close else None


def _display(*, runs: bool, json: bool, tail: str) -> Display:
    from aaa.cli import screen
    from aaa.cli.display import Lines, Quiet

    if json:
        return Quiet()
    if screen.out().is_terminal and not screen.out().is_dumb_terminal:
        from aaa.cli.board import Board

        return Board(screen.out(), tail=tail)
    return Lines(runs=runs, tail=tail)


def _draining(display: Display, what: str) -> None:
    display.note(f"{what}: letting calls in flight finish; once more ends at once")


def _tell(followed: Followed, *, json: bool, several: bool) -> None:
    """The result of one run, last."""
    from aaa.cli import screen
    from aaa.cli.timeline import print_result

    ending = followed.ending
    if json:
        screen.say_json(_result_json(followed.run_id, followed.code, ending))
    elif ending is not None:
        if several:
            screen.say(f"\n{followed.run_id}:")
        elif screen.out().is_terminal:
            screen.say("")
        print_result(screen.out(), ending)
    elif followed.code == exits.FAILED:
        screen.note(f"{followed.run_id} was cancelled before it began, as its manifest wishes")


def _result_json(run_id: str, code: int, ending: Event | None) -> dict[str, Any]:
    from aaa.runtime.outcome import outcome_of

    if ending is None:
        names = {exits.WAITING: "waiting", exits.FAILED: "cancelled", exits.BROKEN: "ended early"}
        return {"run_id": run_id, "status": names.get(code, "interrupted")}
    outcome = outcome_of(ending)
    told: dict[str, Any] = {"run_id": run_id, "status": outcome.status}
    if outcome.status == "completed":
        told["value"] = outcome.value
    if outcome.error is not None:
        told["error"] = {"error": outcome.error.error, "message": outcome.error.message}
    return told


def _worst(codes: Sequence[int]) -> int:
    """Of several runs: broken off, then interrupted, failed, waiting."""
    order = (exits.BROKEN, exits.INTERRUPTED, exits.FAILED, exits.WAITING)
    return next((code for code in order if code in codes), exits.DONE)


def _say_how_to_go_on(command: str, results: Sequence[Followed], code: int) -> None:
    from aaa.cli import screen

    open_ = [each.run_id for each in results if each.ending is None and each.code != exits.FAILED]
    if not open_:
        return
    names = ", ".join(open_)
    if code in (exits.INTERRUPTED, exits.BROKEN):
        word = "interrupted" if code == exits.INTERRUPTED else "ended early"
        screen.note(f"{word}; {names} is kept, and goes on with: {command}")
    else:
        screen.note(f"{names} waits for a person; then go on with: {command}")
