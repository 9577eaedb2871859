"""The registry: every span, metric and log event by its name. What is not here is not emitted.

docs/telemetry.md shows the same as tables, and a test compares the two. Names after the
OpenTelemetry semantic conventions for generative AI and for messaging where one fits, ``aaa.``
otherwise. None of these attributes holds a tool's arguments or result, except the two ``CONTENT``
ones, which are left out unless asked for.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["internal", "client", "producer"]
Instrument = Literal["counter", "histogram", "gauge"]


@dataclass(frozen=True, slots=True)
class SpanName:
    """A kind of span. ``{…}`` in the name stands for what differs from one to the next."""

    name: str
    kind: Kind
    attributes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MetricName:
    """An instrument with its unit, and the attributes of its points."""

    name: str
    instrument: Instrument
    unit: str
    attributes: tuple[str, ...]
    description: str


@dataclass(frozen=True, slots=True)
class LogEvent:
    """A kind of log record: its stable name, its level, and its fields besides ``event``."""

    name: str
    level: int
    fields: tuple[str, ...] = ()


# ------------------------------------------------------------------------------ attributes

RUN_ID: Final = "aaa.run.id"
RUN_STATUS: Final = "aaa.run.status"
RUN_SEQ: Final = "aaa.run.seq"
ENTRIES: Final = "aaa.decision.entries"
CALL_ATTEMPT: Final = "aaa.call.attempt"
CALL_JOB: Final = "aaa.call.job"
CALL_OUTCOME: Final = "aaa.call.outcome"
DELIVERY: Final = "aaa.call.delivery"
VERDICT: Final = "aaa.settle.verdict"
WORKER: Final = "aaa.worker"
PARTITION: Final = "aaa.partition"
OPERATION: Final = "aaa.store.operation"
OPERATIONS: Final = "aaa.store.operations"
BATCH: Final = "aaa.store.batch_size"
BACKEND: Final = "aaa.store.backend"
WHY: Final = "aaa.refused.why"
ACCEPTED: Final = "aaa.decision.accepted"
CLAIMED: Final = "aaa.claim.found"
AT: Final = "aaa.unknown.at"
HELD: Final = "aaa.lease.held"
ACTIONS: Final = "aaa.operator.actions"
NAMESPACE: Final = "k8s.namespace.name"

ERROR_TYPE: Final = "error.type"
GEN_AI_OPERATION: Final = "gen_ai.operation.name"
GEN_AI_AGENT: Final = "gen_ai.agent.name"
GEN_AI_AGENT_VERSION: Final = "gen_ai.agent.version"
GEN_AI_CONVERSATION: Final = "gen_ai.conversation.id"
GEN_AI_PROVIDER: Final = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_FINISH: Final = "gen_ai.response.finish_reasons"
GEN_AI_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_TOOL: Final = "gen_ai.tool.name"
GEN_AI_TOOL_TYPE: Final = "gen_ai.tool.type"
GEN_AI_CALL_ID: Final = "gen_ai.tool.call.id"
GEN_AI_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
GEN_AI_RESULT: Final = "gen_ai.tool.call.result"
#: Only with ``AAA_TELEMETRY_CONTENT=1``.
CONTENT: Final = frozenset({GEN_AI_ARGUMENTS, GEN_AI_RESULT})

MESSAGING_SYSTEM: Final = "messaging.system"
MESSAGING_OPERATION: Final = "messaging.operation.name"
MESSAGING_TYPE: Final = "messaging.operation.type"
MESSAGING_DESTINATION: Final = "messaging.destination.name"
MESSAGING_PARTITION: Final = "messaging.destination.partition.id"
MESSAGING_MESSAGE: Final = "messaging.message.id"
MESSAGING_CONVERSATION: Final = "messaging.message.conversation_id"
MESSAGING_CLIENT: Final = "messaging.client.id"

_MESSAGE: Final = (
    MESSAGING_SYSTEM,
    MESSAGING_OPERATION,
    MESSAGING_TYPE,
    MESSAGING_DESTINATION,
    MESSAGING_PARTITION,
    MESSAGING_MESSAGE,
    MESSAGING_CONVERSATION,
    MESSAGING_CLIENT,
)

# ----------------------------------------------------------------------------------- spans

RUN: Final = SpanName("aaa.run", "internal", (RUN_ID, RUN_STATUS, GEN_AI_CONVERSATION))
SUBMIT: Final = SpanName(
    "aaa.run.submit",
    "producer",
    (RUN_ID, GEN_AI_AGENT, GEN_AI_AGENT_VERSION, GEN_AI_CONVERSATION, WORKER, ERROR_TYPE),
)
DECIDE: Final = SpanName(
    "aaa.run.decide",
    "internal",
    (RUN_ID, RUN_SEQ, GEN_AI_AGENT, GEN_AI_AGENT_VERSION, ENTRIES, WORKER, ERROR_TYPE),
)
REQUEST: Final = SpanName("aaa.call.request", "producer", (*_MESSAGE, RUN_ID))
CLAIM: Final = SpanName(
    "aaa.call.claim", "client", (*_MESSAGE, RUN_ID, CALL_ATTEMPT, CALL_JOB, DELIVERY)
)
SETTLE: Final = SpanName("aaa.call.settle", "client", (*_MESSAGE, RUN_ID, CALL_ATTEMPT, VERDICT))
_ATTEMPT: Final = (RUN_ID, CALL_ATTEMPT, CALL_JOB, CALL_OUTCOME, DELIVERY, WORKER, ERROR_TYPE)
EXECUTE_TOOL: Final = SpanName(
    "execute_tool {tool}",
    "internal",
    (
        GEN_AI_OPERATION,
        GEN_AI_TOOL,
        GEN_AI_TOOL_TYPE,
        GEN_AI_CALL_ID,
        GEN_AI_CONVERSATION,
        *_ATTEMPT,
        GEN_AI_ARGUMENTS,
        GEN_AI_RESULT,
    ),
)
CHAT: Final = SpanName(
    "chat {model}",
    "client",
    (
        GEN_AI_OPERATION,
        GEN_AI_PROVIDER,
        GEN_AI_REQUEST_MODEL,
        GEN_AI_RESPONSE_MODEL,
        GEN_AI_FINISH,
        GEN_AI_INPUT_TOKENS,
        GEN_AI_OUTPUT_TOKENS,
        GEN_AI_CONVERSATION,
        *_ATTEMPT,
    ),
)
_PORT: Final = (OPERATION, BACKEND, ERROR_TYPE)
STORE_COMMIT: Final = SpanName(
    "aaa.store.commit", "client", (*_PORT, PARTITION, BATCH, OPERATIONS, RUN_ID)
)
STORE_READ: Final = SpanName("aaa.store.read", "client", (*_PORT, RUN_ID))
STORE_RUN: Final = SpanName("aaa.store.run", "client", (*_PORT, RUN_ID))
STORE_RUNS: Final = SpanName("aaa.store.runs", "client", _PORT)
STORE_OPEN: Final = SpanName("aaa.store.open", "client", _PORT)
STORE_PULSE: Final = SpanName("aaa.store.pulse", "client", (*_PORT, WORKER, HELD))
RECONCILE: Final = SpanName("aaa.operator.reconcile", "internal", (NAMESPACE, ACTIONS, ERROR_TYPE))

SPANS: Final = (
    RUN,
    SUBMIT,
    DECIDE,
    REQUEST,
    CLAIM,
    SETTLE,
    EXECUTE_TOOL,
    CHAT,
    STORE_COMMIT,
    STORE_READ,
    STORE_RUN,
    STORE_RUNS,
    STORE_OPEN,
    STORE_PULSE,
    RECONCILE,
)

# --------------------------------------------------------------------------------- metrics

_CALL: Final = (MESSAGING_DESTINATION, DELIVERY)
CALLS_STARTED: Final = MetricName(
    "aaa.call.started", "counter", "{attempt}", (*_CALL, CALL_JOB), "Attempts begun"
)
CALLS_ENDED: Final = MetricName(
    "aaa.call.ended", "counter", "{attempt}", (*_CALL, CALL_OUTCOME), "Attempts ended"
)
TAKEOVERS: Final = MetricName(
    "aaa.call.takeovers", "counter", "{attempt}", _CALL, "Attempts begun after a lost one"
)
CALLS_SETTLED: Final = MetricName(
    "aaa.call.settled",
    "counter",
    "{outcome}",
    (MESSAGING_DESTINATION, VERDICT),
    "Outcomes brought to the store, by what it made of them",
)
UNKNOWN: Final = MetricName(
    "aaa.call.unknown", "counter", "{call}", (AT,), "Calls whose effect became unknown"
)
CLAIMS: Final = MetricName(
    "aaa.call.claims", "counter", "{claim}", (CLAIMED,), "Claims answered, with or without a call"
)
RUNS_SUBMITTED: Final = MetricName("aaa.run.submitted", "counter", "{run}", (), "Runs begun")
RUNS_CLOSED: Final = MetricName(
    "aaa.run.closed", "counter", "{run}", (RUN_STATUS,), "Runs ended, by how"
)
DECISIONS: Final = MetricName(
    "aaa.run.decisions", "counter", "{decision}", (ACCEPTED,), "Decisions brought to the store"
)
STORE_DURATION: Final = MetricName(
    "aaa.store.duration", "histogram", "s", (OPERATION, ERROR_TYPE), "Time of one port call"
)
COMMIT_SIZE: Final = MetricName(
    "aaa.store.commit.size", "histogram", "{operation}", (), "Operations in one commit"
)
STORE_REFUSED: Final = MetricName(
    "aaa.store.refused", "counter", "{operation}", (OPERATION, WHY), "Operations refused"
)
STORE_UNAVAILABLE: Final = MetricName(
    "aaa.store.unavailable",
    "counter",
    "{try}",
    (OPERATION,),
    "Port calls that found no store; a commit is tried again",
)
RENEW_DURATION: Final = MetricName(
    "aaa.lease.renew.duration", "histogram", "s", (ERROR_TYPE,), "Time of one heartbeat"
)
LEASES_LOST: Final = MetricName(
    "aaa.lease.lost", "counter", "{lease}", (), "Call leases found lost by a heartbeat"
)
LOOP_LAG: Final = MetricName(
    "aaa.loop.lag", "histogram", "s", (), "How much later than asked the event loop woke up"
)
SLOTS_IN_USE: Final = MetricName(
    "aaa.slots.in_use", "gauge", "{slot}", (WORKER,), "Calls running now"
)
SLOTS_LIMIT: Final = MetricName(
    "aaa.slots.limit", "gauge", "{slot}", (WORKER,), "Calls that may run at once"
)
TOOL_DURATION: Final = MetricName(
    "gen_ai.execute_tool.duration",
    "histogram",
    "s",
    (GEN_AI_OPERATION, GEN_AI_TOOL, ERROR_TYPE),
    "Time of one attempt of a tool call",
)
CHAT_DURATION: Final = MetricName(
    "gen_ai.client.inference.duration",
    "histogram",
    "s",
    (GEN_AI_OPERATION, GEN_AI_PROVIDER, GEN_AI_REQUEST_MODEL, GEN_AI_RESPONSE_MODEL, ERROR_TYPE),
    "Time of one model request, its repeats included",
)
_TOKENS: Final = (GEN_AI_OPERATION, GEN_AI_PROVIDER, GEN_AI_REQUEST_MODEL, GEN_AI_RESPONSE_MODEL)
INPUT_TOKENS: Final = MetricName(
    "gen_ai.client.inference.usage.input_tokens", "counter", "{token}", _TOKENS, "Tokens sent"
)
OUTPUT_TOKENS: Final = MetricName(
    "gen_ai.client.inference.usage.output_tokens", "counter", "{token}", _TOKENS, "Tokens got"
)

METRICS: Final = (
    CALLS_STARTED,
    CALLS_ENDED,
    TAKEOVERS,
    CALLS_SETTLED,
    UNKNOWN,
    CLAIMS,
    RUNS_SUBMITTED,
    RUNS_CLOSED,
    DECISIONS,
    STORE_DURATION,
    COMMIT_SIZE,
    STORE_REFUSED,
    STORE_UNAVAILABLE,
    RENEW_DURATION,
    LEASES_LOST,
    LOOP_LAG,
    SLOTS_IN_USE,
    SLOTS_LIMIT,
    TOOL_DURATION,
    CHAT_DURATION,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
)

# ------------------------------------------------------------------------------------ logs

LOG_STORE_RISK: Final = LogEvent("aaa.store.risk", logging.WARNING, ("worker",))
LOG_STORE_UNAVAILABLE: Final = LogEvent("aaa.store.unavailable", logging.WARNING, ("partition",))
LOG_STORE_NOT_READ: Final = LogEvent("aaa.store.not_read", logging.WARNING, ("run_id",))
LOG_STORE_WENT_BACK: Final = LogEvent(
    "aaa.store.went_back", logging.CRITICAL, ("partition", "worker")
)
LOG_NOT_WOKEN: Final = LogEvent("aaa.store.not_woken", logging.INFO)
LOG_VISIT_FAILED: Final = LogEvent("aaa.visit.failed", logging.WARNING, ("partition", "worker"))
LOG_TASK_FAILED: Final = LogEvent("aaa.task.failed", logging.WARNING)
LOG_NOT_GIVEN_BACK: Final = LogEvent("aaa.worker.not_given_back", logging.WARNING, ("worker",))
LOG_RENEW_FAILED: Final = LogEvent("aaa.lease.renew_failed", logging.WARNING, ("worker",))
LOG_RENEW_BROKE: Final = LogEvent("aaa.lease.renew_broke", logging.ERROR, ("worker",))
LOG_NOT_LEFT: Final = LogEvent("aaa.worker.not_left", logging.INFO, ("worker",))
LOG_LOOP_BLOCKED: Final = LogEvent("aaa.loop.blocked", logging.CRITICAL, ("worker",))
LOG_RUN_STUCK: Final = LogEvent("aaa.run.not_driven", logging.ERROR, ("run_id", "worker"))
LOG_DECISION_REFUSED: Final = LogEvent(
    "aaa.run.decision_refused", logging.INFO, ("run_id", "worker")
)
LOG_ALGORITHM_FAILED: Final = LogEvent(
    "aaa.run.algorithm_failed", logging.WARNING, ("run_id", "worker")
)
LOG_RUN_CORRUPT: Final = LogEvent("aaa.run.corrupt", logging.ERROR, ("run_id", "worker"))
LOG_SETTLE_VERDICT: Final = LogEvent(
    "aaa.call.settle_verdict", logging.INFO, ("run_id", "call_id", "attempt", "worker")
)
LOG_CALL_BROKE: Final = LogEvent(
    "aaa.call.broke", logging.ERROR, ("run_id", "call_id", "attempt", "worker")
)

LOG_CALL_RAISED: Final = LogEvent(
    "aaa.call.raised", logging.DEBUG, ("run_id", "call_id", "attempt", "worker")
)
LOG_TAKEN_OVER: Final = LogEvent(
    "aaa.call.taken_over", logging.INFO, ("run_id", "call_id", "attempt", "worker")
)
LOG_LEASE_LOST: Final = LogEvent(
    "aaa.call.lease_lost", logging.WARNING, ("run_id", "call_id", "attempt", "worker")
)
LOG_CALL_UNKNOWN: Final = LogEvent("aaa.call.unknown", logging.WARNING, ("run_id", "worker"))
LOG_PROCESS_LOST: Final = LogEvent(
    "aaa.call.process_lost", logging.WARNING, ("run_id", "call_id", "attempt")
)
LOG_TOOL_OUTPUT: Final = LogEvent("aaa.tool.output", logging.INFO, ("run_id", "call_id"))
LOG_UNMATCHED: Final = LogEvent("aaa.policy.unmatched", logging.WARNING)
LOG_POLICY_READ: Final = LogEvent("aaa.policy.read", logging.INFO, ("worker",))
LOG_POLICY_REFUSED: Final = LogEvent("aaa.policy.refused", logging.ERROR, ("worker",))
LOG_POLICY_AWAITED: Final = LogEvent("aaa.policy.awaited", logging.WARNING, ("run_id", "worker"))
LOG_SERVES: Final = LogEvent("aaa.worker.serves", logging.INFO, ("worker",))
LOG_DRAINING: Final = LogEvent("aaa.worker.draining", logging.INFO)
LOG_DRAINED: Final = LogEvent("aaa.worker.drained", logging.INFO, ("worker",))
LOG_UNSTOPPABLE: Final = LogEvent("aaa.worker.unstoppable", logging.ERROR, ("worker",))
LOG_TELEMETRY_BROKE: Final = LogEvent("aaa.telemetry.broke", logging.WARNING)

LOG_EVENTS: Final = (
    LOG_STORE_RISK,
    LOG_STORE_UNAVAILABLE,
    LOG_STORE_NOT_READ,
    LOG_STORE_WENT_BACK,
    LOG_NOT_WOKEN,
    LOG_VISIT_FAILED,
    LOG_TASK_FAILED,
    LOG_NOT_GIVEN_BACK,
    LOG_RENEW_FAILED,
    LOG_RENEW_BROKE,
    LOG_NOT_LEFT,
    LOG_LOOP_BLOCKED,
    LOG_RUN_STUCK,
    LOG_DECISION_REFUSED,
    LOG_ALGORITHM_FAILED,
    LOG_RUN_CORRUPT,
    LOG_SETTLE_VERDICT,
    LOG_CALL_BROKE,
    LOG_CALL_RAISED,
    LOG_TAKEN_OVER,
    LOG_LEASE_LOST,
    LOG_CALL_UNKNOWN,
    LOG_PROCESS_LOST,
    LOG_TOOL_OUTPUT,
    LOG_UNMATCHED,
    LOG_POLICY_READ,
    LOG_POLICY_REFUSED,
    LOG_POLICY_AWAITED,
    LOG_SERVES,
    LOG_DRAINING,
    LOG_DRAINED,
    LOG_UNSTOPPABLE,
    LOG_TELEMETRY_BROKE,
)
