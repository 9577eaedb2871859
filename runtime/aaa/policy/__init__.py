"""Delivery policy: what may be set per tool, in which layers, and how the layers merge.

Pure: no input or output, no clock, nothing but :mod:`aaa.errors` and the standard library, so
that the laptop, a worker and the operator compute the same answer from the same layers.

- :mod:`aaa.policy.config`: :class:`GuardConfig`, the complete and valid delivery settings.
- :mod:`aaa.policy.overrides`: one layer's partial settings, checked where they are written.
- :mod:`aaa.policy.keys`: idempotency-key templates such as ``refund:{order_id}``.
- :mod:`aaa.policy.strictness`: what "tighter" means, field by field; :func:`pin` for calls begun.
- :mod:`aaa.policy.rules`: what ToolPolicies say, as plain data that travels in a ConfigMap.
- :mod:`aaa.policy.settings`: :class:`ToolSettings`, what is in force for one tool, and its hash.
- :mod:`aaa.policy.compile`: the order of precedence.
"""

from __future__ import annotations

from aaa.policy.compile import compile_settings, guard_layer
from aaa.policy.config import GUARD_FIELDS, Delivery, GuardConfig, OnLostLease
from aaa.policy.keys import check_template, render_key
from aaa.policy.overrides import (
    KEY_FROM_CODE,
    MAX_TIMEOUT_S,
    SETTING_FIELDS,
    check_overrides,
)
from aaa.policy.rules import PolicyLayers, ToolEntry, ToolPolicyRules, unmatched_tools
from aaa.policy.settings import ToolSettings
from aaa.policy.strictness import pin, tightens

__all__ = [
    "GUARD_FIELDS",
    "KEY_FROM_CODE",
    "MAX_TIMEOUT_S",
    "SETTING_FIELDS",
    "Delivery",
    "GuardConfig",
    "OnLostLease",
    "PolicyLayers",
    "ToolEntry",
    "ToolPolicyRules",
    "ToolSettings",
    "check_overrides",
    "check_template",
    "compile_settings",
    "guard_layer",
    "pin",
    "render_key",
    "tightens",
    "unmatched_tools",
]
