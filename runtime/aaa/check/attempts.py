"""Checkers of attempts and their outcomes: who began what how often, and what it came to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from aaa import events as ev
from aaa.check.finding import Finding, Known, Terms
from aaa.check.history import LOST, Call, History, Item

#: Failures of which nobody knows whether the effect happened.
_UNKNOWN: Final = LOST | {"ToolTimeout", "Cancelled"}
#: Failures that say what happened.
_CERTAIN: Final = frozenset(
    (
        "ToolError",
        "ResultRejected",
        "NotExecuted",
        "InvalidArguments",
        "UnknownTool",
        "RepeatedIntent",
        "ApprovalRejected",
    )
)


def claimed_once(history: History, _: Known) -> Iterator[Finding]:
    """G2: an attempt is claimed once, by one worker, of a call that was requested before."""
    begun: dict[tuple[str, int], Item] = {}
    for item in history.of(ev.TOOL_STARTED):
        call = history.call_of(item)
        if call is None or call.request.at > item.at:
            yield item.seq, "an attempt begins of a call that was not requested before"
            continue
        attempt = item.data["attempt"]
        first = begun.setdefault((call.id, attempt), item)
        if first is not item:
            yield (
                item.seq,
                f"attempt {attempt} of call {call.call_id} begins again, after {first.seq}",
            )


def dense_attempts(history: History, _: Known) -> Iterator[Finding]:
    """G3: attempts are 1, 2, 3 …, each with its call, name, worker and key."""
    for call in history.calls.values():
        expected = 0
        for item in call.starts:
            expected += 1
            if item.data["attempt"] != expected:
                yield (
                    item.seq,
                    f"call {call.call_id} begins {item.data['attempt']}, attempt {expected} is next",
                )
                expected = item.data["attempt"]
            yield from _same(item, call, ("call_id", "name"))
            if not item.data["worker"]:
                yield item.seq, f"attempt {expected} of call {call.call_id} names no worker"
    for item in history.of(ev.TOOL_COMPLETED, ev.TOOL_FAILED, ev.TOOL_FENCED, ev.TOOL_STALE_RESULT):
        known = history.call_of(item)
        if known is None:
            continue
        yield from _same(item, known, ("call_id", "name"))
        attempt = item.data.get("attempt")
        numbers = [start.data["attempt"] for start in known.starts if start.at < item.at]
        # Without any record the call ran unguarded (G18), and its attempts are not in the log.
        if attempt is not None and known.starts and attempt not in numbers:
            yield item.seq, f"{item.type} is of attempt {attempt}, which has not begun"


def _same(item: Item, call: Call, names: tuple[str, ...]) -> Iterator[Finding]:
    for name in names:
        asked: Any = call.request.data.get(name)
        if item.data[name] != asked:
            yield item.seq, f"{item.type} has {name} {item.data[name]!r}, its request {asked!r}"


def at_most_once(history: History, known: Known) -> Iterator[Finding]:
    """G4: no second start under ``at_most_once``; an unknown outcome says so, and is resolved once."""
    for call in history.calls.values():
        for first, second in _again(call):
            terms = known.terms.get(first.settings)
            if terms is not None and terms.once and first.settings == second.settings:
                yield second.seq, f"call {call.call_id} may begin once, and did at {first.seq}"
    for item in history.of(ev.TOOL_FAILED):
        if item.data["error"] == "OutcomeUnknown" and not item.effect_unknown:
            yield item.seq, "an unknown outcome must say that its effect is unknown"
        if item.data["error"] == "NotExecuted" and item.effect_unknown:
            yield item.seq, "what is known not to have begun cannot have an unknown effect"
    yield from _resolutions(history)
    yield from _retries(history)


def _resolutions(history: History) -> Iterator[Finding]:
    resolved: set[str] = set()
    for item in history.of(ev.TOOL_RESOLVED):
        call = history.call_of(item)
        result = None if call is None else call.result
        if call is None or result is None or result.at > item.at or not result.effect_unknown:
            yield item.seq, "a resolution of a call whose effect is not unknown"
            continue
        if call.id in resolved:
            yield item.seq, f"call {call.call_id} is resolved a second time"
        resolved.add(call.id)


def _retries(history: History) -> Iterator[Finding]:
    retried: set[str] = set()
    for call in history.calls.values():
        first_id = call.request.data.get("retry_of")
        if first_id is None:
            continue
        first = history.calls.get(first_id) if isinstance(first_id, str) else None
        word = history.named(call.request.event.parent)
        asked = (
            first is not None
            and word is not None
            and word.type == ev.TOOL_RESOLVED
            and word.event.parent == first.id
            and word.data["outcome"] == "retry"
        )
        if not asked or first is None:
            yield call.request.seq, f"call {call.call_id} is a retry that nobody has asked for"
            continue
        if first.id in retried:
            yield call.request.seq, f"call {first.call_id} is retried twice on one word"
        retried.add(first.id)
        if first.key != call.key:
            yield call.request.seq, f"the retry of {first.call_id} has another idempotency key"
        told = 0 if first.result is None else first.result.data.get("attempt", 0)
        before = first.request.data.get("attempts_before", 0) + max(len(first.starts), told)
        if call.request.data.get("attempts_before", before) != before:
            yield call.request.seq, f"the fence of {call.call_id} does not go on from {before}"


def bounded_attempts(history: History, known: Known) -> Iterator[Finding]:
    """G5: at most ``max_attempts`` starts; what is not known of an effect is said."""
    for call in history.calls.values():
        for number, start in enumerate(call.starts, 1):
            terms = known.terms.get(start.settings)
            if terms is not None and not terms.once and number > terms.max_attempts:
                cap = terms.max_attempts
                yield start.seq, f"call {call.call_id} begins {number} times, and may {cap} times"
        result = call.result
        if result is None or result.type != ev.TOOL_FAILED:
            continue
        error = result.data["error"]
        if error in _UNKNOWN - {"OutcomeUnknown"} and not result.effect_unknown:
            yield result.seq, f"{error} must say that its effect is unknown"
        if error in _CERTAIN - {"NotExecuted"} and result.effect_unknown:
            yield result.seq, f"{error} says what happened; its effect cannot be unknown"


def settled_once(history: History, _: Known) -> Iterator[Finding]:
    """G6: a result frees the call for good; an outcome is kept aside only if it cannot count."""
    for call in history.calls.values():
        result = call.result
        if result is not None and not result.from_the_tool:
            for start in call.starts:
                if start.at > result.at:
                    yield start.seq, f"call {call.call_id} begins after its result at {result.seq}"
        for item in call.stale:
            newest = call.newest_start(item.at)
            newer = newest is not None and newest.data["attempt"] > item.data["attempt"]
            if not newer and (result is None or result.at > item.at):
                yield (
                    item.seq,
                    f"the outcome of the current attempt of {call.call_id} is not applied",
                )


def fenced_results(history: History, known: Known) -> Iterator[Finding]:
    """G7: with ``fence_results`` no outcome counts once a newer attempt has begun."""
    for call in history.calls.values():
        result = call.result
        if result is None or "attempt" not in result.data:
            continue
        newest, attempt = call.newest_start(result.at), result.data["attempt"]
        if newest is None or newest.data["attempt"] <= attempt:
            continue
        terms = [known.terms.get(start.settings) for start in call.starts]
        if all(each is not None and each.fence_results for each in terms):
            yield (
                result.seq,
                f"call {call.call_id} ends with attempt {attempt}, a newer began at {newest.seq}",
            )


def fenced_workers(history: History, _: Known) -> Iterator[Finding]:
    """G9: a worker that has lost its lease says so, and records no outcome."""
    for call in history.calls.values():
        for fenced in call.fenced:
            attempt = fenced.data["attempt"]
            if not any(s.data["attempt"] == attempt and s.at < fenced.at for s in call.starts):
                yield fenced.seq, f"attempt {attempt} of {call.call_id} is fenced and never began"
            for item in (*call.results, *call.stale):
                if item.from_the_tool and item.data.get("attempt") == attempt:
                    yield (
                        max(item.seq, fenced.seq),
                        f"fenced attempt {attempt} of call {call.call_id} has an outcome recorded",
                    )


def one_outcome_an_attempt(history: History, _: Known) -> Iterator[Finding]:
    """G15: settling again changes nothing: an attempt has one outcome."""
    for call in history.calls.values():
        result = call.result
        seen: dict[int, int] = {}
        if result is not None and result.from_the_tool and "attempt" in result.data:
            seen[result.data["attempt"]] = result.seq
        for item in call.stale:
            if not item.from_the_tool:
                continue  # what ``verify=`` said of a lost attempt, perhaps
            attempt = item.data["attempt"]
            if attempt in seen:
                yield (
                    item.seq,
                    f"attempt {attempt} of {call.call_id} has an outcome at {seen[attempt]} already",
                )
            seen.setdefault(attempt, item.seq)


def rejected_results(history: History, _: Known) -> Iterator[Finding]:
    """G16: an outcome that cannot be recorded is a failure that says that the tool did run."""
    for item in history.of(ev.TOOL_FAILED):
        if item.data["error"] == "ResultRejected":
            if "did run" not in item.data["message"]:
                yield item.seq, "a rejected result must say that the tool did run"
            if "attempt" not in item.data:
                yield item.seq, "a rejected result must name the attempt that gave it"


def unguarded(history: History, known: Known) -> Iterator[Finding]:
    """G18: what begins without the guard has no record of an attempt, then or later."""
    for item in (call.starts[0] for call in history.calls.values() if call.starts):
        terms = known.terms.get(item.settings)
        if terms is not None and not terms.enabled:
            yield item.seq, f"{item.data['name']} runs unguarded, and yet has a recorded attempt"


def not_run_again(history: History, _: Known) -> Iterator[Finding]:
    """G20: what a tool returned or raised is its outcome, and it is not run again."""
    for call in history.calls.values():
        result = call.result
        if result is not None and result.from_the_tool:
            for start in call.starts:
                if start.at > result.at:
                    yield (
                        start.seq,
                        f"call {call.call_id} begins after the tool's own outcome at {result.seq}",
                    )


def only_tightened(history: History, known: Known) -> Iterator[Finding]:
    """G22: a call keeps delivery, cap and key of its first claim, tightened at most."""
    for call in history.calls.values():
        seen: dict[str, Terms] = {}
        for number, start in enumerate(call.starts, 1):
            policy = start.settings
            before = [terms for name, terms in seen.items() if name != policy]
            if any(terms.once for terms in before):
                yield start.seq, f"a later policy repeats call {call.call_id}, which may begin once"
            elif (cap := min((terms.max_attempts for terms in before), default=number)) < number:
                yield (
                    start.seq,
                    f"a later policy lets call {call.call_id} begin more than {cap} times",
                )
            if start.data["idempotency_key"] != call.starts[0].data["idempotency_key"]:
                yield start.seq, f"the key of call {call.call_id} changes between attempts"
            if policy in known.terms:
                seen[policy] = known.terms[policy]
    yield from _under_another_policy(history)


def _under_another_policy(history: History) -> Iterator[Finding]:
    required = ""
    for item in history.of(ev.RUN_POLICY, ev.TOOL_STARTED):
        if item.type == ev.RUN_POLICY:
            required = item.data["policy"]
        elif required and item.data["policy"] != required:
            name = item.data["name"]
            yield (
                item.seq,
                f"{name} begins under another policy than {required}, which the run requires",
            )


def _again(call: Call) -> Iterator[tuple[Item, Item]]:
    """Each start that is not the first, beside the one before it."""
    yield from zip(call.starts, call.starts[1:], strict=False)
