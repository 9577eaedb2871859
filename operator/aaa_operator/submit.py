"""The order of writes by which an AgentRun becomes one run in the store, and never a second one.

1. When the pool's workers have said which app they serve, and have acknowledged the run's policy,
   ``runId``, ``storeId`` and the input's digest go to ``status``, under the object's resource
   version, so that of two operators only one chooses. Until then the agent can still be mended.
2. The finalizer is set: from now on a deletion has to be followed by a cancellation.
3. The run is created in the store if it is absent; the same id and input again is the same run.
4. ``startTime`` is written.

Each pass looks at what stands and says the one next step, so that a process that died between two
of them is simply followed by the next step. After ``startTime``, after a terminal condition, or
with another store's identity nothing is submitted any more: a run that the store has lost is
reported as lost, because it may have called tools already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from aaa.client import input_digest
from aaa.errors import ConfigError
from aaa.manifest import AgentRun
from aaa.manifest.agentrun import MAX_INPUT_BYTES
from aaa_operator import names
from aaa_operator.observe import Problem, Progress, Raw, RunSeen, StoreSeen

_NOT_IN_IDS: Final = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Write who the run will be, before it exists."""

    run_id: str
    store_id: str
    input_digest: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Set the finalizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Create the run in the store if it is absent."""

    run_id: str
    app: str
    input: Mapping[str, Any]
    deadline_s: float | None


@dataclass(frozen=True, slots=True)
class Follow:
    """The run is in the store: its progress says the rest."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done yet; ``problem`` says what is awaited."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class Refuse:
    """The AgentRun cannot be accepted as it is."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class Lost:
    """The run cannot be found where it was begun; a person has to look."""

    problem: Problem


Step = Record | Hold | Create | Follow | Wait | Refuse | Lost


def next_step(
    run: RunSeen,
    *,
    store: StoreSeen,
    config_maps: Mapping[str, Raw],
    app: str | None,
    policy_in_force: bool,
) -> Step:
    """The one next step of an AgentRun that is neither finished nor being deleted.

    ``app`` is the full name that the pool's workers serve, once one has said so;
    ``policy_in_force`` whether the workers have acknowledged what binds the run.
    """
    if store.problem is not None:
        return Wait(store.problem)
    given = resolve_input(run.manifest, config_maps)
    if run.run_id is None:
        return _record(run, given, store, app=app, policy_in_force=policy_in_force)
    there = _where_it_began(run, store)
    if there is not None:
        return there
    if isinstance(given, Problem):
        return Refuse(given)
    if input_digest(given) != run.status.get("inputDigest"):
        return Refuse(_input_changed())
    return _create(run, run.run_id, given, app=app, policy_in_force=policy_in_force)


def run_id_of(run: RunSeen) -> str:
    """The same key is the same run, also after deleting and applying again; else each object is
    a run of its own. The two kinds of id cannot meet.
    """
    key = run.manifest.spec.run_key if run.manifest is not None else None
    if key is None:
        return f"run.{run.meta.name[:120]}.{run.meta.uid}"[:200]
    plain = _NOT_IN_IDS.sub("-", key)
    mark = "" if plain == key else f".{input_digest({'runKey': key})[:12]}"
    return f"key.{plain}{mark}"


def input_changed(run: RunSeen, config_maps: Mapping[str, Raw]) -> Problem | None:
    """Whether the spec asks for other input than was accepted; a run that began keeps its own."""
    given = resolve_input(run.manifest, config_maps)
    recorded = run.status.get("inputDigest")
    if isinstance(given, Problem) or recorded is None or input_digest(given) == recorded:
        return None  # a ConfigMap that went after the beginning changes nothing
    return _input_changed()


def resolve_input(
    manifest: AgentRun | None, config_maps: Mapping[str, Raw]
) -> dict[str, Any] | Problem:
    """The run's input, inline or from its ConfigMap."""
    if manifest is None:
        return Problem("InvalidSpec", "the spec cannot be read")
    given = manifest.spec.input
    if given.config_map_ref is None:
        value: Any = given.inline
    else:
        ref = given.config_map_ref
        config = config_maps.get(ref.name)
        where = f"spec.input: ConfigMap {ref.name!r}"
        if config is None:
            return Problem("InputMissing", f"{where} does not exist")
        text = (config.get("data") or {}).get(ref.key)
        if text is None:
            return Problem("InputMissing", f"{where} has no key {ref.key!r}")
        if len(text.encode()) > MAX_INPUT_BYTES:
            return Problem("InvalidInput", f"{where}: {ref.key} is above {MAX_INPUT_BYTES} bytes")
        try:
            value = json.loads(text)
        except ValueError as error:
            return Problem("InvalidInput", f"{where}: {ref.key} is not JSON: {error}")
        if not isinstance(value, dict):
            return Problem("InvalidInput", f"{where}: {ref.key} is not a JSON object")
    try:
        input_digest(value)
    except ConfigError as error:
        return Problem("InvalidInput", f"spec.input: {error}")
    return dict(value)


