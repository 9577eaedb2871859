"""A heartbeat over rows: renew what is still held, tell what was lost."""

from __future__ import annotations

from dataclasses import dataclass, field

from aaa.store import port
from aaa.store.guard import State
from aaa.store.port import HeldCall, Pulse
from aaa.store.rows import Rows


@dataclass(slots=True)
class PartitionBeat:
    """What one partition answers to a pulse."""

    lost_calls: list[HeldCall] = field(default_factory=list)
    lost_apps: list[str] = field(default_factory=list)
    cancelled: list[HeldCall] = field(default_factory=list)
    hot: bool = False
    next_expiry_ms: int | None = None


def renew(rows: Rows, pulse: Pulse, partition: int) -> PartitionBeat:
    """Renew the worker's leases in this partition. A lease that has ended is not revived (G1)."""
    beat, now = PartitionBeat(), rows.now_ms()
    for app in pulse.owned.get(partition, ()):
        owner = rows.owner(app)
        if owner is None or owner.worker != pulse.worker or owner.until_ms <= now:
            beat.lost_apps.append(app)
        else:
            owner.until_ms = now + pulse.ttl_ms
            rows.save_owner(app, owner)
    for held in pulse.calls.get(partition, ()):
        _renew_call(rows, pulse.worker, held, beat)
    for app in pulse.apps:
        beat.hot = beat.hot or _hot(rows, app)
        due = rows.next_expiry(app)
        if due is not None:
            after = max(0, due - now)
            known = beat.next_expiry_ms
            beat.next_expiry_ms = after if known is None else min(known, after)
    return beat


def _renew_call(rows: Rows, worker: str, held: HeldCall, beat: PartitionBeat) -> None:
    call = rows.call(held.run_id, held.request_id)
    now = rows.now_ms()
    mine = (
        call is not None
        and call.state in (State.LEASED, State.VERIFYING)
        and call.holder == worker
        and call.attempt == held.attempt
        and call.due_ms > now
    )
    if call is None or not mine:
        beat.lost_calls.append(held)
        return
    call.due_ms = now + held.lease_ttl_ms
    rows.save_call(call)
    run = rows.run(held.run_id)
    if run is not None and run.cancelling:
        beat.cancelled.append(held)


def _hot(rows: Rows, app: str) -> bool:
    """Whether anything of the app waits for a visit: ready, lost, unfolded or due."""
    timer = rows.next_timer(app)
    return bool(
        rows.dirty(app, 1)
        or rows.expired(app, 1)
        or (timer is not None and timer <= rows.wall_ms())
        or rows.any_ready(app)
    )


def merge(beats: dict[int, PartitionBeat], workers: dict[str, tuple[str, ...]]) -> port.Beat:
    """One reply from the partitions' replies."""
    return port.Beat(
        lost_calls=tuple(held for beat in beats.values() for held in beat.lost_calls),
        lost_owned=tuple((p, app) for p, beat in beats.items() for app in beat.lost_apps),
        cancelled=tuple(held for beat in beats.values() for held in beat.cancelled),
        workers=workers,
        hot=frozenset(p for p, beat in beats.items() if beat.hot),
        next_expiry_ms={
            p: beat.next_expiry_ms for p, beat in beats.items() if beat.next_expiry_ms is not None
        },
    )
