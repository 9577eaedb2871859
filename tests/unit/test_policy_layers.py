"""Single layers, key templates, and what holds for a call that has begun."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaa.errors import ConfigError, InvalidArguments
from aaa.policy import (
    KEY_FROM_CODE,
    Delivery,
    GuardConfig,
    PolicyLayers,
    ToolEntry,
    ToolPolicyRules,
    check_overrides,
    pin,
    render_key,
    tightens,
)


@pytest.mark.guarantee("G17")
@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        ({"max_attempt": 1}, "'max_attempt' is not a setting; did you mean 'max_attempts'?"),
        ({"max_attempts": 0}, "max_attempts must be between 1 and 1000, not 0"),
        ({"max_attempts": True}, "max_attempts must be a whole number"),
        ({"lease_ttl_s": float("nan")}, "lease_ttl_s must be between 0.05 and 86400 seconds"),
        ({"heartbeat_s": 86_400}, "heartbeat_s must be below 86400"),
        ({"heartbeat_s": 86_401}, "heartbeat_s must be between 0.001 and 86400"),
        ({"delivery": "exactly_once"}, "delivery must be 'at_least_once' or 'at_most_once'"),
        ({"timeout_s": 0}, "timeout_s must be between 0.001 and 604800 seconds, not 0"),
        ({"timeout_s": "5"}, "timeout_s must be a number of seconds, not '5'"),
        ({"requires_approval": "yes"}, "requires_approval must be true or false, not 'yes'"),
        ({"idempotency_key": "refund"}, "names no argument"),
        ({"idempotency_key": 7}, "must be a template"),
        (
            {"heartbeat_s": 5, "lease_ttl_s": 5},
            r"heartbeat_s \(5\) must be smaller than lease_ttl_s",
        ),
        (
            {"enabled": False, "requires_approval": True},
            "cannot be combined with requires_approval",
        ),
    ],
)
def test_a_bad_layer_is_refused_where_it_is_written(layer: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=f"tool 'refund': .*{expected}"):
        check_overrides(layer, where="tool 'refund'")


def test_what_only_another_layer_can_contradict_is_accepted() -> None:
    assert check_overrides({"heartbeat_s": 20, "delivery": "at_most_once"}) == {
        "heartbeat_s": 20.0,
        "delivery": Delivery.AT_MOST_ONCE,
    }
    assert check_overrides({"idempotency_key": str})["idempotency_key"] == KEY_FROM_CODE


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"policies": [{"name": "P", "tool": []}]}, "unknown key 'tool'"),
        (
            {"policies": [{"name": "P", "tools": [{"name": "a", "settings": {"dlivery": 1}}]}]},
            "dlivery",
        ),
        ({"policies": [{}]}, "wrong shape"),
        ({"policies": [{"name": "P", "defaults": {"timeout_s": 1}}]}, "belongs into an entry"),
        ({"policies": [{"name": "P", "tools": [{"name": "a"}, {"name": "a"}]}]}, "two entries"),
        ({"policies": [{"name": "P", "tools": [{"name": "a*b"}]}]}, "beginning of one"),
        ({"policies": [{"name": "P", "unlisted_tools": "Deny"}]}, "'allow' or 'deny'"),
    ],
)
def test_layers_that_were_tampered_with_are_refused_when_read_back(
    data: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        PolicyLayers.from_json(data)


def test_a_policy_name_and_entry_stand_in_its_error() -> None:
    with pytest.raises(ConfigError, match=r"policy 'P' defaults: guard.max_attempts"):
        ToolPolicyRules(name="P", defaults={"max_attempts": 0})
    with pytest.raises(ConfigError, match=r"entry 'ref\*': guard.max_attempts"):
        ToolEntry(name="ref*", settings={"max_attempts": 0})


@pytest.mark.parametrize(
    ("template", "args", "key"),
    [
        ("refund:{order_id}", {"order_id": "A-100"}, "refund:A-100"),
        ("refund:{order_id}", {"order_id": "A:100%"}, "refund:A:100%"),
        ("{order.id}", {"order": {"id": 7}}, "7"),
        ("{{{a}}}", {"a": True}, "{true}"),
        ("{a}:{b}", {"a": "x:y", "b": "z%"}, "x%3Ay:z%25"),
    ],
)
def test_a_template_becomes_a_key(template: str, args: dict[str, Any], key: str) -> None:
    assert render_key(template, args) == key


@pytest.mark.parametrize(
    "template",
    [
        "",
        "refund",
        "{}",
        "{0}",
        "{a!r}",
        "{a:>9}",
        "{a.__class__.b.}",
        "{a[0]}",
        "{a",
        "a}",
        "{a}{b}",
        "{a}" + "x" * 256,
    ],
)
def test_a_bad_template_is_a_configuration_error(template: str) -> None:
    with pytest.raises(ConfigError, match="idempotency_key"):
        render_key(template, {"a": "x", "b": "y"})


@pytest.mark.parametrize(
    "args", [{}, {"a": None}, {"a": ""}, {"a": [1]}, {"a": {"b": 1}}, {"a": "x" * 300}]
)
def test_arguments_that_give_no_key_are_invalid_arguments(args: dict[str, Any]) -> None:
    with pytest.raises(InvalidArguments, match="idempotency key"):
        render_key("k:{a}", args)


def test_a_template_reads_arguments_and_not_attributes() -> None:
    with pytest.raises(InvalidArguments):
        render_key("{a.__class__}", {"a": "x"})


@given(st.tuples(st.text(min_size=1, max_size=9), st.text(min_size=1, max_size=9)), st.data())
def test_different_arguments_never_share_a_key(pair: tuple[str, str], data: st.DataObject) -> None:
    joined = "/".join(pair)
    cut = data.draw(st.integers(1, max(1, len(joined) - 2)))
    other = (joined[:cut], joined[cut + 1 :] or "-")
    keys = {render_key("{a}/{b}", {"a": a, "b": b}) for a, b in (pair, other)}
    assert len(keys) == len({pair, other})


@pytest.mark.guarantee("G22")
def test_a_begun_call_keeps_the_tighter_delivery_and_cap_and_its_lease() -> None:
    once = GuardConfig(delivery=Delivery.AT_MOST_ONCE, max_attempts=2)
    loose = GuardConfig(enabled=False, max_attempts=9, lease_ttl_s=60, fence_results=False)
    assert pin(once, loose) == GuardConfig(
        delivery=Delivery.AT_MOST_ONCE, max_attempts=2, lease_ttl_s=60, fence_results=False
    )
    assert pin(GuardConfig(), once) == once
    assert pin(once, GuardConfig()).delivery is Delivery.AT_MOST_ONCE


@pytest.mark.guarantee("G22")
def test_a_policy_tightens_only_if_no_field_gets_looser() -> None:
    base = GuardConfig()
    assert tightens(base, base)
    assert tightens(base, GuardConfig(delivery=Delivery.AT_MOST_ONCE, max_attempts=1))
    assert not tightens(base, GuardConfig(delivery=Delivery.AT_MOST_ONCE, fence_results=False))
    assert not tightens(base, GuardConfig(lease_ttl_s=30)), "renewed every 10 s instead of every 5"
    assert tightens(base, GuardConfig(lease_ttl_s=30, heartbeat_s=5))


def test_the_policy_needs_nothing_but_the_standard_library() -> None:
    program = "import sys, aaa.policy; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert set(done.stdout.split()).isdisjoint({"pydantic", "yaml", "orjson", "apsw", "typer"})
