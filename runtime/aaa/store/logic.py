"""The operations of the port, over rows. The reference: other backends must answer alike.

Every function checks first and writes afterwards, so that a refusal has changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from aaa import events as ev
from aaa.events import Event
from aaa.ids import attempt_id, result_id
from aaa.store import claims, port
from aaa.store.drafts import Drafts
from aaa.store.guard import Call, State, Step
from aaa.store.port import Appended, Head, Refused, Settled, Why
from aaa.store.rows import Meta, Owner, Rows, Run, Timer

__all__ = ["apply", "check_mark"]


def check_mark(rows: Rows, seen: int) -> Meta:
    """Move the partition's high-water mark; remember it if the store is behind ``seen`` (G23)."""
    meta = rows.meta()
    if meta.mark < seen:
        meta.behind = max(meta.behind, seen)
    meta.mark += 1
    rows.save_meta(meta)
    return meta


def apply(rows: Rows, operation: port.Operation) -> port.Verdict:  # noqa: PLR0911 - one case each
    """Apply one operation; the caller has made it one transaction."""
    match operation:
        case port.Append():
            return _append(rows, operation)
        case port.Settle():
            return _settle(rows, operation)
        case port.Claim():
            return claims.claim(rows, operation)
        case port.Take():
            return _take(rows, operation)
        case port.Own():
            return _own(rows, operation)
        case port.Create():
            return _create(rows, operation)
        case port.Release():
            return _release(rows, operation)
        case port.Disown():
            return _disown(rows, operation)
        case port.Delete():
            return _delete(rows, operation)
        case port.AcceptLoss():
            return _accept_loss(rows, operation)


def _create(rows: Rows, op: port.Create) -> port.Verdict:
    run = rows.run(op.run_id)
    if run is not None:
        if run.deleted:
            return Refused(why=Why.DELETED, detail=run.digest)
        if run.digest != op.digest:
            return Refused(why=Why.EXISTS, detail=run.digest)
        stored = [rows.event(op.run_id, entry.event.id) for entry in op.entries]
        return Appended(
            events=tuple(event for event in stored if event is not None),
            dups=(True,) * len(stored),
            head=Head(run.seq, run.last_id),
        )
    run = Run(
        run_id=op.run_id,
        app=op.app,
        digest=op.digest,
        status="open",
        seq=0,
        last_id="",
        cursor=0,
        dirty=True,
        cancelling=False,
        suspended=False,
        parked=False,
        awaiting=0,
        unknown=0,
        created_ms=rows.wall_ms(),
        closed_ms=None,
    )
    opened: list[Call] = []
    events, dups = _write_all(rows, run, op.entries, [None] * len(op.entries), opened)
    rows.save_run(run)
    return Appended(events=events, dups=dups, head=Head(run.seq, run.last_id))


# ------------------------------------------------------------------------------------- appending


def _append(rows: Rows, op: port.Append) -> port.Verdict:
    run = rows.run(op.run_id)
    if run is None or run.deleted:
        return Refused(why=Why.NO_RUN if run is None else Why.DELETED)
    known = [rows.event(op.run_id, entry.event.id) for entry in op.entries]
    if known and all(event is not None for event in known):
        return _append_again(rows, run, op, [event for event in known if event is not None])
    if refused := _check_append(rows, run, op, known):
        return refused
    opened: list[Call] = []
    stored, dups = _write_all(rows, run, op.entries, known, opened)
    # A call that is opened and settled by the same decision is nobody's to claim.
    claimed = claims.claim_opened(rows, run, opened, op.offer)
    if op.term is not None:
        run.cursor, run.dirty = run.seq, False
    elif run.status == "open":
        run.dirty = True
    rows.save_run(run)
    return Appended(
        events=stored,
        dups=dups,
        head=Head(run.seq, run.last_id),
        claimed=claimed,
    )


def _append_again(rows: Rows, run: Run, op: port.Append, stored: Sequence[Event]) -> port.Verdict:
    """The same append after a lost reply: the same answer, the same claims, nothing changed."""
    claimed = []
    for entry in op.entries:
        if op.offer is not None and isinstance(entry.effect, port.OpenCall):
            call = rows.call(run.run_id, entry.event.id)
            if call is not None and claims.holds(call, op.offer):
                claimed.append(claims.as_claimed(rows, call))
    return Appended(
        events=tuple(stored),
        dups=(True,) * len(stored),
        head=Head(run.seq, run.last_id),
        claimed=tuple(claimed),
    )


