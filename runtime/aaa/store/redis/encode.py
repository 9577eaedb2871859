r"""Operations as the flat arguments that ``wire.lua`` reads, and events as they are stored.

An event is stored as ``time\ntype\nid\nparent\nraw``; its place in the run's list is its seq. The
four parts before ``raw`` hold no line break (checked here), so that splitting needs no escapes.
A parent that is the beginning of the event's id is written as ``=<its bytes>``; one that could be
taken for that gets a ``'`` before it; none is nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from aaa.errors import ConfigError
from aaa.events import Event
from aaa.ids import check_run_id, json_text
from aaa.store import port

Fields = list[bytes]

#: Effects that only name their call.
_OF_A_CALL: Final = {
    port.SettleUnstarted: b"drop",
    port.Hold: b"hold",
    port.Resolve: b"resolve",
}


def operation(op: port.Operation) -> Fields:
    """The fields of one operation, its name first."""
    match op:
        case port.Append():
            return _append(op)
        case port.Settle():
            return [
                b"settle", _run(op.run_id), _name(op.request_id), b"%d" % op.attempt,
                _name(op.worker), *_event(op.outcome), _flag(op.fence), _flag(op.unknown),
            ]  # fmt: skip
        case port.Claim():
            return [b"claim", _name(op.app), *_offer(op.offer)]
        case port.Create():
            return [
                b"create", _run(op.run_id), _name(op.app), _name(op.digest), *_entries(op.entries),
            ]  # fmt: skip
        case port.Delete():
            return [b"delete", _run(op.run_id), _flag(op.force)]
        case port.Release():
            return [
                b"release", _run(op.run_id), _name(op.request_id), b"%d" % op.attempt,
                _name(op.worker),
            ]  # fmt: skip
        case _:
            return _ownership(op)


def _ownership(op: port.Own | port.Disown | port.Take | port.AcceptLoss) -> Fields:
    match op:
        case port.Own():
            return [b"own", _name(op.app), _name(op.worker), b"%d" % op.ttl_ms]
        case port.Disown():
            return [b"disown", _name(op.app), _name(op.worker)]
        case port.Take():
            return [
                b"take", _name(op.app), _name(op.worker), b"%d" % op.term, b"%d" % op.limit,
            ]  # fmt: skip
        case port.AcceptLoss():
            return [b"accept_loss", _flag(op.force), json_text(op.by).encode()]


def _append(op: port.Append) -> Fields:
    fields = [b"append", _run(op.run_id), *_entries(op.entries)]
    if op.at is None:
        fields.append(b"0")
    else:
        fields += (b"1", b"%d" % op.at.seq, op.at.last_id.encode())
    if op.term is None:
        fields.append(b"0")
    else:
        fields += (b"1", b"%d" % op.term, _name(op.worker))
    fields += (b"%d" % len(op.rests_on), _name(op.worker))
    for request_id, attempt in op.rests_on:
        fields += (_name(request_id), b"%d" % attempt)
    if op.offer is None:
        fields.append(b"0")
    else:
        fields.append(b"1")
        fields += _offer(op.offer)
    return fields


def _offer(offer: port.Offer) -> Fields:
    fields = [
        _name(offer.worker), json_text(offer.worker).encode(), _name(offer.nonce),
        b"%d" % offer.limit,
    ]  # fmt: skip
    fields += _terms(offer.queues)
    return fields


def _terms(queues: Mapping[str, port.ToolTerms]) -> Fields:
    fields = [b"%d" % len(queues)]
    for queue, terms in queues.items():
        fields += (
            _name(queue), terms.delivery.encode(), b"%d" % terms.max_attempts,
            b"%d" % terms.lease_ttl_ms, _flag(terms.guarded), _flag(terms.needs_approval),
            terms.recorded_json.encode(),
        )  # fmt: skip
    return fields


def _entries(entries: Iterable[port.Entry]) -> Fields:
    fields, count = [b""], 0
    for entry in entries:
        count += 1
        fields += _event(entry.event)
        fields += _effect(entry.effect)
    fields[0] = b"%d" % count
    return fields


def _event(event: Event) -> tuple[bytes, bytes]:
    id_ = _name(event.id)
    parent = _parent(event.id, event.parent)
    return id_, b"%b\n%b\n%b\n%b" % (_name(event.type), id_, parent, event.raw)


def _parent(id_: str, parent: str | None) -> bytes:
    if parent is None:
        return b""
    if parent and id_.startswith(parent):
        return b"=%d" % len(parent.encode())
    return b"'" + parent.encode() if parent[:1] in ("", "=", "'") else _name(parent)


def _effect(effect: port.Effect | None) -> Fields:
    match effect:
        case None:
            return [b"none"]
        case port.OpenCall():
            return [
                b"open", _name(effect.queue), effect.call_json.encode(), effect.name_json.encode(),
                effect.key_json.encode(), effect.args_digest.encode(),
                _flag(effect.needs_approval), _flag(effect.verify),
            ]  # fmt: skip
        case port.Grant():
            return [
                b"grant", _name(effect.request_id), effect.args_digest.encode(),
                b"%d" % effect.for_ms,
            ]  # fmt: skip
        case port.SettleUnstarted() | port.Hold() | port.Resolve():
            return [_OF_A_CALL[type(effect)], _name(effect.request_id)]
        case port.Flag():
            return [b"flag", effect.name.encode()]
        case port.Require():
            return [b"require", _name(effect.policy)]
        case port.CloseRun():
            return [b"close", effect.status.encode()]
        case port.StartTimer():
            return [b"timer", effect.name_json.encode(), b"%d" % effect.after_ms]


def _flag(value: bool) -> bytes:
    return b"1" if value else b"0"


def _run(run_id: str) -> bytes:
    return check_run_id(run_id).encode()


def _name(name: str) -> bytes:
    if "\n" in name:
        raise ConfigError(f"{name!r} cannot be a name in the store: it has a line break")
    return name.encode()
