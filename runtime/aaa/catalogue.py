"""The catalogue: what a worker says of itself to those who look after workers.

It travels as the JSON info of the worker's heartbeat: which policies it has read and accepted, which
it refuses and why, and the layers that its image's own code says about each tool. Whoever has it can
merge a policy with these layers by :mod:`aaa.policy`, exactly as the worker does, without the code.

It is at most :data:`MAX_BYTES` long. What does not fit is left out, tools first, and said:
``complete`` is false then, and a tool that is not listed may exist all the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Self

from aaa.errors import AAAError, ConfigError
from aaa.policy import ToolPolicyRules, ToolSettings, check_overrides, compile_settings

MAX_BYTES: Final = 64 * 1024
#: Policies named as accepted, and as refused; a pool has a handful.
MAX_POLICIES: Final = 1_024
MAX_REFUSED: Final = 16
MAX_SENTENCE_CHARS: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLayers:
    """What the code says about one tool: the two middle layers of :mod:`aaa.policy.compile`."""

    name: str
    #: Digest of the arguments' schema.
    schema: str
    handler: Mapping[str, object] = field(default_factory=dict)
    decorator: Mapping[str, object] = field(default_factory=dict)
    has_verify: bool = False

    def settings(self, policies: Sequence[ToolPolicyRules]) -> ToolSettings:
        """The merge under these policies. Raises :class:`ConfigError` or :class:`PolicyConflict`."""
        return compile_settings(
            self.name,
            handler=self.handler,
            decorator=self.decorator,
            policies=policies,
            has_verify=self.has_verify,
        )

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "schema": self.schema,
            "handler": dict(self.handler),
            "decorator": dict(self.decorator),
            "verify": self.has_verify,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Checked as strictly as where it was written. Raises :class:`ConfigError`."""
        return cls(
            name=str(data["name"]),
            schema=str(data["schema"]),
            handler=check_overrides(data.get("handler", {}), where="handler"),
            decorator=check_overrides(data.get("decorator", {}), where=f"tool {data['name']!r}"),
            has_verify=data.get("verify") is True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """One worker's word about itself."""

    #: Hashes of the policies that it has read and runs calls under: its acknowledgement.
    policies: frozenset[str] = frozenset()
    #: By hash (or file, where there is none): why a policy is refused.
    refused: Mapping[str, str] = field(default_factory=dict)
    tools: tuple[ToolLayers, ...] = ()
    #: Whether ``tools`` has them all.
    complete: bool = True
    #: It claims nothing more and ends soon.
    draining: bool = False
    pod_uid: str = ""

    def encode(self) -> bytes:
        """As the heartbeat's info."""
        refused = sorted(self.refused.items())[:MAX_REFUSED]
        said: dict[str, object] = {
            "policies": sorted(self.policies)[:MAX_POLICIES],
            "refused": {name: why[:MAX_SENTENCE_CHARS] for name, why in refused},
        }
        said |= {"draining": True} if self.draining else {}
        said |= {"pod_uid": self.pod_uid} if self.pod_uid else {}
        tools = [tool.to_json() for tool in self.tools]
        room = MAX_BYTES - len(_text({**said, "tools": [], "left_out": len(tools)}))
        fitting = 0
        for tool in tools:
            room -= len(_text(tool)) + 1
            if room < 0:
                break
            fitting += 1
        left_out = len(tools) - fitting + (0 if self.complete else 1)
        said |= {"left_out": left_out} if left_out else {}
        return _text({**said, "tools": tools[:fitting]})


@lru_cache(maxsize=1_024)
def decode(info: bytes) -> Catalogue:
    """What a worker says. One that says nothing, or what cannot be read, has acknowledged nothing."""
    try:
        said = json.loads(info)
        return Catalogue(
            policies=frozenset(each for each in said.get("policies", ()) if isinstance(each, str)),
            refused={str(name): str(why) for name, why in said.get("refused", {}).items()},
            tools=tuple(ToolLayers.from_json(tool) for tool in said.get("tools", ())),
            complete="tools" in said and not said.get("left_out"),
            draining=said.get("draining") is True,
            pod_uid=str(said.get("pod_uid", "")),
        )
    except (ValueError, TypeError, AttributeError, KeyError, AAAError):
        return Catalogue(complete=False)


def plain_layer(layer: Mapping[str, object]) -> dict[str, object]:
    """A layer as JSON, checked. Raises :class:`ConfigError` for one that cannot stand."""
    checked = check_overrides(layer)
    try:
        plain: dict[str, object] = json.loads(json.dumps(checked))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a layer cannot be written as JSON: {error}") from None
    return plain


def _text(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