def _check_append(
    rows: Rows, run: Run, op: port.Append, known: Sequence[Event | None]
) -> Refused | None:
    if op.term is not None:
        owner = rows.owner(run.app)
        if owner is None or owner.term != op.term or owner.worker != op.worker:
            return Refused(why=Why.TERM)
    if op.at is not None and op.at != Head(run.seq, run.last_id):
        return Refused(why=Why.MOVED)
    if not all(_settled_by(rows, run, op.worker, *pair) for pair in op.rests_on):
        return Refused(why=Why.MOVED)
    if run.status != "open" and op.term is not None:
        return Refused(why=Why.CLOSED)
    drafts, open_ = Drafts(rows, run), run.status == "open"
    seen: set[str] = set()
    for entry, before in zip(op.entries, known, strict=True):
        if before is None and entry.event.id not in seen:
            if why := drafts.check(entry, open_=open_):
                return Refused(why=why)
            seen.add(entry.event.id)
            open_ = open_ and not isinstance(entry.effect, port.CloseRun)
    return None


def _write_all(
    rows: Rows,
    run: Run,
    entries: Sequence[port.Entry],
    known: Sequence[Event | None],
    opened: list[Call],
) -> tuple[tuple[Event, ...], tuple[bool, ...]]:
    """Write what is not there yet; an id that comes twice in one operation stands once (L2)."""
    stored: list[Event] = []
    dups: list[bool] = []
    written: dict[str, Event] = {}
    for entry, before in zip(entries, known, strict=True):
        event = before if before is not None else written.get(entry.event.id)
        dups.append(event is not None)
        if event is None:
            event = written[entry.event.id] = _write(rows, run, entry, opened)
        stored.append(event)
    return tuple(stored), tuple(dups)


def _write(  # noqa: C901, PLR0912 - one case each
    rows: Rows, run: Run, entry: port.Entry, opened: list[Call]
) -> Event:
    event = claims.add_event(rows, run, entry.event)
    match entry.effect:
        case port.OpenCall() as effect:
            opened.append(_open_call(rows, run, event, effect))
        case port.SettleUnstarted(request_id):
            call = _call(rows, run, request_id)
            if call.state is State.WAITING:
                run.awaiting -= 1
            call.take(Step.DROP)
            call.holder = ""  # no attempt's: nobody's outcome is the result
            rows.save_call(call)
        case port.Grant(request_id, _, for_ms):
            call = _call(rows, run, request_id)
            call.take(Step.GRANT)
            call.approval, call.approval_until_ms = "granted", rows.wall_ms() + for_ms
            call.due_ms, call.shelved = rows.now_ms(), _stopped(run)
            run.awaiting -= 1
            rows.save_call(call)
        case port.Hold(request_id):
            call = _call(rows, run, request_id)
            call.take(Step.HOLD)
            call.approval = "needed"
            run.awaiting += 1
            rows.save_call(call)
        case port.Resolve(request_id):
            call = _call(rows, run, request_id)
            call.unknown = False
            run.unknown -= 1
            rows.save_call(call)
        case port.StartTimer(name_json, after_ms):
            rows.add_timer(
                Timer(event.id, run.run_id, run.app, name_json, rows.wall_ms() + after_ms)
            )
        case port.Flag(name):
            _flag(rows, run, name)
        case port.Require(policy):
            for call in rows.open_calls_of(run.run_id):
                if call.queue.startswith(port.TOOL_QUEUE):
                    call.queue = port.under_policy(call.queue, policy)
                    rows.save_call(call)
        case port.CloseRun(status):
            run.status, run.closed_ms = status, rows.wall_ms()
            _shelve(rows, run)
        case None:
            pass
    return event


def _flag(rows: Rows, run: Run, name: str) -> None:
    match name:
        case "cancel":
            run.cancelling = True
        case "suspend":
            run.suspended = True
        case "park":
            run.parked = True
        case "resume":
            run.suspended = run.parked = False
    _shelve(rows, run)


