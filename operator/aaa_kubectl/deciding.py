"""``approve``, ``reject``, ``resolve``, ``cancel``, ``suspend``, ``resume``: a person's word, as objects.

A decision is a ToolDecision in the name by which the cluster knows its user; an admission policy lets
nobody sign with another's. It is bound to the arguments that the AgentRun's status shows when it is
made. The operator takes it; the command waits a little to say what became of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from aaa.cli import exits, loop
from aaa.cli.deciding import resolution
from aaa.cli.duration import parse_duration
from aaa.cli.options import (
    CallArgument,
    DigestOption,
    DoneOption,
    ForOption,
    HowOption,
    JsonOption,
    NotDoneOption,
    ResultArgument,
    RetryOption,
)
from aaa.errors import CallNotFound, DecisionRefused
from aaa_kubectl.looking import PROGRAM, RunName

if TYPE_CHECKING:
    from aaa.client import Resolution
    from aaa_kubectl.site import Site

#: How long the command waits for the operator to take a decision, and how often it looks.
WAIT_S: Final = 15.0
_LOOK_S: Final = 0.5

NoWaitOption = Annotated[
    bool, typer.Option("--no-wait", help="Do not wait for the operator to take it.")
]
#: A resolution, as a ToolDecision calls it.
_DECISIONS: Final[dict[Resolution, str]] = {
    "done": "MarkDone",
    "not_done": "MarkNotDone",
    "retry": "Retry",
}
_REVIEW: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def approve(
    run: RunName,
    call: CallArgument,
    digest: DigestOption = None,
    lasts: ForOption = "24h",
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why.")] = "",
    no_wait: NoWaitOption = False,
    json: JsonOption = False,
) -> int:
    """Approve one waiting call, as it is now.

    \b
    Example:
      kubectl aaa approve refund-a-100 c3-0 --for 1h -n shop
    """
    for_s = parse_duration(lasts, option="--for")
    return loop.run(
        _decide(
            run,
            call,
            "Approve",
            digest=digest,
            reason=reason,
            for_s=for_s,
            words=f"approved {call} of {run}, for {lasts}",
            wait=not no_wait,
            json=json,
        )
    )


def reject(
    run: RunName,
    call: CallArgument,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; the model is told.")
    ],
    no_wait: NoWaitOption = False,
    json: JsonOption = False,
) -> int:
    """Refuse one waiting call.

    \b
    Example:
      kubectl aaa reject refund-a-100 c3-0 --reason 'already refunded by phone'
    """
    words = f"rejected {call} of {run}"
    return loop.run(
        _decide(run, call, "Reject", reason=reason, words=words, wait=not no_wait, json=json)
    )


def resolve(
    run: RunName,
    call: CallArgument,
    result: ResultArgument = None,
    done: DoneOption = False,
    not_done: NotDoneOption = False,
    retry: RetryOption = False,
    reason: HowOption = "",
    no_wait: NoWaitOption = False,
    json: JsonOption = False,
) -> int:
    """Say what became of a call of unknown effect.

    Once: it becomes part of the run's history.

    \b
    Examples:
      kubectl aaa resolve refund-a-100 c5-0 --done '{"id": "re_1"}'
      kubectl aaa resolve refund-a-100 c5-0 --not-done --reason 'not in the ledger'
      kubectl aaa resolve refund-a-100 c5-0 --retry
    """
    word, value = resolution(result, done=done, not_done=not_done, retry=retry)
    return loop.run(
        _decide(
            run,
            call,
            _DECISIONS[word],
            reason=reason,
            result=value,
            words=f"resolved {call} of {run}: {word.replace('_', ' ')}",
            wait=not no_wait,
            json=json,
        )
    )


def cancel(run: RunName, json: JsonOption = False) -> int:
    """Cancel a run: nothing new starts, and it ends when no call is in flight.

    \b
    Example:
      kubectl aaa cancel refund-a-100 -n shop
    """
    return loop.run(_wish(run, "Cancelled", f"asked {run} to cancel", json))


def suspend(run: RunName, json: JsonOption = False) -> int:
    """Start nothing new in a run until it is resumed.

    \b
    Example:
      kubectl aaa suspend refund-a-100 -n shop
    """
    return loop.run(_wish(run, "Suspended", f"asked {run} to suspend", json))


def resume(run: RunName, json: JsonOption = False) -> int:
    """Go on with a suspended run.

    \b
    Example:
      kubectl aaa resume refund-a-100 -n shop
    """
    return loop.run(_wish(run, "Running", f"asked {run} to go on", json))


async def _wish(run: str, state: str, words: str, json: bool) -> int:
    from aaa.cli import screen
    from aaa_kubectl.site import connected

    async with connected() as site:
        found = await site.run(run)
        if _is_true(found, "Finished"):
            raise DecisionRefused(
                f"AgentRun {run!r} has ended; see '{PROGRAM} show {run}{site.tail}'"
            )
        patch = {"spec": {"desiredState": state}}
        await site.api.merge("AgentRun", run, patch, namespace=site.namespace)
    if json:
        screen.say_json({"run": run, "desiredState": state})
    else:
        screen.say(words)
    return 0


async def _decide(
    run: str,
    call: str,
    decision: str,
    *,
    words: str,
    wait: bool,
    json: bool,
    digest: str | None = None,
    reason: str = "",
    for_s: float | None = None,
    result: Any = None,
) -> int:
    from aaa.cli import screen
    from aaa_kubectl.site import connected

    async with connected() as site:
        found = await site.run(run)
        spec: dict[str, Any] = {
            "runRef": {"name": run, "uid": found["metadata"]["uid"]},
            "callId": call,
            "argsDigest": digest or _digest(found, call, decision, site),
            "decision": decision,
            "decidedBy": await user_of(site),
        }
        spec |= {"reason": reason} if reason else {}
        spec |= {"result": result} if result is not None else {}
        spec |= {"expiresAt": _moment(for_s)} if for_s is not None else {}
        made = await _create(site, run, call, spec)
        name = str(made["metadata"]["name"])
        judged = await _judged(site, name) if wait else {}
    if judged.get("status") == "False":
        raise DecisionRefused(f"it was not taken ({judged['reason']}): {judged['message']}")
    taken = judged.get("status") == "True"
    if json:
        screen.say_json({"name": name, "spec": spec, "taken": taken})
    elif taken or not wait:
        screen.say(words if taken else f"created ToolDecision {name}")
    else:
        why = f" ({judged['reason']}: {judged['message']})" if judged else ""
        screen.note(
            f"ToolDecision {name} stands, and the operator has not taken it yet{why}; see "
            f"'kubectl describe tdec {name}{site.tail}'"
        )
    return exits.DONE if taken or not wait else exits.WAITING


async def _create(site: Site, run: str, call: str, spec: dict[str, Any]) -> dict[str, Any]:
    made = {
        "apiVersion": "aaa.dev/v1alpha1",
        "kind": "ToolDecision",
        "metadata": {"generateName": f"{run[:200]}-{call.lower()[:40]}-"},
        "spec": spec,
    }
    return await site.api.create("ToolDecision", made, namespace=site.namespace)


async def user_of(site: Site) -> str:
    """The name by which the cluster knows whoever typed the command."""
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    found = await site.api.ask(_REVIEW, asked)
    return str(found["status"]["userInfo"]["username"])


def _digest(run: dict[str, Any], call: str, decision: str, site: Site) -> str:
    """The digest of the call's arguments, as the AgentRun's status shows it."""
    name, approval = run["metadata"]["name"], decision in ("Approve", "Reject")
    status = run.get("status") or {}
    waiting = status.get("pendingApprovals" if approval else "unknownOutcomes") or ()
    for each in waiting:
        if each["callId"] == call:
            return str(each["argsDigest"])
    what = "does not wait for an approval" if approval else "has no unknown outcome to resolve"
    raise CallNotFound(f"call {call} of {name} {what}; see '{PROGRAM} show {name}{site.tail}'")


async def _judged(site: Site, name: str) -> dict[str, Any]:
    """What the operator has made of the decision; empty if it did not look in time."""
    from aaa.clock import SYSTEM_CLOCK

    until_s = SYSTEM_CLOCK.boot_s() + WAIT_S
    while True:
        found = await site.api.get("ToolDecision", name, namespace=site.namespace)
        judged = _condition(found, "Accepted")
        if judged.get("status") in ("True", "False") or SYSTEM_CLOCK.boot_s() >= until_s:
            return judged
        await SYSTEM_CLOCK.sleep(_LOOK_S)


def _moment(for_s: float) -> str:
    from datetime import UTC, datetime

    from aaa.clock import SYSTEM_CLOCK

    at_s = SYSTEM_CLOCK.now_ms() / 1000 + for_s
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(raw: dict[str, Any], type_: str) -> dict[str, Any]:
    conditions: list[dict[str, Any]] = (raw.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each.get("type") == type_), {})


def _is_true(raw: dict[str, Any], type_: str) -> bool:
    return _condition(raw, type_).get("status") == "True"
