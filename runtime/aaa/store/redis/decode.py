"""Replies of the library as verdicts of the port.

A reply is one string: the lengths of its fields in the first line, then the fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aaa.errors import CorruptHistory
from aaa.events import Event
from aaa.store import port
from aaa.store.port import Claimed, Head, RunInfo


def fields_of(reply: bytes) -> list[bytes]:
    """Cut a reply into its fields."""
    end = reply.index(b"\n")
    found: list[bytes] = []
    at = end + 1
    if end == 0:
        return found
    for length in reply[:end].split(b","):
        upto = at + int(length)
        found.append(reply[at:upto])
        at = upto
    return found


def event_of(run_id: str, seq: int, stored: bytes) -> Event:
    """An event from its stored text. Raises :class:`CorruptHistory` naming run and seq."""
    try:
        time, type_, id_, parent, raw = stored.split(b"\n", 4)
        return Event(
            id=id_.decode(),
            run_id=run_id,
            type=type_.decode(),
            raw=raw,
            parent=_parent(id_, parent),
            seq=seq,
            time=int(time),
        )
    except ValueError:
        raise CorruptHistory(f"run {run_id}, event {seq}: not an event of this store") from None


def _parent(id_: bytes, parent: bytes) -> str | None:
    if parent.startswith(b"="):
        return id_[: int(parent[1:])].decode()
    return parent.removeprefix(b"'").decode() if parent else None


def verdicts_of(operations: tuple[port.Operation, ...], reply: bytes) -> port.Committed:
    """The verdicts of a batch, in order, the mark, and hot. Raises ``RuntimeError`` for a member that
    the library failed on; the others are written all the same.
    """
    fields = fields_of(reply)
    mark, hot, at, verdicts = int(fields[0]), fields[1] == b"1", 2, []
    for op in operations:
        count = int(fields[at])
        verdicts.append(_verdict(op, fields[at + 1 : at + 1 + count]))
        at += 1 + count
    return port.Committed(tuple(verdicts), mark, hot and any(map(port.stirs, operations, verdicts)))


def _verdict(op: port.Operation, fields: list[bytes]) -> port.Verdict:
    take = iter(fields)
    match next(take):
        case b"appended":
            return _appended(op, take)
        case b"settled":
            return _settled(op, take)
        case b"claims":
            return _claims(take)
        case b"refused":
            return port.Refused(why=port.Why(next(take).decode()), detail=next(take).decode())
        case b"owned":
            return port.Owned(int(next(take)))
        case b"busy":
            return port.Busy(next(take).decode(), int(next(take)))
        case b"taken":
            return _taken(take)
        case b"done":
            return port.Done(int(next(take)))
        case _:
            raise RuntimeError(f"the store's library failed: {next(take).decode()}")


def _head(take: Iterator[bytes]) -> Head:
    return Head(int(next(take)), next(take).decode())


def _flag(take: Iterator[bytes]) -> bool:
    return next(take) == b"1"


def _optional(take: Iterator[bytes]) -> int | None:
    value = next(take)
    return int(value) if value else None


def _appended(op: Any, take: Iterator[bytes]) -> port.Appended:
    head = _head(take)
    events, dups = [], []
    for _ in range(int(next(take))):
        dups.append(_flag(take))
        events.append(event_of(op.run_id, int(next(take)), next(take)))
    claimed = _claimed(take)
    if isinstance(op, port.Create) and (asked := int(next(take))):
        dups = [True] * asked
    return port.Appended(events=tuple(events), dups=tuple(dups), head=head, claimed=claimed)


def _settled(op: Any, take: Iterator[bytes]) -> port.Settled:
    verdict, head = next(take).decode(), _head(take)
    seq, stored = int(next(take)), next(take)
    event = event_of(op.run_id, seq, stored) if seq else None
    return port.Settled(verdict=verdict, event=event, head=head)


def _claimed(take: Iterator[bytes]) -> tuple[Claimed, ...]:
    return tuple(_one_claimed(take) for _ in range(int(next(take))))


def _one_claimed(take: Iterator[bytes]) -> Claimed:
    run_id = next(take).decode()
    request = event_of(run_id, int(next(take)), next(take))
    attempt, job = int(next(take)), next(take).decode()
    ttl_ms, delivery = int(next(take)), next(take).decode()
    started_seq, started, queue = int(next(take)), next(take), next(take).decode()
    return Claimed(
        run_id=run_id,
        request=request,
        attempt=attempt,
        job=job,
        lease_ttl_ms=ttl_ms,
        delivery=delivery,
        queue=queue,
        started=event_of(run_id, started_seq, started) if started_seq else None,
    )


def _claims(take: Iterator[bytes]) -> port.Claims:
    claimed = _claimed(take)
    settled = tuple(next(take).decode() for _ in range(int(next(take))))
    return port.Claims(
        claimed=claimed,
        settled_runs=settled,
        held=_claimed(take),
        more=_flag(take),
        next_expiry_ms=_optional(take),
    )


def _taken(take: Iterator[bytes]) -> port.Taken:
    runs = tuple((next(take).decode(), _head(take)) for _ in range(int(next(take))))
    return port.Taken(runs=runs, more=_flag(take), next_timer_ms=_optional(take))


def runs_of(take: Iterator[bytes]) -> Iterator[RunInfo]:
    """Runs' rows, as many as there are."""
    for run_id in take:
        yield RunInfo(
            run_id=run_id.decode(),
            app=next(take).decode(),
            digest=next(take).decode(),
            status=next(take).decode(),
            head=_head(take),
            cursor=int(next(take)),
            cancelling=_flag(take),
            suspended=_flag(take),
            parked=_flag(take),
            deleted=_flag(take),
            awaiting=int(next(take)),
            unknown=int(next(take)),
            created_ms=int(next(take)),
            closed_ms=_optional(take),
        )
