"""What a manifest file may say, and the place and sentence of everything else."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aaa.errors import ManifestError
from aaa.manifest import AgentRun, ManifestErrors, ToolDecision, ToolPolicy, load_manifests
from aaa.manifest.base import Model
from aaa.manifest.nodes import MAX_ALIASES, MAX_BYTES, MAX_DEPTH, MAX_DOCUMENTS

RUN = """\
apiVersion: aaa.dev/v1alpha1
kind: AgentRun
metadata:
  name: refund
spec:
  agent:
    app: shop.agent:app
"""
POLICY = """\
apiVersion: aaa.dev/v1alpha1
kind: ToolPolicy
metadata:
  name: payments
spec:
  selector: {}
"""
DECISION = """\
apiVersion: aaa.dev/v1alpha1
kind: ToolDecision
metadata:
  name: yes-please
spec:
  runRef: {name: refund, uid: 0b1f}
  callId: c4-0
  argsDigest: 0123456789abcdef
  decidedBy: ann
"""


def errors_of(text: str | bytes) -> list[ManifestError]:
    with pytest.raises(ManifestErrors) as caught:
        load_manifests(text, file="f.yaml")
    assert isinstance(caught.value, ManifestError)
    assert all(error.file == "f.yaml" for error in caught.value.errors)
    return list(caught.value.errors)


def under(base: str, text: str) -> str:
    """``text`` as further lines of ``base``'s spec."""
    return base + textwrap.indent(text.strip("\n"), "  ") + "\n"


ACCEPTED = {
    "smallest run": RUN,
    "smallest policy": POLICY,
    "decision": DECISION + "  decision: Approve\n  expiresAt: '2026-12-01T10:00:00Z'\n",
    "what kubectl prints": RUN.replace(
        "  name: refund\n",
        "  name: refund\n  creationTimestamp: null\n  resourceVersion: '7'\n"
        "  managedFields: [{manager: kubectl}]\n",
    )
    + "status:\n  runId: refund-1\n  addedLater: 1\n  conditions:\n"
    "  - {type: Finished, status: 'True', reason: Done, lastTransitionTime: '2026-12-01T10:00:00Z'}\n"
    "  pool: {name: p, hash: abc, imageIDs: [sha256:1]}\n",
    "a full run": under(
        RUN,
        textwrap.dedent("""
          image: registry:5000/shop:1.2.3
          source: {configMapRef: {name: code}}
          env:
          - {name: SHOP, value: "on"}
          - {name: TOKEN, valueFrom: {secretKeyRef: {name: shop, key: token}}}
          resources: {requests: {cpu: 1, memory: 512Mi}, limits: {cpu: 1.5}}
          serviceAccountName: shop
          imagePullPolicy: Never
          imagePullSecrets: [{name: pull}]
          nodeSelector: {disk: fast}
          tolerations: [{key: gpu, operator: Exists}]
          affinity: {nodeAffinity: {requiredDuringScheduling: {any: [1]}}}
        input: {task: refund A-100, nested: {list: [1, 2.5, true, null]}}
        runKey: order-A-100
        store: {secretRef: {name: store}}
        policyRefs: [{name: payments}]
        isolation: Dedicated
        workers: {minReplicas: 0, maxReplicas: 3, concurrency: 8}
        desiredState: Suspended
        activeDeadlineSeconds: 60
        drainTimeoutSeconds: 0
        ttlSecondsAfterFinished: 0
        deletionPolicy: DrainThenForce
        """),
    ),
    "input by reference": under(RUN, "input: {configMapRef: {name: tasks}}"),
    "aliases in moderation": under(RUN, "input: {a: &x [1], b: *x}"),
}


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED)
def test_a_good_manifest_loads(text: str) -> None:
    (manifest,) = load_manifests(text, file="f.yaml")
    assert manifest.metadata.name
    assert load_manifests(text.encode(), file="f.yaml") == [manifest]


def test_a_file_holds_several_documents_in_order_and_empty_ones_are_passed_over() -> None:
    text = f"---\n{RUN}---\n---\n# nothing\n---\n{POLICY}..."
    found = load_manifests(text, file="f.yaml")
    assert [type(manifest) for manifest in found] == [AgentRun, ToolPolicy]
    assert found[1].source.line(("spec", "selector")) == 18


