"""What ToolPolicies say, as plain data: snake_case names, seconds, no Kubernetes.

:class:`ToolPolicyRules` is one policy, :class:`PolicyLayers` the policies that bind one run. Both
turn into plain JSON and back, which is how they travel in a ConfigMap; reading them back checks
them as strictly as making them does. The merge with a tool's own layers happens where the tool's
code is known (:mod:`aaa.policy.compile`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Self, cast

from aaa.errors import ConfigError
from aaa.policy.config import GUARD_FIELDS
from aaa.policy.overrides import SETTING_FIELDS, check_overrides, plain
from aaa.policy.settings import digest

UnlistedTools = Literal["allow", "deny"]


@dataclass(frozen=True, kw_only=True)
class ToolEntry:
    """What a policy says about one tool, or about a prefix of names ending in ``*``."""

    name: str
    settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.name or "*" in self.name[:-1]:
            raise ConfigError(
                f"{self.name!r} must be a tool's name, or the beginning of one followed by '*'"
            )
        checked = check_overrides(self.settings, where=f"entry {self.name!r}")
        object.__setattr__(self, "settings", checked)

    @property
    def is_prefix(self) -> bool:
        return self.name.endswith("*")

    def matches(self, tool: str) -> bool:
        return tool.startswith(self.name[:-1]) if self.is_prefix else tool == self.name


@dataclass(frozen=True, kw_only=True)
class ToolPolicyRules:
    """One policy. Raises :class:`ConfigError` naming the policy, the entry and the field."""

    name: str
    #: GuardConfig fields for every tool; a tool's decorator overrides them.
    defaults: Mapping[str, object] = field(default_factory=dict)
    tools: Sequence[ToolEntry] = ()
    #: Whether a run may call tools without an entry here; ``None`` says nothing about it.
    unlisted_tools: UnlistedTools | None = None

    def __post_init__(self) -> None:
        where = f"policy {self.name!r} defaults"
        for name in self.defaults:
            if name in SETTING_FIELDS and name not in GUARD_FIELDS:
                raise ConfigError(f"{where}: {name} belongs into an entry of a tool, or of '*'")
        object.__setattr__(self, "defaults", check_overrides(self.defaults, where=where))
        object.__setattr__(self, "tools", tuple(self.tools))
        seen: set[str] = set()
        for entry in self.tools:
            if entry.name in seen:
                raise ConfigError(f"policy {self.name!r} has two entries for {entry.name!r}")
            seen.add(entry.name)
        if self.unlisted_tools not in (None, "allow", "deny"):
            raise ConfigError(
                f"policy {self.name!r}: unlisted_tools must be 'allow' or 'deny', "
                f"not {self.unlisted_tools!r}"
            )

    @cached_property
    def digest(self) -> str:
        """32 hex digits over what the policy says, its name included."""
        return digest(self.to_json())

    def entry_for(self, tool: str) -> ToolEntry | None:
        """The one entry that speaks about ``tool``: its exact name, else the longest prefix."""
        matching = [entry for entry in self.tools if entry.matches(tool)]
        return max(matching, key=lambda entry: (not entry.is_prefix, len(entry.name)), default=None)

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "defaults": {name: plain(value) for name, value in self.defaults.items()},
            "tools": [
                {"name": entry.name, "settings": {k: plain(v) for k, v in entry.settings.items()}}
                for entry in self.tools
            ],
            "unlisted_tools": self.unlisted_tools,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Self:
        """Read :meth:`to_json` back. An unknown key is refused: it may be a protection."""
        try:
            _only_keys(data, {"name", "defaults", "tools", "unlisted_tools"})
            entries = cast("Sequence[Mapping[str, object]]", data.get("tools", ()))
            for entry in entries:
                _only_keys(entry, {"name", "settings"})
            return cls(
                name=cast("str", data["name"]),
                defaults=cast("Mapping[str, object]", data.get("defaults", {})),
                tools=[
                    ToolEntry(
                        name=cast("str", entry["name"]),
                        settings=cast("Mapping[str, object]", entry.get("settings", {})),
                    )
                    for entry in entries
                ],
                unlisted_tools=cast("UnlistedTools | None", data.get("unlisted_tools")),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"a policy's JSON has the wrong shape: {error!r}") from None


@dataclass(frozen=True, kw_only=True)
class PolicyLayers:
    """The policies that bind a run, in no order: equal sets are equal and have one hash."""

    policies: Sequence[ToolPolicyRules] = ()

    def __post_init__(self) -> None:
        ordered = sorted(self.policies, key=lambda policy: (policy.name, policy.digest))
        object.__setattr__(self, "policies", tuple(ordered))

    @cached_property
    def hash(self) -> str:
        """32 hex digits over what the policies say; the key of a ConfigMap's entry."""
        return digest(self.to_json())

    def to_json(self) -> dict[str, object]:
        return {"policies": [policy.to_json() for policy in self.policies]}

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Self:
        try:
            _only_keys(data, {"policies"})
            policies = cast("Sequence[Mapping[str, object]]", data["policies"])
            return cls(policies=[ToolPolicyRules.from_json(policy) for policy in policies])
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"the policies' JSON has the wrong shape: {error!r}") from None


def unmatched_tools(
    policies: Iterable[ToolPolicyRules], known_tools: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    """For each policy, its entries that no known tool matches: a typo must not read as safety."""
    known = tuple(known_tools)
    found = {
        policy.name: tuple(
            entry.name for entry in policy.tools if not any(entry.matches(tool) for tool in known)
        )
        for policy in policies
    }
    return {name: entries for name, entries in sorted(found.items()) if entries}


def _only_keys(data: Mapping[str, object], known: set[str]) -> None:
    unknown = sorted(set(data) - known)
    if unknown:
        raise ConfigError(f"a policy's JSON has the unknown key {unknown[0]!r}")
