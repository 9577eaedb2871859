"""The store port: what every backend promises, in one file.

A store holds runs in partitions. Everything that changes a partition goes through
:meth:`EventStore.commit`: a batch of operations, each with its own verdict, over one atomic
boundary per operation. A member that loses its race is :class:`Refused` alone; the others stand.

Three rules hold for every operation:

- *All or nothing*: its events, bus entries, leases and counters are one write (L6, G2, G6).
- *Repeatable*: sending the same operation again after a lost reply changes nothing and answers as
  the first time (L2, G2, G15).
- *By the store's clock*: no time of a worker's is ever compared with a lease.

After a cancellation, or when :class:`aaa.errors.StoreUnavailable` is raised, the batch may or may
not have been written: send it again. Payloads are stored as they were encoded and never decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from aaa.events import Event
from aaa.ids import json_text

DEFAULT_PARTITIONS: Final = 64
DEFAULT_APP: Final = "local"

#: The prefixes of queue names; a queue is one capability of one app: ``tool/refund``, ``llm/model``.
TOOL_QUEUE: Final = "tool/"
LLM_QUEUE: Final = "llm/"
#: The one queue of model requests.
MODEL_QUEUE: Final = f"{LLM_QUEUE}model"
#: Between a queue's name and the policy that its calls must be claimed under; no tool's name has it.
POLICY_MARK: Final = "#"


def tool_queue(tool: str, policy: str = "") -> str:
    """The queue of a tool's calls; those of runs that require a policy have one of their own."""
    return under_policy(TOOL_QUEUE + tool, policy)


def under_policy(queue: str, policy: str) -> str:
    """The same queue under another policy; ``""``: under none in particular."""
    bare = queue.partition(POLICY_MARK)[0]
    return f"{bare}{POLICY_MARK}{policy}" if policy else bare


def policy_of(queue: str) -> str:
    """The policy that a queue's calls must be claimed under, or ``""``."""
    return queue.partition(POLICY_MARK)[2]


class Why(StrEnum):
    """Why an operation was refused. The caller reloads, or tells a person."""

    MOVED = "moved"  # the run's head is not where the decision was taken (L8)
    TERM = "term"  # the partition's ownership has changed (L8)
    NO_RUN = "no_run"
    NO_CALL = "no_call"
    EXISTS = "exists"  # the run id is taken by other input
    DELETED = "deleted"  # a tombstone stands there (L12)
    CLOSED = "closed"  # the run has ended
    SETTLED = "settled"  # the call has its result
    STARTED = "started"  # an attempt has begun, so NotExecuted would be a lie
    STRANGER = "stranger"  # the attempt is another worker's
    DIGEST = "digest"  # an approval for other arguments (G19)
    NOT_WAITING = "not_waiting"  # no approval or resolution is awaited
    BEHIND = "behind"  # the store has gone back in time (G23)
    OPEN = "open"  # the run has not ended, so it is not deleted


# --------------------------------------------------------------------------- effects of an event


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall:
    """A request: its event causes a bus entry, ready at once or once a person approves.

    ``call_json``, ``name_json`` and ``key_json`` are JSON texts that the store splices into the
    events that it writes itself.
    """

    queue: str
    call_json: str
    name_json: str
    key_json: str
    args_digest: str
    needs_approval: bool = False
    verify: bool = False


@dataclass(frozen=True, slots=True)
class SettleUnstarted:
    """The event is the result of a call of which no attempt has begun. Else ``STARTED``.

    A model request may be dropped so even while it is asked: a late answer is then dropped too.
    """

    request_id: str