# A case: the text, and for the errors their line, field and a part of the sentence.
REFUSED: dict[str, tuple[str, list[tuple[int | None, str | None, str]]]] = {
    # Fields
    "unknown field": (
        under(RUN, "polcyRefs: []"),
        [(8, "spec.polcyRefs", "did you mean 'policyRefs'?")],
    ),
    "snake case": (
        under(RUN, "desired_state: Running"),
        [(8, "spec.desired_state", "did you mean 'desiredState'?")],
    ),
    "unknown field in a list": (
        under(POLICY, "tools:\n- name: refund\n  maxAttemps: 3"),
        [(9, "spec.tools[0].maxAttemps", "did you mean 'maxAttempts'?")],
    ),
    "misspelt labels": (
        RUN.replace("  name: refund", "  name: refund\n  lables: {a: b}"),
        [(5, "metadata.lables", "did you mean 'labels'?")],
    ),
    "missing app": (
        RUN.replace("    app: shop.agent:app", "    image: x"),
        [(6, "spec.agent.app", "is missing")],
    ),
    "missing selector": (
        POLICY.replace("selector: {}", "tools: []"),
        [(5, "spec.selector", "is missing")],
    ),
    "missing spec": (RUN.split("spec:", maxsplit=1)[0], [(1, "spec", "is missing")]),
    "text for a number": (
        under(RUN, 'activeDeadlineSeconds: "60"'),
        [(8, "spec.activeDeadlineSeconds", "must be a whole number, not '60'")],
    ),
    "number for text": (
        under(RUN, "runKey: 7"),
        [(8, "spec.runKey", "must be text, not the number 7; quote it")],
    ),
    "a number as a label": (
        RUN.replace("  name: refund", "  name: refund\n  labels: {v: 1.10}"),
        [(5, "metadata.labels.v", "must be text, not the number 1.1; quote it")],
    ),
    "a fraction": (
        under(RUN, "activeDeadlineSeconds: 1.5"),
        [(8, "spec.activeDeadlineSeconds", "whole number")],
    ),
    "true for a number": (
        under(RUN, "activeDeadlineSeconds: true"),
        [(8, "spec.activeDeadlineSeconds", "not true")],
    ),
    "list for an object": (
        under(RUN, "store: []"),
        [(8, "spec.store", "must be an object, not a list")],
    ),
    "null": (under(RUN, "runKey:"), [(8, "spec.runKey", "has no value")]),
    "choice": (
        under(RUN, "isolation: shared"),
        [(8, "spec.isolation", "Shared or Dedicated, not 'shared'; did you mean 'Shared'?")],
    ),
    "form": (
        RUN.replace("shop.agent:app", "shop/agent.py"),
        [(7, "spec.agent.app", "must be module:attribute, not 'shop/agent.py'")],
    ),
    "bound": (
        under(POLICY, "tools:\n- {name: a, maxAttempts: 0}"),
        [(8, "spec.tools[0].maxAttempts", "at least 1, not 0")],
    ),
    "quantity": (
        under(RUN, "  resources: {limits: {cpu: many}}"),
        [(8, "spec.agent.resources.limits.cpu", "quantity like 500m")],
    ),
    "bad label key": (
        RUN.replace("  name: refund", "  name: refund\n  labels: {'a b': c}"),
        [(5, "metadata.labels.a b", "must be a label's key")],
    ),
    # Rules across fields
    "workers of a shared pool": (
        under(RUN, "workers: {maxReplicas: 3}"),
        [(8, "spec.workers", "isolation: Dedicated")],
    ),
    "replicas out of order": (
        under(RUN, "isolation: Dedicated\nworkers: {minReplicas: 3, maxReplicas: 2}"),
        [(9, "spec.workers.minReplicas", "is 3, above maxReplicas 2")],
    ),
    "input twice": (
        under(RUN, "input: {configMapRef: {name: a}, task: b}"),
        [(8, "spec.input", "stands alone")],
    ),
    "input too large": (
        under(RUN, f"input: {{task: {'x' * 65_536}}}"),
        [(8, "spec.input", "at most 65536")],
    ),
    "reserved variable": (
        under(RUN, "  env:\n  - {name: AAA_STORE, value: x}"),
        [(9, "spec.agent.env[0].name", "reserved")],
    ),
    "variable twice": (
        under(RUN, "  env: [{name: A, value: x}, {name: A, value: z}]"),
        [(8, "spec.agent.env[1].name", "'A' stands twice")],
    ),
    "heartbeat above ttl": (
        under(POLICY, "defaults: {leaseTtlSeconds: 5, heartbeatSeconds: 5}"),
        [(7, "spec.defaults", "heartbeat_s (5) must be smaller than lease_ttl_s (5)")],
    ),
    "disabled and approved": (
        under(POLICY, "tools: [{name: a, enabled: false, requiresApproval: true}]"),
        [(7, "spec.tools[0]", "cannot be combined with requires_approval")],
    ),
    "approval as a default": (
        under(POLICY, "defaults: {requiresApproval: true}"),
        [(7, "spec.defaults.requiresApproval", "not a field")],
    ),
    "tool twice": (
        under(POLICY, "tools: [{name: a}, {name: a}]"),
        [(7, "spec.tools[1].name", "'a' stands twice")],
    ),
    "tool name": (
        under(POLICY, "tools: [{name: 'a*b'}]"),
        [(7, "spec.tools[0].name", "followed by *")],
    ),
    "key template": (
        under(POLICY, "tools: [{name: a, idempotencyKey: fixed}]"),
        [(7, "spec.tools[0].idempotencyKey", "names no argument")],
    ),
    "selector values": (
        POLICY.replace("{}", "{matchExpressions: [{key: a, operator: Exists, values: [b]}]}"),
        [(6, "spec.selector.matchExpressions[0].operator", "takes no values")],
    ),
    "approval without end": (
        DECISION + "  decision: Approve\n",
        [(5, "spec.expiresAt", "is missing; an approval has an end")],
    ),
    "rejection without reason": (
        DECISION + "  decision: Reject\n",
        [(5, "spec.reason", "is missing; say why")],
    ),
    "result of a retry": (
        DECISION + "  decision: Retry\n  result: 1\n",
        [(11, "spec.result", "only for MarkDone")],
    ),
    "no such day": (
        DECISION + "  decision: Approve\n  expiresAt: '2026-02-30T10:00:00Z'\n",
        [(11, "spec.expiresAt", "not a date and time that exists")],
    ),
    # Documents
    "other kind": (
        "apiVersion: aaa.dev/v1alpha1\nkind: ConfigMap\n",
        [(2, "kind", "'ConfigMap' is not a kind")],
    ),
    "only another API's": (
        "apiVersion: v1\nkind: ConfigMap\n",
        [(None, None, "holds no manifest")],
    ),
    "misspelt kind of another API": (
        RUN.replace("AgentRun", "AgentRum").replace("aaa.dev/v1alpha1", "v1"),
        [(2, "kind", "did you mean 'AgentRun'?")],
    ),
    "misspelt kind": (
        RUN.replace("AgentRun", "Agentrun"),
        [(2, "kind", "did you mean 'AgentRun'?")],
    ),
    "other version": (
        RUN.replace("v1alpha1", "v1"),
        [(1, "apiVersion", "must be 'aaa.dev/v1alpha1', not 'aaa.dev/v1'")],
    ),
    "no kind": ("apiVersion: aaa.dev/v1alpha1\n", [(1, "kind", "is missing")]),
    "not an object": ("- 1\n", [(1, None, "must be an object")]),
    "nothing": ("---\n", [(None, None, "holds no manifest")]),
    "the same object twice": (
        f"{RUN}---\n{RUN}",
        [(12, "metadata.name", "stands twice; the first one is in line 4")],
    ),
    "too many documents": (
        "---\n" * (MAX_DOCUMENTS + 1) + "a",
        [(MAX_DOCUMENTS + 2, None, "more than 100 documents")],
    ),
    "too large": ("#" * (MAX_BYTES + 1), [(None, None, "larger than")]),
    # YAML
    "duplicate key": (
        under(RUN, "runKey: a\nrunKey: b"),
        [(9, "spec.runKey", "stands twice; the first one is in line 8")],
    ),
    "syntax": (RUN + "  bad: [", [(8, None, "is not valid YAML")]),
    "bare star": (under(POLICY, "tools: [{name: *}]"), [(7, None, "must be quoted")]),
    "control character": (RUN + "# \x07", [(8, None, "U+0007")]),
    "tag": (under(RUN, "runKey: !!str 7"), [(8, None, "tags are not allowed")]),
    "merge key": (
        under(RUN, "input: {a: &a {b: 1}, c: {<<: *a}}"),
        [(8, "spec.input.c", "merge key")],
    ),
    "list as a key": (under(RUN, "input: {[a]: 1}"), [(8, "spec.input", "keys are text")]),
    "number as a key": (
        under(RUN, "input: {1: a}"),
        [(8, "spec.input", "the key '1', which is not text")],
    ),
    "on as a key": (
        under(RUN, "input: {on: a}"),
        [(8, "spec.input", "the key 'on' is text to some")],
    ),
    "many aliases": (
        under(RUN, f"input: {{a: &a 1, b: [{', '.join(['*a'] * (MAX_ALIASES + 1))}]}}"),
        [(8, None, "more than 64 aliases")],
    ),
    "an alias bomb": (
        under(
            RUN,
            "input:\n  a: &a [1,1,1,1,1,1,1,1,1]\n"
            + "".join(
                f"  {b}: &{b} [*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a}]\n"
                for a, b in zip("abcde", "bcdef", strict=True)
            ),
        ),
        [(1, None, "expands to more than")],
    ),
    "an alias of itself": (under(RUN, "input: {a: &a [*a]}"), [(8, None, "contains itself")]),
    "deep nesting": (
        under(RUN, f"input: {{a: {'[' * (MAX_DEPTH + 1)}"),
        [(8, None, "nested more than 64")],
    ),
    "deep nesting by aliases": (
        under(
            RUN,
            f"input:\n  a: &a {'[' * 40}1{']' * 40}\n  b: {'[' * 40}*a{']' * 40}",
        ),
        [(9, None, "nested more than 64")],
    ),
    "an escape beyond Unicode": (
        under(RUN, 'input: {a: "\\U00110000"}'),
        [(8, None, "out of range")],
    ),
    "unknown alias": (under(RUN, "input: {a: *b}"), [(8, None, "undefined alias")]),
    "half a character": (under(RUN, 'input: {a: "\\ud800"}'), [(8, "spec.input.a", "surrogate")]),
}


