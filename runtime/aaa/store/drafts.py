"""What the effects of one append do to its calls, checked before anything is written."""

from __future__ import annotations

from dataclasses import dataclass

from aaa.store import port
from aaa.store.guard import State
from aaa.store.port import Why
from aaa.store.rows import Rows, Run

_CallEffect = port.SettleUnstarted | port.Grant | port.Hold | port.Resolve


class Drafts:
    """The calls as the earlier entries of the same append leave them, before any is written.

    So a decision may open a call and settle it at once, and two effects on one call are judged in
    their order instead of failing in the middle of the write.
    """

    def __init__(self, rows: Rows, run: Run) -> None:
        self._rows, self._run = rows, run
        self._calls: dict[str, _Draft] = {}

    def check(self, entry: port.Entry, *, open_: bool) -> Why | None:
        effect = entry.effect
        if effect is None:
            return None
        if not open_ and not isinstance(effect, port.Resolve):
            return Why.CLOSED
        if isinstance(effect, port.OpenCall):
            state = State.WAITING if effect.needs_approval else State.READY
            self._calls[entry.event.id] = _Draft(
                state,
                effect.args_digest,
                unknown=False,
                model=effect.queue.startswith(port.LLM_QUEUE),
            )
        elif isinstance(effect, _CallEffect):
            draft = self._draft(effect.request_id)
            return Why.NO_CALL if draft is None else draft.check(effect)
        return None

    def _draft(self, request_id: str) -> _Draft | None:
        if request_id not in self._calls:
            call = self._rows.call(self._run.run_id, request_id)
            if call is None:
                return None
            self._calls[request_id] = _Draft(
                call.state,
                call.args_digest,
                unknown=call.unknown,
                model=call.queue.startswith(port.LLM_QUEUE),
            )
        return self._calls[request_id]


@dataclass(slots=True)
class _Draft:
    """What the checks need to know of a call."""

    state: State
    args_digest: str
    unknown: bool
    model: bool

    def check(self, effect: _CallEffect) -> Why | None:
        """Why the effect is refused; otherwise the draft has taken it."""
        match effect:
            case port.SettleUnstarted():
                if self.state is State.SETTLED:
                    return Why.SETTLED
                if self.state not in (State.WAITING, State.READY) and not self.model:
                    return Why.STARTED
                self.state = State.SETTLED
            case port.Grant():
                if self.args_digest != effect.args_digest:
                    return Why.DIGEST
                if self.state is not State.WAITING:
                    return Why.NOT_WAITING
                self.state = State.READY
            case port.Hold():
                if self.state is not State.READY:
                    return Why.STARTED
                self.state = State.WAITING
            case port.Resolve():
                if not self.unknown:
                    return Why.NOT_WAITING
                self.unknown = False
        return None