@dataclass(frozen=True, slots=True)
class Grant:
    """A person's approval; ``for_ms`` from now by the store's clock."""

    request_id: str
    args_digest: str
    for_ms: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Make a ready, unstarted call wait for a person (again)."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Resolve:
    """A person has found out what became of an unknown outcome (G4)."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Flag:
    """Stop or free a run: ``cancel`` is for good, ``suspend`` and ``park`` until lifted."""

    name: str  # "cancel" | "suspend" | "resume" | "park"


@dataclass(frozen=True, slots=True)
class Require:
    """From now on the run's tool calls are claimed under this policy only, the open ones too.

    Their queues change, and whoever offers none of the new ones gets none of the calls. A call
    that an attempt runs keeps its lease; should it be lost, the next attempt begins under the new
    policy, tightened by what the call was first claimed with (G22). A decision that was taken
    before is refused, since the head has moved; so calls are opened under the policy in force.
    """

    policy: str


@dataclass(frozen=True, slots=True)
class CloseRun:
    """The event ends the run with this status."""

    status: str


@dataclass(frozen=True, slots=True)
class StartTimer:
    """The event sets a timer; ``aaa.timer.fired`` (id ``<event id>:fired``) follows (L14)."""

    name_json: str
    after_ms: int


Effect = (
    OpenCall | SettleUnstarted | Grant | Hold | Resolve | Flag | Require | CloseRun | StartTimer
)


@dataclass(frozen=True, slots=True)
class Entry:
    """An event to append, with what it causes on the bus in the same write."""

    event: Event
    effect: Effect | None = None


# ----------------------------------------------------------------------------------- operations


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTerms:
    """Under which policy a worker offers to run the calls of one queue."""

    delivery: str
    max_attempts: int
    lease_ttl_ms: int
    #: What an attempt records: the policy that the run requires, else ``settings``.
    policy: str = ""
    guarded: bool = True
    needs_approval: bool = False
    #: Hash of the tool's settings under the required policy; recorded beside it.
    settings: str = ""

    @property
    def recorded_json(self) -> str:
        """The value of ``policy`` in ``aaa.tool.started``, as JSON text, and what follows it there."""
        policy = json_text(self.policy)
        return f'{policy},"settings":{json_text(self.settings)}' if self.settings else policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A worker's offer to take calls: at most ``limit``, only from the queues that it names.

    ``nonce`` names this offer: the same nonce again answers with the same claims (G2).
    """

    worker: str
    nonce: str
    limit: int
    queues: Mapping[str, ToolTerms]


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a run's log: the seq and id of its last event."""

    seq: int
    last_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Begin a run if it is absent. The same id and digest again: the same run, ``dup``."""

    run_id: str
    app: str
    digest: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Append to a run. With ``term`` and ``at`` it is a decision (L8) and moves the cursor.

    ``rests_on`` names (request, attempt) pairs of ``worker``: the append is refused with ``MOVED``
    unless each request's result is what that attempt settled. So a decision may travel with the
    settles that cause it, and falls with them; the head alone does not tell whose result stands.
    ``offer`` claims, in the same operation, the calls that these entries open.
    """

    run_id: str
    entries: tuple[Entry, ...]
    at: Head | None = None
    term: int | None = None
    worker: str = ""
    rests_on: tuple[tuple[str, int], ...] = ()
    offer: Offer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Take over lost calls and take ready ones of an app in this partition (G2, G4, G5)."""

    app: str
    offer: Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Record the outcome of an attempt (G6): result, release, acknowledgement, one write.

    ``outcome`` is the event ``R:result``. ``unknown`` says that its effect is unknown.
    """

    run_id: str
    request_id: str
    attempt: int
    worker: str
    outcome: Event
    fence: bool = True
    unknown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Give a lease back before its time; the attempt counts as lost."""

    run_id: str
    request_id: str
    attempt: int
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """Become, or stay, the owner of (app, this partition) if nobody else holds it."""

    app: str
    worker: str
    ttl_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Disown:
    """Give the partition back."""

    app: str
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """For the owner: fire due timers, then list runs whose log has moved past their cursor."""

    app: str
    worker: str
    term: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Remove a closed run; a tombstone stays (L12). ``force`` also removes an open one."""

    run_id: str
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptLoss:
    """A person accepts that the store lost writes: open tool calls become OutcomeUnknown (G23).

    That includes calls that wait for an approval: it may have been given, used and lost. ``force``
    is for a backup that was restored while nobody was there to notice: without it, a store that
    is not known to have gone back is left as it is. ``by`` stands in each such call's result.
    """

    by: str
    force: bool = False