@pytest.mark.parametrize(("text", "expected"), REFUSED.values(), ids=REFUSED)
def test_a_bad_manifest_is_refused_with_its_place(
    text: str, expected: list[tuple[int | None, str | None, str]]
) -> None:
    found = errors_of(text)
    assert [(error.line, error.field) for error in found] == [case[:2] for case in expected]
    for error, (_, _, part) in zip(found, expected, strict=True):
        assert part in str(error)
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("scalar", "part"),
    [
        *[(word, "text to some YAML readers and true to others") for word in ("on", "Yes", "Y")],
        *[(word, "text to some YAML readers and false to others") for word in ("OFF", "no", "n")],
        *[(word, "base 60") for word in ("1:30", "190:20:30.15", "-1:00")],
        *[(word, "a date") for word in ("2026-12-01", "2026-12-01T10:00:00Z", "2026-1-1 10:00:00")],
        *[(word, "octal") for word in ("017", "0o17", "08", "-007", "0_7")],
        *[(word, "write it in decimal") for word in ("0x1F", "0b101", "-0X1f")],
        *[(word, "JSON writes numbers") for word in ("1_000", "+1", ".5", "1.", "01.5", "+1e3")],
        *[(word, "not a number that JSON has") for word in (".inf", "-.INF", ".nan")],
        *[
            (word, "fit 64 bits")
            for word in ("9223372036854775808", "-9223372036854775809", "9" * 5000)
        ],
        ("1e999", "too large"),
    ],
)
def test_a_scalar_that_readers_dispute_is_refused_and_quoting_settles_it(
    scalar: str, part: str
) -> None:
    (error,) = errors_of(under(RUN, f"input: {{x: {scalar}}}"))
    assert (error.line, error.field) == (8, "spec.input.x")
    assert part in str(error)
    (run,) = load_manifests(under(RUN, f'input: {{x: "{scalar}"}}'), file="f.yaml")
    assert isinstance(run, AgentRun)
    assert run.spec.input.inline == {"x": scalar}


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("0", 0),
        ("-12", -12),
        ("1.50", 1.5),
        ("1e3", 1000.0),
        ("9223372036854775807", 2**63 - 1),
        ("yEs", "yEs"),
        ("1.2.3", "1.2.3"),
        ("10.0.0.1", "10.0.0.1"),
        ("A-100", "A-100"),
        ("12:xx", "12:xx"),
        ("2026-12", "2026-12"),
        ("nan", "nan"),
        ("1e", "1e"),
        ("'0'", "0"),
        ("é", "é"),
    ],
)
def test_a_scalar_that_all_readers_agree_on_keeps_its_value(scalar: str, value: object) -> None:
    (run,) = load_manifests(under(RUN, f"input: {{x: {scalar}}}"), file="f.yaml")
    assert isinstance(run, AgentRun)
    found = run.spec.input.inline["x"]
    assert (found, type(found)) == (value, type(value))


