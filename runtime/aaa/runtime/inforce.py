"""What is in force for a run: the tools under the policy that the run requires.

A worker that follows policies runs the calls of a run only under the policy that the store says the
run requires, and only if it has read that policy and found that it fits the code's own layers. What
it has not read, or refuses, it offers nothing for: a slow or broken delivery of policies delays
calls and never loosens one. A worker that follows none serves runs that require none, as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aaa.errors import FixError
from aaa.policy import PolicyLayers, ToolSettings
from aaa.store import port
from aaa.store.port import ToolTerms
from aaa.tools import ToolHandler


class InForce:
    """The accepted policies of one worker, each with the tools compiled under it."""

    def __init__(self) -> None:
        #: The tools as the code has them, for runs that require no policy.
        self.tools: ToolHandler | None = None
        #: Whether runs that require no policy are left alone.
        self.required = False
        self.refused: dict[str, str] = {}
        self._under: dict[str, ToolHandler | None] = {}
        self._offers: dict[str, dict[str, ToolTerms]] = {}
        #: What is offered of the tools as the code has them, and of which compilation that is.
        self._own: tuple[Mapping[str, ToolSettings], dict[str, ToolTerms]] | None = None

    @property
    def policies(self) -> frozenset[str]:
        """The hashes under which calls are run here."""
        return frozenset(self._under)

    def follow(self, layers: Mapping[str, PolicyLayers], refused: Mapping[str, str]) -> None:
        """Exchange the policies; each that does not fit the code is refused with a sentence."""
        self.required = True
        under: dict[str, ToolHandler | None] = {}
        found = dict(refused)
        for hash_, one in layers.items():
            try:
                known = self._under.get(hash_)
                under[hash_] = known or (None if self.tools is None else self.tools.under(one))
            except FixError as error:
                found[hash_] = str(error)
        self._under, self.refused = under, found
        self._offers = {
            hash_: {} if tools is None else _offer(tools, hash_) for hash_, tools in under.items()
        }

    def knows(self, policy: str) -> bool:
        """Whether runs that require ``policy`` may be decided and run here."""
        return policy in self._under if policy else not self.required

    def under(self, policy: str) -> ToolHandler | None:
        """The tools under a policy that is known here."""
        return self._under[policy] if policy else self.tools

    def of_call(self, claimed: port.Claimed) -> ToolHandler | None:
        """The tools under the policy of a claimed call.

        A policy that went between claim and start is not offered any more; what was claimed under it
        is run under the code's own settings, with the delivery that the claim has fixed.
        """
        return self._under.get(port.policy_of(claimed.queue), self.tools)

    def offers(self, policy: str | None = None) -> dict[str, ToolTerms]:
        """The queues of tools to claim from; of runs that require ``policy``, or of all."""
        if policy:
            return dict(self._offers.get(policy, {}))
        own = dict(self._own_offer())
        if policy is None:
            for offer in self._offers.values():
                own |= offer
        return own

    def _own_offer(self) -> dict[str, ToolTerms]:
        if self.required or self.tools is None:
            return {}
        settings = self.tools.compiled
        if self._own is None or self._own[0] is not settings:
            self._own = (settings, _offer(self.tools, ""))
        return self._own[1]

    def handlers(self) -> Iterable[ToolHandler]:
        """Every set of tools under which a call may run here."""
        if self.tools is not None and not self.required:
            yield self.tools
        yield from (tools for tools in self._under.values() if tools is not None)


def _offer(tools: ToolHandler, policy: str) -> dict[str, ToolTerms]:
    offered = {}
    for tool in tools.registry:
        settings = tools.settings_for(tool.name)
        guard = settings.guard
        offered[port.tool_queue(tool.name, policy)] = ToolTerms(
            delivery=guard.delivery.value,
            max_attempts=guard.max_attempts,
            lease_ttl_ms=round(guard.lease_ttl_s * 1000),
            policy=policy or settings.hash,
            guarded=guard.enabled,
            needs_approval=settings.requires_approval,
            settings=settings.hash if policy else "",
        )
    return offered