def _shelve(rows: Rows, run: Run) -> None:
    """Ready calls of a stopped run leave their queue, so that they never stand before others."""
    for call in rows.ready_of(run.run_id):
        if call.shelved != _stopped(run):
            call.shelved = _stopped(run)
            rows.save_call(call)


def _stopped(run: Run) -> bool:
    return run.cancelling or run.suspended or run.parked or run.status != "open"


def _open_call(rows: Rows, run: Run, event: Event, effect: port.OpenCall) -> Call:
    call = Call(
        run_id=run.run_id,
        request_id=event.id,
        seq=event.seq,
        app=run.app,
        queue=effect.queue,
        call_json=effect.call_json,
        name_json=effect.name_json,
        key_json=effect.key_json,
        args_digest=effect.args_digest,
        state=State.WAITING if effect.needs_approval else State.READY,
        due_ms=rows.now_ms(),
        shelved=_stopped(run),
        verify=effect.verify,
        approval="needed" if effect.needs_approval else "",
    )
    if effect.needs_approval:
        run.awaiting += 1
    rows.save_call(call)
    return call


def _call(rows: Rows, run: Run, request_id: str) -> Call:
    call = rows.call(run.run_id, request_id)
    if call is None:
        raise AssertionError("checked before the first write")
    return call


def _settled_by(rows: Rows, run: Run, worker: str, request_id: str, attempt: int) -> bool:
    call = rows.call(run.run_id, request_id)
    return (
        call is not None
        and call.state is State.SETTLED
        and (call.holder, call.attempt) == (worker, attempt)
    )


# -------------------------------------------------------------------------------------- settling


def _settle(rows: Rows, op: port.Settle) -> port.Verdict:
    run = rows.run(op.run_id)
    if run is None or run.deleted:
        return Refused(why=Why.NO_RUN if run is None else Why.DELETED)
    call = rows.call(op.run_id, op.request_id)
    if call is None or not 1 <= op.attempt <= call.attempt:
        return Refused(why=Why.NO_CALL)
    if call.state is State.SETTLED:
        stands = rows.event(op.run_id, result_id(op.request_id))
        mine = call.holder == op.worker and (call.attempt == op.attempt or not op.fence)
        if mine and stands is not None and stands.raw == op.outcome.raw:
            return Settled(verdict="dup", event=stands, head=Head(run.seq, run.last_id))
        return _keep_stale(rows, run, call, op)
    if op.attempt < call.attempt and op.fence:
        return _keep_stale(rows, run, call, op)
    if op.attempt == call.attempt and call.state is State.LEASED and call.holder != op.worker:
        return Refused(why=Why.STRANGER)
    event = claims.add_event(rows, run, op.outcome)
    call.take(Step.SETTLE)
    # The first finisher wins when results are not fenced: a repeat of its settle is then a dup.
    call.holder = op.worker
    call.unknown = op.unknown
    run.unknown += op.unknown
    if run.status == "open":
        run.dirty = True
    rows.save_call(call)
    rows.save_run(run)
    return Settled(verdict="applied", event=event, head=Head(run.seq, run.last_id))


def _keep_stale(rows: Rows, run: Run, call: Call, op: port.Settle) -> Settled:
    """Keep an outcome that came too late for audit; models and unguarded calls keep none."""
    if not (call.guarded and call.queue.startswith(port.TOOL_QUEUE)):
        return Settled(verdict="dropped", event=None, head=Head(run.seq, run.last_id))
    stem = f"{attempt_id(op.request_id, op.attempt)}:stale"
    raw = (
        f'{{"attempt":{op.attempt},"call_id":{call.call_json},"name":{call.name_json},'
        f'"outcome":{op.outcome.raw.decode()},"type":"{op.outcome.type}"}}'
    ).encode()
    # What ``verify=`` said of an attempt must not stand in the way of what the attempt itself says.
    id_, number = stem, 1
    while (event := rows.event(run.run_id, id_)) is not None and event.raw != raw:
        number += 1
        id_ = f"{stem}:{number}"
    if event is None:
        event = claims.add_event(
            rows,
            run,
            Event(
                id=id_,
                run_id=run.run_id,
                type=ev.TOOL_STALE_RESULT,
                raw=raw,
                parent=op.request_id,
            ),
        )
        rows.save_run(run)
    return Settled(verdict="stale", event=event, head=Head(run.seq, run.last_id))