Operation = Create | Append | Claim | Settle | Release | Own | Disown | Take | Delete | AcceptLoss


# ------------------------------------------------------------------------------------- verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The operation changed nothing."""

    why: Why
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """One call that the worker now holds.

    ``job`` is ``run`` (attempt ``attempt`` begins; ``started`` is its record, if one is kept) or
    ``verify`` (ask what became of lost attempt ``attempt``; nothing is started).
    """

    run_id: str
    request: Event
    attempt: int
    job: str
    lease_ttl_ms: int
    delivery: str
    started: Event | None = None
    #: Where it stands; its policy is the one that the call is to be run under.
    queue: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The stored events, in the order of the entries; ``dups`` says which stood there already."""

    events: tuple[Event, ...]
    dups: tuple[bool, ...]
    head: Head
    claimed: tuple[Claimed, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What was claimed; when the next lease can expire or the next ready call stands there."""

    claimed: tuple[Claimed, ...]
    settled_runs: tuple[str, ...] = ()  # runs in which a lost call got its unknown outcome
    held: tuple[Claimed, ...] = ()  # ready calls that need an approval first: append a Hold
    more: bool = False  # calls are ready beyond ``limit``
    next_expiry_ms: int | None = None  # from now, by the store's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """``applied``, ``dup`` (this attempt's result stands), ``stale`` (kept for audit), ``dropped``."""

    verdict: str
    event: Event | None
    head: Head


@dataclass(frozen=True, slots=True)
class Owned:
    """The partition is the worker's, under this term."""

    term: int


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else's, for at least so long unless it is renewed or given back."""

    owner: str
    for_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Runs to fold and decide: their ids, and the head that the store has for each."""

    runs: tuple[tuple[str, Head], ...]
    more: bool = False
    next_timer_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The operation has no more to say."""

    count: int = 0


Verdict = Refused | Appended | Claims | Settled | Owned | Busy | Taken | Done


@dataclass(frozen=True, slots=True)
class Committed:
    """The verdicts, in order, and the partition's high-water mark after the batch (G23).

    ``hot``: unfolded runs or ready calls are left in the partition, and the batch has stirred it.
    """

    verdicts: tuple[Verdict, ...]
    mark: int
    hot: bool = False


def stirs(operation: Operation, verdict: Verdict) -> bool:
    """Whether an operation can have made something ready. Looking for work is no news of work:
    a worker that is woken by a claim that took nothing would claim again, for ever.
    """
    if isinstance(operation, Claim):
        return isinstance(verdict, Claims) and bool(verdict.settled_runs)
    return not isinstance(operation, Own | Take)


# -------------------------------------------------------------------------------------- renewal