def _record(
    run: RunSeen,
    given: dict[str, Any] | Problem,
    store: StoreSeen,
    *,
    app: str | None,
    policy_in_force: bool,
) -> Step:
    """Only once nothing else is awaited: with its id the agent becomes fixed, and until workers
    have come up with it, a bad image must be possible to mend.
    """
    if isinstance(given, Problem):
        return Refuse(given)
    waits = _awaited(app, policy_in_force=policy_in_force)
    if waits is not None:
        return Wait(waits)
    return Record(run_id=run_id_of(run), store_id=store.identity, input_digest=input_digest(given))


def _awaited(app: str | None, *, policy_in_force: bool) -> Problem | None:
    if app is None:
        return _NO_APP
    return None if policy_in_force else _NO_POLICY


def _where_it_began(run: RunSeen, store: StoreSeen) -> Follow | Lost | None:
    """The run, where its status says that it was to begin; ``None`` if it never was."""
    if run.status.get("storeId") != store.identity:
        return Lost(
            Problem(
                "StoreLost",
                f"the run was to begin in store {run.status.get('storeId')} and the configured "
                f"store is {store.identity}; it is not submitted again: put the old store back, or "
                "create another AgentRun",
            )
        )
    if run.run_id in store.deleted:
        return Lost(
            Problem(
                "RunDeleted",
                f"run {run.run_id} was deleted from the store, and its id stays taken; create "
                "another AgentRun with another runKey",
            )
        )
    found = store.runs.get(run.run_id or "")
    if found is not None:
        recorded = run.status.get("inputDigest")
        return Follow(found) if found.digest == recorded else Lost(_conflict(run))
    if not run.started:
        return None
    return Lost(
        Problem(
            "StoreLost",
            f"the store does not hold run {run.run_id} any more; it is not submitted again, "
            "because it may have called tools: restore the store, or create another AgentRun",
        )
    )


_NO_APP: Final = Problem("AwaitingWorkers", "no worker has said yet which app it serves")
_NO_POLICY: Final = Problem(
    "AwaitingPolicy", "the workers have not acknowledged the run's policy yet"
)


def _create(
    run: RunSeen,
    run_id: str,
    given: Mapping[str, Any],
    *,
    app: str | None,
    policy_in_force: bool,
) -> Create | Hold | Wait:
    waits = _awaited(app, policy_in_force=policy_in_force)
    if app is None or waits is not None:
        return Wait(waits or _NO_APP)
    if names.FINALIZER not in run.meta.finalizers:
        return Hold()
    seconds = run.manifest.spec.active_deadline_seconds if run.manifest else None
    deadline_s = None if seconds is None else float(seconds)
    return Create(run_id=run_id, app=app, input=given, deadline_s=deadline_s)


def _conflict(run: RunSeen) -> Problem:
    return Problem(
        "RunConflict",
        f"the store holds a run {run.run_id} with other input; create another AgentRun with "
        "another runKey",
    )


def _input_changed() -> Problem:
    return Problem(
        "InputChanged",
        "spec.input is not what was accepted first; put it back, or create another AgentRun",
    )