def test_all_problems_of_a_file_are_reported_together_in_the_order_of_lines() -> None:
    text = (
        under(RUN, "runKey: 7\nnope: 1")
        + "---\n"
        + under(POLICY, "unlistedTools: deny")
        + "---\na: ["
    )
    found = errors_of(text)
    assert [error.line for error in found] == [8, 9, 17, 19]
    with pytest.raises(ManifestErrors) as caught:
        load_manifests(text, file="f.yaml")
    assert str(caught.value).splitlines() == [str(error) for error in found]
    assert (caught.value.line, caught.value.field) == (8, "spec.runKey")


PIECES = st.sampled_from(
    [
        *"[]{}:-?|>'\"#&*!%@`,=~ \n",
        "*a",
        "&a ",
        "<<: ",
        "---\n",
        "on",
        "1:30",
        "null",
        "\ufeff",
        "\x00",
        "  spec:\n",
        *RUN.splitlines(keepends=True),
        *DECISION.splitlines(keepends=True),
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES | st.text(max_size=3), max_size=25).map("".join))
def test_whatever_a_file_holds_it_loads_or_is_refused_in_sentences(text: str) -> None:
    problems: tuple[ManifestError, ...] = ()
    try:
        found = load_manifests(text, file="f.yaml")
    except ManifestErrors as errors:
        found, problems = [], errors.errors
    assert bool(found) != bool(problems)
    assert all(error.file == "f.yaml" and error.reason for error in problems)


