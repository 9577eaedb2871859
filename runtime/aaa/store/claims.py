"""Claiming over rows: applying :func:`aaa.store.guard.judge` to the calls of a partition.

The events that the store writes itself (``started``, and the outcomes of lost attempts) are
spliced from JSON texts that came with the request, in canonical key order, so that a server-side
script can write the very same bytes without decoding anything.
"""

from __future__ import annotations

from aaa import events as ev
from aaa.events import Event
from aaa.ids import attempt_id, json_text, result_id
from aaa.store import port
from aaa.store.guard import Call, State, Step, in_force, judge
from aaa.store.port import Claimed, Offer, Refused, ToolTerms, Why
from aaa.store.rows import Rows, Run

#: How many lost calls one claim looks at; the rest wait for the next.
SCAN_LIMIT = 1_024

UNKNOWN_TEXT = (
    "The call was interrupted and its outcome is unknown: the action may already have taken "
    "effect. Do not simply repeat it. Verify first whether it happened (look it up), then decide."
)
ABANDONED_TEXT = (
    "Every permitted attempt of this call was lost before it could report a result, so it was "
    "given up. Any of them may have taken effect: verify before doing it again."
)


def add_event(rows: Rows, run: Run, event: Event) -> Event:
    """Give the event its place. The caller saves the run."""
    run.seq += 1
    stored = event.stored(run.seq, rows.wall_ms())
    run.last_id = stored.id
    rows.add_event(stored)
    return stored


def holds(call: Call, offer: Offer) -> bool:
    """Whether this very offer claimed the call and it is still running under it."""
    held = call.state in (State.LEASED, State.VERIFYING)
    return held and call.holder == offer.worker and call.nonce == offer.nonce


def as_claimed(rows: Rows, call: Call) -> Claimed:
    """The reply for a call that is held."""
    request = rows.event(call.run_id, call.request_id)
    if request is None:
        raise AssertionError(f"run {call.run_id}: call without its request {call.request_id}")
    verifying = call.state is State.VERIFYING
    return Claimed(
        run_id=call.run_id,
        request=request,
        attempt=call.attempt,
        job="verify" if verifying else "run",
        lease_ttl_ms=call.lease_ttl_ms,
        delivery=call.delivery,
        queue=call.queue,
        started=None
        if verifying
        else rows.event(call.run_id, attempt_id(call.request_id, call.attempt)),
    )


def claim_opened(
    rows: Rows, run: Run, opened: list[Call], offer: Offer | None
) -> tuple[Claimed, ...]:
    """Claim what a decision has just opened, as far as the offer goes."""
    if offer is None or rows.meta().behind:
        return ()
    claimed: list[Claimed] = []
    for call in opened:
        terms = offer.queues.get(call.queue)
        if terms is None or len(claimed) >= offer.limit or call.state is not State.READY:
            continue
        step = _judge(rows, run, call, terms)
        if step is Step.START:
            _start(rows, run, call, terms, offer)
            claimed.append(as_claimed(rows, call))
    return tuple(claimed)


def claim(rows: Rows, op: port.Claim) -> port.Verdict:
    """Take over lost calls, then take ready ones, longest waiting first."""
    offer = op.offer
    if rows.meta().behind:
        return Refused(why=Why.BEHIND)
    last = rows.last_offer(offer.worker)
    if last is not None and last[0] == offer.nonce:
        calls = [rows.call(run_id, request_id) for run_id, request_id in last[1]]
        again = [as_claimed(rows, call) for call in calls if call and holds(call, offer)]
        return port.Claims(claimed=tuple(again), next_expiry_ms=_next_expiry(rows, op.app))
    claimed: list[Claimed] = []
    settled = _take_over(rows, op, claimed)
    held, more = _take_ready(rows, op, claimed)
    if claimed:
        got = [(one.run_id, one.request.id) for one in claimed]
        rows.save_offer(offer.worker, offer.nonce, got)
    return port.Claims(
        claimed=tuple(claimed),
        settled_runs=tuple(settled),
        held=tuple(held),
        more=more,
        next_expiry_ms=_next_expiry(rows, op.app),
    )


