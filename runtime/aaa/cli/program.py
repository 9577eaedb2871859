"""The command line itself: which commands there are, and how each ends.

An error is one sentence on stderr and an exit code; ``--debug``, anywhere on the line, shows the
traceback as well.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from aaa.cli import (
    checking,
    deciding,
    doctor,
    exits,
    explain,
    looking,
    running,
    tracebacks,
    worker,
)

HELP = """Run AI agents whose tool calls are durable, leased and fenced.

\b
Begin with:
  aaa run refund.yaml          run an agent; the same command again goes on
  aaa show refund-a-100        what happened, call by call
  aaa pending                  what waits for your approval

Exit codes: 0 done, 1 the run failed, 2 bad usage or input, 3 the store cannot be reached,
4 waiting for a person, 70 this process must be replaced, 130 interrupted. Every command takes --help.
"""

app = typer.Typer(
    name="aaa",
    help=HELP,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
policy = typer.Typer(help="Look at tool policies.", rich_markup_mode=None, no_args_is_help=True)

for function in (
    running.run,
    worker.worker,
    looking.runs,
    looking.show,
    looking.events,
    looking.pending,
    deciding.approve,
    deciding.reject,
    looking.unknown,
    deciding.resolve,
    deciding.cancel,
    deciding.suspend,
    deciding.resume,
    deciding.delete,
):
    app.command(function.__name__)(function)
app.add_typer(policy, name="policy")
policy.command("explain")(explain.explain)
app.command("doctor")(doctor.doctor)
app.command("check")(checking.check)


@app.command()
def version() -> int:
    """Print the version."""
    import aaa

    print(aaa.__version__)
    return exits.DONE


def _version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


_root.__doc__ = HELP


def run(arguments: Sequence[str], *, of: typer.Typer = app, name: str = "aaa") -> int:
    """Run one command line; the exit code. Errors are told on stderr, after the program's name."""
    arguments, debug = _without_debug(list(arguments))
    tracebacks.wanted = debug
    try:
        code = of(arguments, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else exits.DONE
    except BrokenPipeError:
        # Whoever read the output has had enough: `aaa events … | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.DONE
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else exits.USAGE
    except BaseException as error:  # noqa: BLE001 - the one place where errors become words
        if debug:
            import traceback

            traceback.print_exception(error)
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)  # type: ignore[attr-defined]
        else:
            from aaa.cli.text import clean

            for line in clean(exits.sentence_of(error)).splitlines():
                print(f"{name}: {line}", file=sys.stderr)
        return exits.code_of(error)


def _without_debug(arguments: list[str]) -> tuple[list[str], bool]:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept = [each for each in arguments[:end] if each != "--debug"]
    debug = len(kept) < end or os.environ.get("AAA_DEBUG", "") not in ("", "0")
    return kept + arguments[end:], debug
