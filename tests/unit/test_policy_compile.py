"""The order of precedence, tightening by prefix, conflicts: what holds for any layers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aaa.errors import ConfigError, PolicyConflict
from aaa.policy import (
    KEY_FROM_CODE,
    Delivery,
    GuardConfig,
    OnLostLease,
    PolicyLayers,
    ToolEntry,
    ToolPolicyRules,
    ToolSettings,
    compile_settings,
    tightens,
    unmatched_tools,
)


def policy(name: str, unlisted: Any = None, defaults: Any = None, **tools: Any) -> ToolPolicyRules:
    """``refund__={…}`` is an entry for the prefix ``refund*``."""
    entries = [
        ToolEntry(name=key.replace("__", "*"), settings=values) for key, values in tools.items()
    ]
    return ToolPolicyRules(
        name=name, defaults=defaults or {}, tools=entries, unlisted_tools=unlisted
    )


LAYERS: dict[str, dict[str, Any]] = {
    "handler": {"handler": {"max_attempts": 10}},
    "policy P defaults": {"policies": [policy("P", defaults={"max_attempts": 20})]},
    "decorator": {"decorator": {"max_attempts": 30}},
    "policy P entry 'refund'": {"policies": [policy("P", refund={"max_attempts": 40})]},
}


@pytest.mark.parametrize("upper", range(1, 4))
@pytest.mark.parametrize("lower", range(3))
def test_a_later_layer_overrides_an_earlier_one_and_is_named_as_the_origin(
    lower: int, upper: int
) -> None:
    if lower >= upper:
        upper, lower = lower + 1, upper - 1
    names = list(LAYERS)
    low, high = LAYERS[names[lower]], LAYERS[names[upper]]
    policies = [
        *low.get("policies", []),
        *[
            ToolPolicyRules(name="P", defaults=given.defaults, tools=given.tools)
            for given in high.get("policies", [])
        ],
    ]
    merged = compile_settings("refund", **{**low, **high, "policies": policies})
    assert merged.guard.max_attempts == (upper + 1) * 10
    assert merged.origins["max_attempts"] == names[upper]
    assert merged.origins["delivery"] == "built-in"


def test_a_complete_handler_config_sets_every_field_and_a_default_of_a_policy_overrides_it() -> (
    None
):
    merged = compile_settings(
        "search",
        handler=GuardConfig(lease_ttl_s=30),
        policies=[policy("P", defaults={"wait_poll_s": 2})],
    )
    assert merged.guard == GuardConfig(lease_ttl_s=30, wait_poll_s=2)
    assert merged.origins["fence_results"] == "handler"
    assert merged.origins["wait_poll_s"] == "policy P defaults"
    assert merged.origins["requires_approval"] == "built-in"


def test_a_namespace_default_never_loosens_what_the_author_declared_but_naming_the_tool_does() -> (
    None
):
    declared = {"delivery": "at_most_once"}
    loose = {"delivery": "at_least_once"}
    by_default = compile_settings(
        "refund", decorator=declared, policies=[policy("P", defaults=loose)]
    )
    assert by_default.guard.delivery is Delivery.AT_MOST_ONCE
    by_prefix = compile_settings("refund", decorator=declared, policies=[policy("P", ref__=loose)])
    assert by_prefix.guard.delivery is Delivery.AT_MOST_ONCE
    assert by_prefix.origins["delivery"] == "decorator"
    assert "policy P entry 'ref*' would loosen delivery of 'refund'" in by_prefix.notes[0]
    by_name = compile_settings("refund", decorator=declared, policies=[policy("P", refund=loose)])
    assert by_name.guard.delivery is Delivery.AT_LEAST_ONCE
    assert by_name.origins["delivery"] == "policy P entry 'refund'"


@pytest.mark.parametrize(
    ("field", "loose", "tight"),
    [
        ("enabled", False, True),
        ("delivery", Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE),
        ("max_attempts", 5, 2),
        ("lease_ttl_s", 10.0, 60.0),
        ("heartbeat_s", 4.0, 1.0),
        ("wait_poll_s", 2.0, 0.5),
        ("on_lost_lease", OnLostLease.FINISH, OnLostLease.CANCEL),
        ("fence_results", False, True),
        ("requires_approval", False, True),
        ("timeout_s", 60.0, 10.0),
        ("timeout_s", None, 10.0),
        ("idempotency_key", None, "refund:{order_id}"),
    ],
)
def test_a_prefix_tightens_a_field_and_is_ignored_where_it_would_loosen(
    field: str, loose: object, tight: object
) -> None:
    def value(merged: ToolSettings) -> object:
        values = {**merged.to_json(), "heartbeat_s": merged.guard.heartbeat_s}
        return values[field]

    tightened = compile_settings(
        "refund", decorator={field: loose}, policies=[policy("P", ref__={field: tight})]
    )
    assert value(tightened) == tight
    assert tightened.origins[field] == "policy P entry 'ref*'"
    assert tightened.notes == ()
    if loose is not None:
        ignored = compile_settings(
            "refund", decorator={field: tight}, policies=[policy("P", ref__={field: loose})]
        )
        assert value(ignored) == tight
        assert ignored.origins[field] == "decorator"
        assert field in ignored.notes[0]


def test_a_longer_lease_by_prefix_does_not_make_renewals_rarer() -> None:
    merged = compile_settings("refund", policies=[policy("P", ref__={"lease_ttl_s": 60})])
    assert (merged.guard.lease_ttl_s, merged.guard.renew_every_s) == (60, 5)
    assert "renewal period kept" in merged.origins["heartbeat_s"]


def test_a_prefix_cannot_replace_a_key_that_the_tool_has() -> None:
    mine = compile_settings(
        "refund",
        decorator={"idempotency_key": lambda args: args["order_id"]},
        policies=[policy("P", ref__={"idempotency_key": "x:{order_id}"})],
    )
    assert mine.key_from_code
    assert mine.idempotency_key_template is None
    assert mine.to_json()["idempotency_key"] == KEY_FROM_CODE
    named = compile_settings(
        "refund",
        decorator={"idempotency_key": lambda args: args["order_id"]},
        policies=[policy("P", refund={"idempotency_key": "x:{order_id}"})],
    )
    assert named.idempotency_key_template == "x:{order_id}"
    assert not named.key_from_code


def test_the_longest_match_of_a_policy_speaks_alone() -> None:
    entries = policy(
        "P", __={"max_attempts": 1}, ref__={"max_attempts": 2}, refund={"wait_poll_s": 9}
    )
    assert compile_settings("search", policies=[entries]).guard.max_attempts == 1
    assert compile_settings("refuse", policies=[entries]).guard.max_attempts == 2
    exact = compile_settings("refund", policies=[entries]).guard
    assert (exact.max_attempts, exact.wait_poll_s) == (3, 9)


@pytest.mark.parametrize(
    ("first", "second", "layer"),
    [
        (
            policy("A", defaults={"max_attempts": 2}),
            policy("B", defaults={"max_attempts": 3}),
            "defaults",
        ),
        (
            policy("A", refund={"max_attempts": 2}),
            policy("B", refund={"max_attempts": 3}),
            "'refund'",
        ),
        (policy("A", ref__={"max_attempts": 2}), policy("B", re__={"max_attempts": 1}), "'ref*'"),
    ],
)
def test_policies_that_disagree_in_one_layer_conflict_and_both_are_named(
    first: ToolPolicyRules, second: ToolPolicyRules, layer: str
) -> None:
    messages = set()
    for pair in ([first, second], [second, first]):
        with pytest.raises(PolicyConflict) as caught:
            compile_settings("refund", policies=pair)
        messages.add(str(caught.value))
    assert len(messages) == 1, "the order of the policies must not matter"
    message = messages.pop()
    for part in ("tool 'refund'", "'A' and 'B'", "max_attempts", layer):
        assert part in message


def test_policies_that_say_the_same_agree_and_both_are_origins() -> None:
    merged = compile_settings(
        "refund",
        policies=[policy("B", refund={"timeout_s": 5}), policy("A", refund={"timeout_s": 5.0})],
    )
    assert merged.timeout_s == 5
    assert merged.origins["timeout_s"] == "policy A entry 'refund' and policy B entry 'refund'"


@pytest.mark.guarantee("G17")
def test_a_heartbeat_that_meets_its_ttl_names_tool_field_and_both_origins() -> None:
    with pytest.raises(
        ConfigError, match=r"tool 'refund'.*heartbeat_s from handler and lease_ttl_s from decorator"
    ):
        compile_settings(
            "refund", handler=GuardConfig(heartbeat_s=10), decorator={"lease_ttl_s": 5}
        )
    with pytest.raises(PolicyConflict, match=r"tool 'refund'.*policy P entry 'refund'"):
        compile_settings("refund", policies=[policy("P", refund={"heartbeat_s": 15})])


@pytest.mark.guarantee("G18")
@pytest.mark.parametrize(
    ("decorator", "has_verify", "named"),
    [
        ({"delivery": "at_most_once"}, False, "delivery from decorator"),
        ({"requires_approval": True}, False, "requires_approval from decorator"),
        ({}, True, "verify"),
    ],
)
def test_a_switched_off_guard_refuses_what_needs_it(
    decorator: dict[str, object], has_verify: bool, named: str
) -> None:
    off = {"enabled": False}
    with pytest.raises(ConfigError, match=named):
        compile_settings("refund", handler=off, decorator=decorator, has_verify=has_verify)
    with pytest.raises(PolicyConflict, match=named):
        compile_settings(
            "refund",
            decorator=decorator,
            policies=[policy("P", refund=off)],
            has_verify=has_verify,
        )
    assert not compile_settings("refund", handler=off).guard.enabled


def test_an_unlisted_tool_is_denied_by_one_policy_and_named_in_a_conflict() -> None:
    listing = policy("A", "deny", refund={})
    denied = compile_settings("delete_all", policies=[listing, policy("B")])
    assert not denied.allowed
    assert denied.origins["allowed"] == "policy A unlisted tools"
    assert compile_settings("refund", policies=[listing]).allowed
    with pytest.raises(PolicyConflict, match="'delete_all': policies 'B' and 'A' disagree"):
        compile_settings("delete_all", policies=[listing, policy("B", "allow")])


def test_an_entry_that_no_tool_matches_is_reported() -> None:
    policies = [policy("A", refnud={}, pay__={}, refund={}), policy("B", refund={})]
    assert unmatched_tools(policies, ["refund", "search"]) == {"A": ("refnud", "pay*")}


def test_the_hash_covers_effective_values_and_not_their_origins() -> None:
    by_handler = compile_settings("a", handler={"lease_ttl_s": 30})
    by_policy = compile_settings("b", policies=[policy("P", b={"lease_ttl_s": 30.0})])
    assert by_handler.hash == by_policy.hash == "45da4dd5fc25b5a0e7f4433b703d9791"
    assert ToolSettings(guard=GuardConfig(lease_ttl_s=30)).hash == by_handler.hash
    assert compile_settings("a").hash != by_handler.hash


BOOL = st.booleans()
GUARD_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "enabled": BOOL,
    "delivery": st.sampled_from(["at_least_once", "at_most_once"]),
    "max_attempts": st.integers(1, 1000),
    "lease_ttl_s": st.floats(0.05, 86_400),
    "heartbeat_s": st.floats(0.001, 60),
    "wait_poll_s": st.floats(0.001, 3_600),
    "on_lost_lease": st.sampled_from(["cancel", "finish"]),
    "fence_results": BOOL,
}
EXTRA = {"requires_approval": BOOL, "timeout_s": st.floats(0.001, 604_800)}


def layer(values: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    def fits(found: dict[str, Any]) -> bool:
        try:
            ToolEntry(name="x", settings=found)
        except ConfigError:
            return False
        return True

    return st.fixed_dictionaries({}, optional=values).filter(fits)


RULES = st.builds(
    lambda name, defaults, exact, prefix: ToolPolicyRules(
        name=name,
        defaults=defaults,
        tools=[ToolEntry(name="refund", settings=exact), ToolEntry(name="ref*", settings=prefix)]
        if exact is not None
        else [ToolEntry(name="ref*", settings=prefix)],
    ),
    st.sampled_from("ABC"),
    layer(GUARD_VALUES),
    st.none() | layer({**GUARD_VALUES, **EXTRA}),
    layer({**GUARD_VALUES, **EXTRA}),
)


def compiled(**layers: Any) -> ToolSettings | str:
    try:
        return compile_settings("refund", **layers)
    except (ConfigError, PolicyConflict) as error:
        return str(error)


@settings(max_examples=60, deadline=None)
@given(
    handler=layer(GUARD_VALUES),
    decorator=layer({**GUARD_VALUES, **EXTRA}),
    policies=st.lists(RULES, max_size=3),
    data=st.data(),
)
def test_merging_is_deterministic_and_knows_no_order_among_policies(
    handler: dict[str, Any], decorator: dict[str, Any], policies: list[Any], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(policies))
    one = compiled(handler=handler, decorator=decorator, policies=policies)
    other = compiled(handler=handler, decorator=decorator, policies=shuffled)
    assert one == other
    if isinstance(one, ToolSettings) and isinstance(other, ToolSettings):
        assert (one.origins, one.notes, one.hash) == (other.origins, other.notes, other.hash)
    assert PolicyLayers(policies=policies).hash == PolicyLayers(policies=shuffled).hash


@settings(max_examples=100, deadline=None)
@given(decorator=layer({**GUARD_VALUES, **EXTRA}), prefix=layer({**GUARD_VALUES, **EXTRA}))
def test_a_prefix_entry_only_ever_tightens(
    decorator: dict[str, Any], prefix: dict[str, Any]
) -> None:
    before = compiled(decorator=decorator)
    after = compiled(decorator=decorator, policies=[policy("P", ref__=prefix)])
    if isinstance(before, str) or isinstance(after, str):
        return  # refused: nothing runs, so nothing is loosened
    assert tightens(before.guard, after.guard)
    assert after.requires_approval or not before.requires_approval
    if before.timeout_s is not None:
        assert after.timeout_s is not None
        assert after.timeout_s <= before.timeout_s


@settings(max_examples=60, deadline=None)
@given(
    handler=layer(GUARD_VALUES),
    defaults=layer(GUARD_VALUES),
    decorator=layer(GUARD_VALUES),
    exact=layer(GUARD_VALUES),
)
def test_each_field_has_the_value_of_the_last_layer_that_sets_it(
    handler: dict[str, Any],
    defaults: dict[str, Any],
    decorator: dict[str, Any],
    exact: dict[str, Any],
) -> None:
    merged = compiled(
        handler=handler,
        decorator=decorator,
        policies=[policy("P", defaults=defaults, refund=exact)],
    )
    if isinstance(merged, str):
        return
    expected = {**handler, **defaults, **decorator, **exact}
    for name, value in expected.items():
        assert getattr(merged.guard, name) == value


@settings(max_examples=25, deadline=None)
@given(st.lists(RULES, max_size=3))
def test_policies_survive_their_way_through_json(policies: list[ToolPolicyRules]) -> None:
    layers = PolicyLayers(policies=policies)
    assert PolicyLayers.from_json(layers.to_json()) == layers