@dataclass(frozen=True, slots=True)
class HeldCall:
    """A call lease to renew: holder is the renewing worker."""

    run_id: str
    request_id: str
    attempt: int
    lease_ttl_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """One heartbeat of one worker incarnation: everything that it holds, renewed together.

    ``owned`` maps partitions to the apps owned there; ``calls`` maps partitions to held calls.
    ``apps`` are the apps that it serves, for the membership. ``info`` is what the worker says of
    itself; ``None`` leaves what it said last, so that it need not travel with every heartbeat.
    """

    worker: str
    apps: tuple[str, ...]
    ttl_ms: int
    owned: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    calls: Mapping[int, tuple[HeldCall, ...]] = field(default_factory=dict)
    info: bytes | None = b"{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The reply to a pulse: what was lost, what is to be cancelled, who else is alive.

    ``hot`` names partitions in which something of the worker's apps is ready, dirty, expired or
    unowned: visit them. ``next_expiry_ms`` is, by partition, when another worker's lease can end.
    """

    lost_calls: tuple[HeldCall, ...] = ()
    lost_owned: tuple[tuple[int, str], ...] = ()
    cancelled: tuple[HeldCall, ...] = ()
    workers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # app → live workers
    hot: frozenset[int] = frozenset()
    next_expiry_ms: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A worker incarnation that lives. ``info`` is what it says of itself in its pulses."""

    worker: str
    apps: tuple[str, ...]
    info: bytes = b"{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """Who lives, at one moment of the store's clock.

    ``server`` names the server process, where there is one: after a restart or a failover it is
    another, and leases that are gone may have gone with the old one.
    """

    now_ms: int
    server: str
    members: tuple[Member, ...] = ()


class Renewer(Protocol):
    """A blocking connection for the heartbeat thread: it works while the event loop is blocked."""

    def pulse(self, pulse: Pulse) -> Beat:
        """Renew all that is still held. Raises ``StoreUnavailable``; nothing is lost by that."""
        ...

    def leave(self, worker: str) -> None:
        """Take the worker off the membership (a clean exit)."""
        ...

    def close(self) -> None:
        """Free the connection. Never raises."""
        ...


# ---------------------------------------------------------------------------------------- reads


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A run as the store's index knows it, without its log. Times: milliseconds, store's clock.

    ``status``: ``open``, ``completed``, ``failed`` or ``cancelled``.
    """

    run_id: str
    app: str
    digest: str
    status: str
    head: Head
    cursor: int
    cancelling: bool
    suspended: bool
    parked: bool
    awaiting: int  # calls that wait for an approval
    unknown: int  # unknown outcomes that nobody has resolved
    created_ms: int
    closed_ms: int | None
    deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreInfo:
    """What the store is and what its settings promise."""

    backend: str
    identity: str
    partitions: int
    schema: int
    server: str = ""
    warnings: tuple[str, ...] = ()  # settings that lose acknowledged writes, a sentence each


#: Called from the event loop when, after a batch of anybody's (this instance's own included),
#: unfolded runs or ready calls are left in a partition: a hint, never a promise. A batch that
#: leaves nothing behind wakes nobody, so that a call's ordinary way costs no visit.
Wake = Callable[[int], None]


class EventStore(Protocol):
    """A backend. One instance belongs to one event loop; :meth:`renewer` is for its thread."""

    @property
    def partitions(self) -> int:
        """Number of partitions, as stored with the data. Known after :meth:`open`."""
        ...

    async def open(self) -> StoreInfo:
        """Connect, create or migrate the schema, and read the settings that durability rests on.

        Raises ``StoreUnavailable``, ``StoreTooNew`` or ``StoreMismatch``. Opening twice is fine.
        """
        ...

    async def close(self) -> None:
        """Free everything. What was committed stays. Closing twice is fine."""
        ...

    async def commit(
        self, partition: int, operations: Sequence[Operation], *, seen: int = 0
    ) -> Committed:
        """Apply the operations in order, each atomically, in one round trip.

        ``seen`` is the highest mark this process has seen of the partition: a store that is behind
        it refuses every claim with ``BEHIND``, for everybody, until ``AcceptLoss`` (G23).
        """
        ...

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Event]:
        """Events with ``seq > after``, in order. An unknown run has none."""
        ...

    async def run(self, run_id: str) -> RunInfo | None:
        """The index entry of one run, a tombstone included (``deleted``)."""
        ...

    async def runs(
        self, *, status: str | None = None, app: str | None = None, limit: int = 1_000
    ) -> list[RunInfo]:
        """Newest first. ``status`` as in :class:`RunInfo`, or ``waiting`` or ``unknown``."""
        ...

    async def members(self) -> Members:
        """The workers that live, for those who look after them. One's own pulse is not needed."""
        ...

    def on_wake(self, wake: Wake) -> None:
        """Register for hints. Called in the event loop's thread."""
        ...

    def renewer(self) -> Renewer:
        """A renewer of its own for the heartbeat thread."""
        ...
