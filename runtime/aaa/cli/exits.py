"""What a command's exit code says, and how an error becomes one sentence.

====  ==========================================================================
0     done
1     the run failed or was cancelled; ``check`` found a broken statement
2     bad usage or bad input: mend it and try again
3     the store cannot be reached, or must not be used as it is
4     waiting for a person: an approval, a resolution, ``aaa resume``
70    this process cannot go on and must be replaced; also an error of AAA's own
130   interrupted (Ctrl-C or SIGTERM); the same command goes on
====  ==========================================================================
"""

from __future__ import annotations

from typing import Final

from aaa.errors import AAAError, RetryError, StopError

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NO_STORE: Final = 3
WAITING: Final = 4
BROKEN: Final = 70
INTERRUPTED: Final = 130


def code_of(error: BaseException) -> int:
    """The exit code that tells this error."""
    if isinstance(error, RetryError | StopError):
        return NO_STORE
    if isinstance(error, AAAError):
        return USAGE
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    # What the option parser raises, whichever parser that is.
    if hasattr(error, "format_message"):
        return int(getattr(error, "exit_code", USAGE))
    return BROKEN


def sentence_of(error: BaseException) -> str:
    """One sentence for people. What AAA raises is one already."""
    if isinstance(error, AAAError):
        return str(error)
    if hasattr(error, "format_message"):
        return _usage(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    text = " ".join(str(error).split())
    return f"this should not have happened: {type(error).__name__}: {text}; see it with --debug"


def _usage(error: BaseException) -> str:
    text = " ".join(str(error.format_message()).split()).rstrip(".")  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "aaa")
    return f"{text[:1].lower()}{text[1:]}; see '{path} --help'"
