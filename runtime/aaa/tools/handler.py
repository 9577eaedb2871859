"""ToolHandler: a registry together with how its calls are delivered.

It merges the layers of :mod:`aaa.policy` for each tool and refuses, at :meth:`attach`, whatever
does not fit together (G17). Policies may be exchanged while it runs; a call that has begun keeps
what it began with, tightened at most (G22).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from aaa.catalogue import ToolLayers, plain_layer
from aaa.errors import ConfigError
from aaa.policy import (
    KEY_FROM_CODE,
    GuardConfig,
    PolicyLayers,
    ToolPolicyRules,
    ToolSettings,
    compile_settings,
    guard_layer,
    render_key,
)
from aaa.tools.definition import Tool
from aaa.tools.registry import ToolRegistry
from aaa.tools.result import DEFAULT_LIMIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Engine(Protocol):
    def use_tools(self, handler: ToolHandler) -> None: ...


class ToolHandler:
    """Runs the tools of a registry under the guard.

    ``guard`` is the default for every tool; a decorator and policies may override it.
    ``result_limit_bytes`` bounds what a tool may return (G16); ``cancel_grace_s`` is how long a
    cancelled tool may take to stop before it is reported as one that cannot be stopped (G9).
    """

    def __init__(
        self,
        registry: ToolRegistry,
        *,
        guard: GuardConfig | None = None,
        policies: Sequence[ToolPolicyRules] = (),
        result_limit_bytes: int = DEFAULT_LIMIT_BYTES,
        cancel_grace_s: float = 5.0,
    ) -> None:
        if guard is not None and not isinstance(guard, GuardConfig):
            raise ConfigError(f"ToolHandler: guard must be a GuardConfig, not {guard!r:.80}")
        self.registry = registry
        self.guard = guard or GuardConfig()
        self._said = guard  # what nobody has said comes from nobody: its origin is "built-in"
        self.policies = tuple(policies)
        self.result_limit_bytes = result_limit_bytes
        self.cancel_grace_s = cancel_grace_s
        self._settings: dict[str, ToolSettings] = {}

    def attach(self, engine: _Engine) -> None:
        """Give the engine these tools. Raises :class:`ConfigError` naming what conflicts."""
        self.compile()
        engine.use_tools(self)

    def compile(self) -> Mapping[str, ToolSettings]:
        """The settings of every tool; raises for the first that does not fit together."""
        self._settings = {each.name: self._compile(each) for each in self.registry}
        return dict(self._settings)

    @property
    def compiled(self) -> Mapping[str, ToolSettings]:
        """The settings as last compiled: another object after each change."""
        return self._settings

    def use_policies(self, policies: Sequence[ToolPolicyRules]) -> None:
        """Exchange the policies in force. An invalid merge is refused and changes nothing."""
        before = self.policies
        self.policies = tuple(policies)
        try:
            self.compile()
        except Exception:
            self.policies = before
            self.compile()
            raise

    def config_for(self, tool: Tool[..., Any] | str) -> GuardConfig:
        """The delivery settings in force for a tool."""
        return self.settings_for(tool if isinstance(tool, str) else tool.name).guard

    def settings_for(self, name: str) -> ToolSettings:
        """All settings in force for a tool, with their origins. KeyError for a foreign one."""
        if name not in self._settings:
            tool = self.registry.get(name)
            if tool is None:
                raise KeyError(name)
            self._settings[name] = self._compile(tool)
        return self._settings[name]

    def key_for(self, tool: Tool[..., Any], arguments: dict[str, Any], *, default: str) -> str:
        """The idempotency key of a call; ``default`` unless code or policy gives a business key."""
        settings = self.settings_for(tool.name)
        if settings.idempotency_key_template is not None:
            return render_key(settings.idempotency_key_template, arguments)
        return tool.key_for(arguments, default=default)

    def under(self, layers: PolicyLayers) -> ToolHandler:
        """The same tools under the policies of ``layers`` beside its own.

        Raises :class:`PolicyConflict` or :class:`ConfigError` for an invalid merge.
        """
        other = copy.copy(self)
        other.policies = (*self.policies, *layers.policies)
        other.compile()
        return other

    def layers(self) -> list[ToolLayers]:
        """What the code itself says about each tool, for others to merge policies with."""
        said = {} if self._said is None else guard_layer(self._said)
        return [
            ToolLayers(
                name=tool.name,
                schema=tool.schema_digest,
                handler=plain_layer(said),
                decorator=plain_layer(_decorator(tool)),
                has_verify=tool.verify is not None,
            )
            for tool in self.registry
        ]

    def _compile(self, tool: Tool[..., Any]) -> ToolSettings:
        return compile_settings(
            tool.name,
            handler=self._said,
            decorator=_decorator(tool),
            policies=self.policies,
            has_verify=tool.verify is not None,
        )


def _decorator(tool: Tool[..., Any]) -> dict[str, object]:
    """The layer of the tool's decorator."""
    own: dict[str, object] = dict(tool.overrides)
    if tool.requires_approval:
        own["requires_approval"] = True
    if tool.timeout_s is not None:
        own["timeout_s"] = tool.timeout_s
    if tool.idempotency_key is not None:
        own["idempotency_key"] = KEY_FROM_CODE
    return own
