"""The order of precedence: which layer's word counts for one tool.

::

    built-in < handler's GuardConfig < ToolPolicy defaults < decorator < entry by exact name
                                                                         then: prefix entry

Of one policy, one entry speaks about a tool: its exact name, else the longest matching prefix.
An exact entry may loosen, on purpose and visibly. A prefix entry can only tighten
(:mod:`aaa.policy.strictness`); what would loosen is ignored and said in ``notes``. Policies have
no order among them: two that give one field of one tool different values *in the same layer*
conflict, and the order in which they are passed never matters.

Whether a tool is allowed at all follows ``unlisted_tools``: a policy speaks about tools that it
has no entry for; one ``deny`` suffices, and an explicit ``allow`` beside it is a conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields

from aaa.errors import ConfigError, PolicyConflict
from aaa.policy.config import GUARD_FIELDS, GuardConfig
from aaa.policy.overrides import (
    KEY_FROM_CODE,
    SETTING_FIELDS,
    check_overrides,
    contradiction,
    plain,
)
from aaa.policy.rules import PolicyLayers, ToolPolicyRules
from aaa.policy.settings import ToolSettings
from aaa.policy.strictness import looser

#: One statement: policy's name, origin for people, settings.
_Said = tuple[str, str, Mapping[str, object]]


def compile_settings(
    tool_name: str,
    *,
    handler: Mapping[str, object] | GuardConfig | None = None,
    decorator: Mapping[str, object] | None = None,
    policies: Sequence[ToolPolicyRules] = (),
    has_verify: bool = False,
) -> ToolSettings:
    """Merge the layers of one tool.

    A ``GuardConfig`` as ``handler`` sets all of its fields; a mapping only those that it names.
    Raises :class:`ConfigError` when the code's own layers do not fit together (found at
    ``attach()``), :class:`PolicyConflict` when a policy takes part, each naming tool, field and
    origins.
    """
    policies = PolicyLayers(policies=policies).policies  # one order, whatever the caller's
    merge = _Merge(tool_name)
    merge.apply(_complete(handler), "handler")
    merge.apply_policies(
        (policy.name, f"policy {policy.name} defaults", policy.defaults) for policy in policies
    )
    where = f"tool {tool_name!r}"
    merge.apply(check_overrides(decorator or {}, has_verify=has_verify, where=where), "decorator")
    entries = [(policy, policy.entry_for(tool_name)) for policy in policies]
    spoken = [
        (
            entry.is_prefix,
            (policy.name, f"policy {policy.name} entry {entry.name!r}", entry.settings),
        )
        for policy, entry in entries
        if entry is not None
    ]
    merge.apply_policies(said for is_prefix, said in spoken if not is_prefix)
    merge.apply_policies((said for is_prefix, said in spoken if is_prefix), only_tighten=True)
    merge.check(has_verify=has_verify)
    allowed, origin = _allowed(tool_name, [policy for policy, entry in entries if entry is None])
    return merge.settings(allowed=allowed, allowed_origin=origin, has_verify=has_verify)


@dataclass
class _Merge:
    """The values so far, with where each comes from."""

    tool: str
    values: dict[str, object] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        built_in = {**guard_layer(GuardConfig()), "requires_approval": False}
        self.apply({**dict.fromkeys(SETTING_FIELDS), **built_in}, "built-in")

    def apply(self, layer: Mapping[str, object], origin: str) -> None:
        for name, value in layer.items():
            self.values[name], self.origins[name] = value, origin

    def apply_policies(self, said: Iterable[_Said], *, only_tighten: bool = False) -> None:
        """Apply one layer of all policies: agree per field, then override or tighten."""
        before = dict(self.values)
        period = self._renew_every_s()
        by_field: dict[str, list[tuple[str, str, object]]] = {}
        for policy, origin, layer in said:
            for name, value in layer.items():
                by_field.setdefault(name, []).append((policy, origin, value))
        for name in (name for name in SETTING_FIELDS if name in by_field):
            value, origin = self._agreed(name, by_field[name])
            old = period if name == "heartbeat_s" else before[name]
            new = self._period_of(value, before) if name == "heartbeat_s" else value
            if not only_tighten or (new != old and not looser(name, old=old, new=new)):
                self.apply({name: value}, origin)
            elif new != old:
                self.notes.append(
                    f"{origin} would loosen {name} of {self.tool!r} from {plain(before[name])} "
                    f"({self.origins[name]}) to {plain(value)}; ignored: a prefix only tightens"
                )
        if only_tighten and self._renew_every_s() > period:
            # A longer lease without a heartbeat of its own would be renewed less often.
            kept = f"{self.origins['lease_ttl_s']} (renewal period kept)"
            self.apply({"heartbeat_s": period}, kept)

    def check(self, *, has_verify: bool) -> None:
        found = contradiction(self.values, has_verify=has_verify)
        if found is None:
            return
        names, reason = found
        origins = " and ".join(f"{name} from {self.origins[name]}" for name in names)
        by_policy = any(self.origins[name].startswith("policy ") for name in names)
        error = PolicyConflict if by_policy else ConfigError
        raise error(f"tool {self.tool!r}: {reason} ({origins})")

    def settings(self, *, allowed: bool, allowed_origin: str, has_verify: bool) -> ToolSettings:
        values, key = self.values, self.values["idempotency_key"]
        timeout_s = values["timeout_s"]
        return ToolSettings(
            guard=GuardConfig(**{name: values[name] for name in GUARD_FIELDS}),  # type: ignore[arg-type]
            requires_approval=values["requires_approval"] is True,
            timeout_s=timeout_s if isinstance(timeout_s, float) else None,
            idempotency_key_template=str(key) if key not in (None, KEY_FROM_CODE) else None,
            key_from_code=key == KEY_FROM_CODE,
            allowed=allowed,
            has_verify=has_verify,
            origins={**self.origins, "allowed": allowed_origin},
            notes=tuple(self.notes),
        )

    def _agreed(self, name: str, said: list[tuple[str, str, object]]) -> tuple[object, str]:
        policy, origin, value = said[0]
        for other, other_origin, other_value in said[1:]:
            if other_value != value:
                raise PolicyConflict(
                    f"tool {self.tool!r}: policies {policy!r} and {other!r} disagree about {name}: "
                    f"{plain(value)} ({origin}) against {plain(other_value)} ({other_origin})"
                )
        return value, " and ".join(origin for _, origin, _ in said)

    def _renew_every_s(self) -> float:
        return self._period_of(self.values["heartbeat_s"], self.values)

    @staticmethod
    def _period_of(heartbeat_s: object, values: Mapping[str, object]) -> float:
        ttl_s = values["lease_ttl_s"]
        if isinstance(heartbeat_s, float):
            return heartbeat_s
        return ttl_s / 3 if isinstance(ttl_s, float) else 0.0


def _complete(handler: Mapping[str, object] | GuardConfig | None) -> Mapping[str, object]:
    if isinstance(handler, GuardConfig):
        return guard_layer(handler)
    return check_overrides(handler or {}, where="handler")


def guard_layer(config: GuardConfig) -> dict[str, object]:
    """A complete config as a layer: it sets all of its fields."""
    given = {item.name: getattr(config, item.name) for item in dataclass_fields(config)}
    return check_overrides(given)


def _allowed(tool: str, silent: Sequence[ToolPolicyRules]) -> tuple[bool, str]:
    """Whether the policies without an entry for ``tool`` let it be called, and who says so."""
    by_word: dict[str, list[str]] = {"allow": [], "deny": []}
    for policy in silent:
        if policy.unlisted_tools is not None:
            by_word[policy.unlisted_tools].append(policy.name)
    allow, deny = sorted(by_word["allow"]), sorted(by_word["deny"])
    if allow and deny:
        raise PolicyConflict(
            f"tool {tool!r}: policies {allow[0]!r} and {deny[0]!r} disagree about unlisted_tools: "
            "one allows and the other denies tools without an entry"
        )
    origin = " and ".join(f"policy {name} unlisted tools" for name in allow or deny)
    return not deny, origin or "built-in"
