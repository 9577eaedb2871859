"""Entries of policies that match no tool: a misspelt name must not read as safety.

One that asks for a protection (an approval, at most one attempt) is refused: whoever wrote it
believes that something is protected. Any other is a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aaa.errors import ConfigError
from aaa.policy import Delivery, ToolEntry, ToolPolicyRules, unmatched_tools

if TYPE_CHECKING:
    from aaa.app import App


def warnings(policies: Sequence[ToolPolicyRules], app: App, *, name: str) -> list[str]:
    """A sentence for each policy with entries that no tool of the app ``name`` matches.

    Raises :class:`ConfigError` for the first that protects.
    """
    from aaa.manifest.problems import did_you_mean

    known = [tool.name for tool in app.tools.registry] if app.tools is not None else []
    found = unmatched_tools(policies, known)
    for policy in policies:
        for entry in policy.tools:
            if entry.name in found.get(policy.name, ()) and _protects(entry):
                hint = did_you_mean(entry.name.rstrip("*"), known) or "; it has no tools"
                raise ConfigError(
                    f"policy {policy.name} protects {entry.name}, and {name} has no such tool{hint}"
                )
    tools = ", ".join(known) or "none"
    return [
        f"policy {policy} speaks of {', '.join(entries)}, and {name} has no such tool "
        f"(its tools are {tools})"
        for policy, entries in found.items()
    ]


def _protects(entry: ToolEntry) -> bool:
    said = entry.settings
    protection = said.get("requires_approval") is True or said.get("delivery") is (
        Delivery.AT_MOST_ONCE
    )
    return protection and entry.name != "*"  # every tool there is, even if there is none
