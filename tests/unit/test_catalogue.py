"""What a worker says of itself, and what an outsider makes of it."""

from __future__ import annotations

import json

import pytest

from aaa.catalogue import MAX_BYTES, Catalogue, ToolLayers, decode
from aaa.errors import PolicyConflict
from aaa.policy import ToolEntry, ToolPolicyRules
from aaa.tools import ToolHandler, ToolRegistry, tool


@tool(delivery="at_most_once", idempotency_key=lambda args: f"refund:{args['order_id']}")
async def refund(order_id: str) -> str:
    """Refund an order."""
    return order_id


def policy(name: str, **settings: object) -> ToolPolicyRules:
    return ToolPolicyRules(name="p", tools=[ToolEntry(name=name, settings=settings)])


def test_an_outsider_merges_a_policy_with_the_codes_layers_as_the_worker_does() -> None:
    handler = ToolHandler(ToolRegistry([refund]))
    said = decode(Catalogue(tools=tuple(handler.layers())).encode())
    (mine,) = said.tools
    tighter = policy("refund", requires_approval=True)
    handler.use_policies([tighter])
    assert mine.settings([tighter]).hash == handler.settings_for("refund").hash
    assert said.complete
    with pytest.raises(PolicyConflict, match="enabled=False cannot be combined"):
        mine.settings([policy("refund", enabled=False)])


def test_what_does_not_fit_is_left_out_and_said() -> None:
    tools = tuple(
        ToolLayers(name=f"tool_{number}", schema="0" * 32, handler={"max_attempts": 3})
        for number in range(2_000)
    )
    refused = {f"{number:032x}": "no " * 1_000 for number in range(100)}
    info = Catalogue(policies=frozenset({"a" * 32}), tools=tools, refused=refused).encode()
    assert len(info) <= MAX_BYTES
    said = decode(info)
    assert said.policies == {"a" * 32}
    assert not said.complete
    assert 0 < len(said.tools) < 2_000


@pytest.mark.parametrize("info", [b"{}", b"", b"[]", b'{"tools":[{"name":1}]}', b"\xff"])
def test_a_worker_that_cannot_be_understood_has_acknowledged_nothing(info: bytes) -> None:
    said = decode(info)
    assert (said.policies, said.tools, said.complete) == (frozenset(), (), False)


def test_the_fields_are_those_that_are_documented() -> None:
    layers = ToolLayers(name="refund", schema="f" * 32, decorator={"delivery": "at_most_once"})
    info = json.loads(Catalogue(policies=frozenset({"b", "a"}), tools=(layers,)).encode())
    assert info == {
        "policies": ["a", "b"],
        "refused": {},
        "tools": [
            {
                "name": "refund",
                "schema": "f" * 32,
                "handler": {},
                "decorator": {"delivery": "at_most_once"},
                "verify": False,
            }
        ],
    }