def test_text_that_is_not_utf8_is_refused_with_its_line() -> None:
    (error,) = errors_of(RUN.encode() + b"# \xff\n")
    assert (error.line, error.reason) == (8, "is not UTF-8 text")


def test_a_later_check_can_name_the_place_of_a_field() -> None:
    (run,) = load_manifests(RUN, file="f.yaml")
    error = run.problem("cannot be imported", at=("spec", "agent", "app"))
    assert str(error) == "f.yaml:7: spec.agent.app: cannot be imported"
    assert run.problem("x", at=("spec", "input")).line == 5, "the nearest field that is there"


def test_every_field_of_every_kind_has_a_description_and_every_text_and_list_a_bound() -> None:
    for kind in (AgentRun, ToolPolicy, ToolDecision):
        schema = kind.model_json_schema(by_alias=True)
        for name, part in {kind.__name__: schema, **schema["$defs"]}.items():
            for field, rules in part.get("properties", {}).items():
                where = f"{name}.{field}"
                target = schema["$defs"].get(rules.get("$ref", "").rpartition("/")[2], {})
                assert rules.get("description") or target.get("description"), where
                shape = next(
                    (one for one in rules.get("anyOf", []) if one.get("type") != "null"), rules
                )
                if shape.get("type") == "string" and "enum" not in shape and "const" not in shape:
                    assert "maxLength" in shape, where
                if shape.get("type") == "array":
                    assert "maxItems" in shape, where
                if shape.get("type") == "integer" and not name.endswith("Status"):
                    assert "minimum" in shape, where


def test_a_policy_has_no_defaults_of_its_own() -> None:
    (policy,) = load_manifests(under(POLICY, "defaults: {}\ntools: [{name: a}]"), file="f.yaml")
    assert isinstance(policy, ToolPolicy)
    parts: list[Model | None] = [policy.spec.defaults, policy.spec.tools[0]]
    for part in parts:
        assert part is not None
        said = {name for name, value in part.model_dump().items() if value is not None}
        assert said <= {"name"}


def test_a_decision_keeps_its_moment_as_written() -> None:
    text = DECISION + "  decision: MarkDone\n  result: {refunded: true}\n"
    (decision,) = load_manifests(text, file="f.yaml")
    assert isinstance(decision, ToolDecision)
    assert decision.spec.result == {"refunded": True}


def test_objects_of_other_apis_are_left_out() -> None:
    other = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: code\n"
    (run,) = load_manifests(f"{other}---\n{RUN}")
    assert run.kind == "AgentRun"
