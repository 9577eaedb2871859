"""The command line of ``kubectl aaa``: which commands there are; errors and exit codes are ``aaa``'s."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from aaa.cli import exits, program
from aaa.errors import extra_hint
from aaa_kubectl import deciding, doctor, explain, looking, pools
from aaa_kubectl.where import Where, hoisted, said

HELP: Final = """Look after agent runs in a cluster: what they do, and what waits for you.

\b
Begin with:
  kubectl aaa runs -n shop                 which runs there are
  kubectl aaa show refund-a-100 -n shop    what happened, call by call
  kubectl aaa pending -n shop              what waits for your approval

It reads from the operator, through the API server and with your own rights, and writes ToolDecisions
in your own name. -n, --context, --kubeconfig and --operator may stand anywhere on the line.

Exit codes: 0 done, 2 bad usage or not allowed, 3 the cluster or the operator cannot be reached,
4 waiting, 130 interrupted. Every command takes --help.
"""
#: What the extra brings.
_NEEDED: Final = ("httpx2", "lightkube")
_EPILOG: Final = (
    "-n NAMESPACE, --context, --kubeconfig and --operator may stand anywhere on the line."
)

app = typer.Typer(
    name=looking.PROGRAM,
    help=HELP,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
policy = typer.Typer(help="Look at tool policies.", rich_markup_mode=None, no_args_is_help=True)

for function in (
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
    pools.pools,
    pools.restart,
    pools.evictions,
):
    app.command(function.__name__, epilog=_EPILOG)(function)
app.add_typer(policy, name="policy")
policy.command("explain", epilog=_EPILOG)(explain.explain)
app.command("doctor", epilog=_EPILOG)(doctor.doctor)


@app.command()
def version() -> int:
    """Print the version."""
    import aaa
    from aaa.cli import screen

    screen.say(aaa.__version__)
    return exits.DONE


@app.callback()
def _root(
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="The namespace.  [default: the context's]"),
    ] = None,
    context: Annotated[
        str | None, typer.Option("--context", help="The kubeconfig's context.")
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option("--kubeconfig", help="The kubeconfig.  [default: KUBECONFIG]")
    ] = None,
    operator: Annotated[
        str | None,
        typer.Option(
            "--operator",
            metavar="NAMESPACE/NAME",
            envvar="AAA_KUBECTL_OPERATOR",
            help="The operator's Service.  [default: found by its label]",
        ),
    ] = None,
    debug: Annotated[  # noqa: ARG001 - taken off the line before it is read
        bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere.")
    ] = False,
) -> None:
    said(Where(namespace, context, kubeconfig, operator))


_root.__doc__ = HELP


def run(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code. Errors are told on stderr."""
    if any(find_spec(each) is None for each in _NEEDED) and "--help" not in arguments:
        from aaa.cli import screen

        screen.note(f"{looking.PROGRAM}: it needs {extra_hint('kubectl')}")
        return exits.USAGE
    return program.run(hoisted(list(arguments)), of=app, name=looking.PROGRAM)
