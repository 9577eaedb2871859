"""Beginning a run: the one operation that creates it, and what its verdict means.

Whoever submits, an engine that serves the app or a client that only knows the app's full name,
makes the same operation out of the same input, so that submitting twice is one run (L4).
"""

from __future__ import annotations

import re
from typing import Any, Final

from aaa import events as ev
from aaa import ids
from aaa.algos import Algorithm
from aaa.errors import ConfigError, RunConflict, RunDeleted
from aaa.runtime.decide import DEADLINE, MAX_TIMER_MS
from aaa.runtime.outcome import Run
from aaa.store import port
from aaa.store.port import Why
from aaa.tools import ToolRegistry

_POLICY: Final = re.compile(r"[0-9a-f]{32}")


def input_digest(input: Any) -> str:  # noqa: A002 - the public name
    """The digest by which a store tells one input from another. Raises :class:`ConfigError`."""
    try:
        return ids.digest_of(ids.canonical(input))
    except ValueError as error:
        raise ConfigError(f"the input is {error}") from None


def creation(
    run_id: str,
    app: str,
    *,
    algorithm: str,
    version: str,
    input: Any,  # noqa: A002
    deadline_s: float | None = None,
    policy: str | None = None,
) -> port.Create:
    """The operation that begins a run, with everything that it is pinned to (L11)."""
    try:
        digest = input_digest(input)
    except ConfigError as error:
        raise ConfigError(f"run {run_id}: {error}") from None
    root = ev.run_requested(
        run_id, {"algorithm": algorithm, "app": app, "input": input, "version": version}
    )
    entries = [port.Entry(root)]
    if policy is not None:
        required = root.caused(ev.RUN_POLICY, {"policy": check_policy(policy)})
        entries.append(port.Entry(required, port.Require(policy)))
    if deadline_s is not None:
        if not 0 <= deadline_s * 1000 <= MAX_TIMER_MS:
            raise ConfigError(f"run {run_id}: deadline_s must be 0 to 100 years, not {deadline_s}")
        after_ms = round(deadline_s * 1000)
        timer = root.caused(ev.TIMER_SET, {"after_ms": after_ms, "name": DEADLINE})
        effect = port.StartTimer(ids.json_text(DEADLINE), after_ms)
        entries.append(port.Entry(timer, effect))
    return port.Create(run_id=run_id, app=app, digest=digest, entries=tuple(entries))


def new_run(
    run_id: str,
    app: str,
    algorithm: Algorithm,
    input: Any,  # noqa: A002
    *,
    deadline_s: float | None = None,
) -> port.Create:
    """The operation that begins a run of an algorithm that is at hand."""
    return creation(
        run_id,
        app,
        algorithm=algorithm.name,
        version=algorithm.version,
        input=input,
        deadline_s=deadline_s,
    )


def check_policy(policy: str) -> str:
    """Raises :class:`ConfigError` for what is not the hash of policies."""
    if _POLICY.fullmatch(policy) is None:
        raise ConfigError(f"{policy!r:.80} is not a policy's hash: 32 hex digits")
    return policy


def app_name(scope: str, algorithm: Algorithm, tools: ToolRegistry | None) -> str:
    """The full name of an app: what its runs are pinned to, and workers serve (L11)."""
    digest = "none" if tools is None else tools.digest[:12]
    return f"{scope}/{algorithm.name}@{algorithm.version}/{digest}"


def app_parts(app: str) -> tuple[str, str, str, str]:
    """Scope, algorithm, version and tools' digest of an app's full name.

    Takes apart what :func:`app_name` makes. Raises :class:`ConfigError`.
    """
    scope, _, rest = app.partition("/")
    named, _, tools = rest.rpartition("/")
    algorithm, _, version = named.rpartition("@")
    if not (scope and algorithm and version and tools):
        raise ConfigError(f"app {app!r} is not a full name: scope/algorithm@version/tools")
    return scope, algorithm, version, tools


def submitted(run_id: str, verdict: port.Verdict) -> Run:
    """What a store's verdict on :func:`creation` means. Raises RunDeleted or RunConflict."""
    match verdict:
        case port.Appended():
            return Run(run_id, dup=verdict.dups[0])
        case port.Refused(why=Why.DELETED):
            raise RunDeleted(f"run {run_id} was deleted; submit it under another run id")
        case port.Refused(why=Why.EXISTS):
            raise RunConflict(
                f"run {run_id} exists with other input; use the same input or another run id"
            )
    raise AssertionError(f"unexpected verdict {verdict!r}")