def lose(
    rows: Rows, run: Run, call: Call, step: Step = Step.LOST, *, accepted_by: str = ""
) -> None:
    """Write the one result of a call whose attempt was lost (G4, G5).

    ``accepted_by`` is the person who accepted that the store lost writes (G23).
    """
    unknown = step is Step.LOST
    tool = call.queue.startswith(port.TOOL_QUEUE)
    error = "OutcomeUnknown" if unknown else "ExecutionAbandoned"
    text = UNKNOWN_TEXT if unknown else ABANDONED_TEXT
    accepted = f'"accepted_by":{json_text(accepted_by)},' if accepted_by else ""
    raw = (
        f'{{{accepted}"attempt":{call.attempt},"call_id":{call.call_json},"effect":"unknown",'
        f'"error":"{error}","message":{json_text(text)},"name":{call.name_json}}}'
    )
    add_event(
        rows,
        run,
        Event(
            id=result_id(call.request_id),
            run_id=run.run_id,
            type=ev.TOOL_FAILED if tool else ev.LLM_FAILED,
            raw=raw.encode(),
            parent=call.request_id,
        ),
    )
    run.awaiting -= call.state is State.WAITING
    call.state = State.SETTLED  # from any state, when a person accepts a loss
    call.holder = ""  # no attempt's: nobody's outcome is the result
    call.unknown = tool
    run.unknown += tool
    if run.status == "open":
        run.dirty = True
    rows.save_call(call)
    rows.save_run(run)


def _take_over(rows: Rows, op: port.Claim, claimed: list[Claimed]) -> list[str]:
    settled: list[str] = []
    for call in rows.expired(op.app, SCAN_LIMIT):
        run = rows.run(call.run_id)
        if run is None or run.deleted:
            continue
        terms = op.offer.queues.get(call.queue)
        step = _judge(rows, run, call, terms)
        if step in (Step.LOST, Step.ABANDON):
            lose(rows, run, call, step)
            settled.append(run.run_id)
        elif terms is not None and step is not Step.SKIP and len(claimed) < op.offer.limit:
            _start(rows, run, call, terms, op.offer, verify=step is Step.VERIFY)
            rows.save_run(run)
            claimed.append(as_claimed(rows, call))
    return settled


def _take_ready(rows: Rows, op: port.Claim, claimed: list[Claimed]) -> tuple[list[Claimed], bool]:
    room = op.offer.limit - len(claimed)
    waiting: list[Call] = []
    for queue in op.offer.queues:
        waiting += rows.ready(op.app, queue, room + 1)
    waiting.sort(key=lambda call: (call.due_ms, call.seq))
    held: list[Claimed] = []
    for call in waiting:
        run = rows.run(call.run_id)
        if run is None:
            continue
        terms = op.offer.queues[call.queue]
        step = _judge(rows, run, call, terms)
        if step is Step.HOLD:
            held.append(as_claimed(rows, call))
        elif step is Step.START:
            if len(claimed) >= op.offer.limit:
                return held, True
            _start(rows, run, call, terms, op.offer)
            rows.save_run(run)
            claimed.append(as_claimed(rows, call))
    return held, False


def _judge(rows: Rows, run: Run, call: Call, terms: ToolTerms | None) -> Step:
    return judge(
        call,
        terms,
        now_ms=rows.now_ms(),
        wall_ms=rows.wall_ms(),
        cancelled=run.cancelling or run.status != "open",
        paused=run.suspended or run.parked,
    )


def _start(
    rows: Rows, run: Run, call: Call, terms: ToolTerms, offer: Offer, *, verify: bool = False
) -> None:
    """Lease the call and begin an attempt (or ask ``verify=``). The caller saves the run."""
    call.delivery, call.cap = in_force(call, terms)
    if call.attempt == 0:  # as it began it goes on: its records have no gap (G3, G18)
        call.guarded = terms.guarded
    call.take(Step.VERIFY if verify else Step.START)
    call.holder, call.nonce = offer.worker, offer.nonce
    call.lease_ttl_ms = terms.lease_ttl_ms
    call.due_ms = rows.now_ms() + terms.lease_ttl_ms
    if verify:
        call.verifies += 1
    else:
        call.attempt += 1
        if call.approval == "granted":
            call.approval = "used"
        if call.guarded and call.queue.startswith(port.TOOL_QUEUE):
            _record_start(rows, run, call, terms, offer.worker)
    rows.save_call(call)


def _record_start(rows: Rows, run: Run, call: Call, terms: ToolTerms, worker: str) -> None:
    raw = (
        f'{{"attempt":{call.attempt},"call_id":{call.call_json},'
        f'"idempotency_key":{call.key_json},"name":{call.name_json},'
        f'"policy":{terms.recorded_json},"worker":{json_text(worker)}}}'
    )
    add_event(
        rows,
        run,
        Event(
            id=attempt_id(call.request_id, call.attempt),
            run_id=run.run_id,
            type=ev.TOOL_STARTED,
            raw=raw.encode(),
            parent=call.request_id,
        ),
    )


def _next_expiry(rows: Rows, app: str) -> int | None:
    due = rows.next_expiry(app)
    return None if due is None else max(0, due - rows.now_ms())