def _release(rows: Rows, op: port.Release) -> port.Verdict:
    call = rows.call(op.run_id, op.request_id)
    if call is None:
        return Refused(why=Why.NO_CALL)
    mine = call.holder == op.worker and call.attempt == op.attempt
    if not (mine and call.state in (State.LEASED, State.VERIFYING)):
        return port.Done(0)
    call.due_ms = min(call.due_ms, rows.now_ms())
    rows.save_call(call)
    return port.Done(1)


# ------------------------------------------------------------------------------------- ownership


def _own(rows: Rows, op: port.Own) -> port.Verdict:
    now, owner = rows.now_ms(), rows.owner(op.app)
    alive = owner is not None and owner.until_ms > now
    if owner is not None and alive and owner.worker != op.worker:
        return port.Busy(owner.worker, owner.until_ms - now)
    # An ownership that ran out is gone even for its old holder: a new one has a new term.
    term = owner.term if owner is not None and alive else (owner.term if owner else 0) + 1
    rows.save_owner(op.app, Owner(op.worker, term, now + op.ttl_ms))
    return port.Owned(term)


def _disown(rows: Rows, op: port.Disown) -> port.Verdict:
    owner = rows.owner(op.app)
    if owner is None or owner.worker != op.worker:
        return port.Done(0)
    owner.until_ms = 0
    rows.save_owner(op.app, owner)
    return port.Done(1)


def _take(rows: Rows, op: port.Take) -> port.Verdict:
    now, owner = rows.now_ms(), rows.owner(op.app)
    if owner is None or owner.worker != op.worker or owner.until_ms <= now:
        return Refused(why=Why.TERM)
    if op.term and op.term != owner.term:
        return Refused(why=Why.TERM)
    for timer in rows.due_timers(op.app, op.limit):
        _fire(rows, timer)
    runs = rows.dirty(op.app, op.limit + 1)
    due = rows.next_timer(op.app)
    return port.Taken(
        runs=tuple((run.run_id, Head(run.seq, run.last_id)) for run in runs[: op.limit]),
        more=len(runs) > op.limit,
        next_timer_ms=None if due is None else max(0, due - rows.wall_ms()),
    )


def _fire(rows: Rows, timer: Timer) -> None:
    rows.drop_timer(timer)
    run = rows.run(timer.run_id)
    if run is None or run.status != "open":
        return
    claims.add_event(
        rows,
        run,
        Event(
            id=f"{timer.set_id}:fired",
            run_id=run.run_id,
            type=ev.TIMER_FIRED,
            raw=f'{{"name":{timer.name_json}}}'.encode(),
            parent=timer.set_id,
        ),
    )
    run.dirty = True
    rows.save_run(run)


# ------------------------------------------------------------------------------ deleting, loss


def _delete(rows: Rows, op: port.Delete) -> port.Verdict:
    run = rows.run(op.run_id)
    if run is None:
        return Refused(why=Why.NO_RUN)
    if run.deleted:
        return port.Done(0)
    if run.status == "open" and not op.force:
        return Refused(why=Why.OPEN)
    rows.erase_run(run)
    run.deleted, run.dirty, run.awaiting, run.unknown = True, False, 0, 0
    if run.status == "open":
        run.status, run.closed_ms = "cancelled", rows.wall_ms()
    rows.save_run(run)
    return port.Done(1)


def _accept_loss(rows: Rows, op: port.AcceptLoss) -> port.Verdict:
    meta = rows.meta()
    if not (meta.behind or op.force):
        return port.Done(0)
    count = 0
    for call in list(rows.open_calls()):
        run = rows.run(call.run_id)
        if run is not None and call.queue.startswith(port.TOOL_QUEUE):
            claims.lose(rows, run, call, accepted_by=op.by)
            count += 1
    meta.mark, meta.behind = max(meta.mark, meta.behind) + 1, 0
    rows.save_meta(meta)
    return port.Done(count)
