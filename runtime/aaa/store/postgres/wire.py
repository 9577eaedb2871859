"""Operations and verdicts as they travel: structure as JSON, payloads as bytes beside it.

Payloads stand in one array of bytes, and JSON names them by their place in it (from 1). In replies
they stand in the order in which the reply names their events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from aaa.events import Event
from aaa.ids import json_text
from aaa.store import port
from aaa.store.port import Claimed, Head, Operation, Verdict

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """The arguments of one commit."""

    operations: str
    raws: list[bytes]
    sessions: list[int]

    @property
    def arguments(self) -> tuple[str, list[bytes], list[int]]:
        """In the order that ``fn_commit`` takes them."""
        return self.operations, self.raws, self.sessions


def workers_of(operations: Sequence[Operation]) -> set[str]:
    """The workers that these operations give a lease to: each needs its session."""
    return {name for op in operations if (name := _leaseholder(op))}


def _leaseholder(op: Operation) -> str | None:
    match op:
        case port.Own():
            return op.worker
        case port.Claim():
            return op.offer.worker
        case port.Append() if op.offer is not None:
            return op.offer.worker
        case _:
            return None


def encode(operations: Sequence[Operation], sessions: Mapping[str, int]) -> Batch:
    """Operations for ``fn_commit``; ``sessions`` has one for each of :func:`workers_of`."""
    raws: list[bytes] = []
    shown = [_operation(op, raws, sessions) for op in operations]
    return Batch(orjson.dumps(shown).decode(), raws, sorted(set(sessions.values())))


def _operation(op: Operation, raws: list[bytes], sessions: Mapping[str, int]) -> Json:  # noqa: PLR0911 - one case each
    match op:
        case port.Append():
            return _append(op, raws, sessions)
        case port.Settle():
            raws.append(op.outcome.raw)
            return {
                "op": "settle",
                "run": op.run_id,
                "request": op.request_id,
                "attempt": op.attempt,
                "worker": op.worker,
                "id": op.outcome.id,
                "type": str(op.outcome.type),
                "parent": op.outcome.parent,
                "raw": len(raws),
                "fence": op.fence,
                "unknown": op.unknown,
            }
        case port.Claim():
            return {"op": "claim", "app": op.app, "offer": _offer(op.offer, sessions)}
        case port.Take():
            return {
                "op": "take",
                "app": op.app,
                "worker": op.worker,
                "term": op.term,
                "limit": op.limit,
            }
        case port.Own():
            return {
                "op": "own",
                "app": op.app,
                "worker": op.worker,
                "session": sessions[op.worker],
                "ttl": op.ttl_ms,
            }
        case port.Create():
            return {
                "op": "create",
                "run": op.run_id,
                "app": op.app,
                "digest": op.digest,
                "entries": [_entry(entry, raws) for entry in op.entries],
            }
        case port.Release():
            return {
                "op": "release",
                "run": op.run_id,
                "request": op.request_id,
                "attempt": op.attempt,
                "worker": op.worker,
            }
        case port.Disown():
            return {"op": "disown", "app": op.app, "worker": op.worker}
        case port.Delete():
            return {"op": "delete", "run": op.run_id, "force": op.force}
        case port.AcceptLoss():
            return {"op": "accept_loss", "force": op.force, "by_json": json_text(op.by)}


def _append(op: port.Append, raws: list[bytes], sessions: Mapping[str, int]) -> Json:
    shown: Json = {
        "op": "append",
        "run": op.run_id,
        "worker": op.worker,
        "entries": [_entry(entry, raws) for entry in op.entries],
    }
    if op.term is not None:
        shown["term"] = op.term
    if op.at is not None:
        shown["at"] = [op.at.seq, op.at.last_id]
    if op.rests_on:
        shown["rests_on"] = [list(pair) for pair in op.rests_on]
    if op.offer is not None:
        shown["offer"] = _offer(op.offer, sessions)
    return shown


def _offer(offer: port.Offer, sessions: Mapping[str, int]) -> Json:
    return {
        "worker": offer.worker,
        "worker_json": json_text(offer.worker),
        "session": sessions[offer.worker],
        "nonce": offer.nonce,
        "limit": offer.limit,
        "queues": {
            queue: {
                "delivery": str(terms.delivery),
                "max": terms.max_attempts,
                "ttl": terms.lease_ttl_ms,
                "policy": terms.recorded_json,
                "guarded": terms.guarded,
                "approve": terms.needs_approval,
            }
            for queue, terms in offer.queues.items()
        },
    }


def _entry(entry: port.Entry, raws: list[bytes]) -> Json:
    raws.append(entry.event.raw)
    shown: Json = {
        "id": entry.event.id,
        "type": str(entry.event.type),
        "parent": entry.event.parent,
        "raw": len(raws),
    }
    if entry.effect is not None:
        shown["effect"] = _effect(entry.effect)
    return shown


def _effect(effect: port.Effect) -> Json:  # noqa: PLR0911 - one case each
    match effect:
        case port.OpenCall():
            return {
                "kind": "open",
                "queue": effect.queue,
                "call": effect.call_json,
                "name": effect.name_json,
                "key": effect.key_json,
                "digest": effect.args_digest,
                "approve": effect.needs_approval,
                "verify": effect.verify,
            }
        case port.SettleUnstarted(request_id):
            return {"kind": "settle", "request": request_id}
        case port.Grant(request_id, digest, for_ms):
            return {"kind": "grant", "request": request_id, "digest": digest, "for_ms": for_ms}
        case port.Hold(request_id):
            return {"kind": "hold", "request": request_id}
        case port.Resolve(request_id):
            return {"kind": "resolve", "request": request_id}
        case port.Flag(name):
            return {"kind": "flag", "name": name}
        case port.Require(policy):
            return {"kind": "require", "policy": policy}
        case port.CloseRun(status):
            return {"kind": "close", "status": status}
        case port.StartTimer(name_json, after_ms):
            return {"kind": "timer", "name": name_json, "after_ms": after_ms}


# ---------------------------------------------------------------------------------------- replies


def decode(op: Operation, shown: Json, raws: Sequence[bytes]) -> Verdict:
    """The verdict on one operation."""
    payloads = iter(raws)
    match shown["v"]:
        case "refused":
            return port.Refused(why=port.Why(shown["why"]), detail=shown["detail"])
        case "appended":
            return _appended(op, shown, payloads)
        case "claims":
            return port.Claims(
                claimed=tuple(_claimed(one, payloads) for one in shown["claimed"]),
                held=tuple(_claimed(one, payloads) for one in shown["held"]),
                settled_runs=tuple(shown["settled"]),
                more=shown["more"],
                next_expiry_ms=shown["next"],
            )
        case "settled":
            return _settled(op, shown, payloads)
        case "owned":
            return port.Owned(shown["term"])
        case "busy":
            return port.Busy(shown["owner"], shown["for"])
        case "taken":
            return port.Taken(
                runs=tuple((run, Head(seq, last)) for run, seq, last in shown["runs"]),
                more=shown["more"],
                next_timer_ms=shown["next"],
            )
        case "done":
            return port.Done(shown["count"])
        case other:
            raise AssertionError(f"a verdict that nobody gives: {other}")


def _appended(op: Operation, shown: Json, raws: Iterator[bytes]) -> port.Appended:
    if not isinstance(op, port.Append | port.Create):
        raise TypeError("only appends are answered so")
    if shown.get("again"):
        events = tuple(_stored(op.run_id, one, raws) for one in shown["events"])
        return port.Appended(
            events=events, dups=(True,) * len(op.entries), head=Head(shown["seq"], shown["last"])
        )
    events = tuple(
        _placed(entry.event, op.run_id, one, raws)
        for entry, one in zip(op.entries, shown["events"], strict=True)
    )
    return port.Appended(
        events=events,
        dups=tuple(len(one) > 2 for one in shown["events"]),
        head=Head(shown["seq"], shown["last"]),
        claimed=tuple(_claimed(one, raws) for one in shown["claimed"]),
    )


def _settled(op: Operation, shown: Json, raws: Iterator[bytes]) -> port.Settled:
    if not isinstance(op, port.Settle):
        raise TypeError("only a settle is answered so")
    one = shown["event"]
    return port.Settled(
        verdict=shown["verdict"],
        event=None if one is None else _placed(op.outcome, op.run_id, one, raws),
        head=Head(shown["seq"], shown["last"]),
    )


def _claimed(shown: Json, raws: Iterator[bytes]) -> Claimed:
    run, started = shown["run"], shown["started"]
    return Claimed(
        run_id=run,
        request=_stored(run, shown["request"], raws),
        attempt=shown["attempt"],
        job=shown["job"],
        lease_ttl_ms=shown["ttl"],
        delivery=shown["delivery"],
        queue=shown["queue"],
        started=None if started is None else _stored(run, started, raws),
    )


def _placed(event: Event, run_id: str, shown: list[Any], raws: Iterator[bytes]) -> Event:
    """An event that was just written, from ``[seq, time]``; or one that stood there already."""
    return event.stored(*shown) if len(shown) == 2 else _stored(run_id, shown, raws)


def _stored(run_id: str, shown: list[Any], raws: Iterator[bytes]) -> Event:
    seq, time, id_, type_, parent = shown
    return Event(
        id=id_, run_id=run_id, type=type_, raw=next(raws), parent=parent, seq=seq, time=time
    )
