"""``python -m aaa_operator.awaited``: wait for an AgentRun to end, and say how it ended.

What ``helm test`` runs: it ends with 0 only if the run has succeeded. Its rights are ``get`` on that
one AgentRun, so it looks again and again instead of watching.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aaa.clock import SYSTEM_CLOCK, Clock
from aaa_operator.api import Api, ApiFailure, connected

LOOK_S: Final = 1.0


async def awaited(
    api: Api, name: str, *, namespace: str, timeout_s: float, clock: Clock = SYSTEM_CLOCK
) -> tuple[bool, str]:
    """Whether the run succeeded in time, and a sentence about it."""
    until_s = clock.boot_s() + timeout_s
    said = "it was never seen"
    while clock.boot_s() < until_s:
        try:
            run = await api.get("AgentRun", name, namespace=namespace)
        except ApiFailure as failure:
            said = str(failure)
        else:
            if _status(run, "Finished") == "True":
                return _status(run, "Succeeded") == "True", _summary(run)
            said = _summary(run)
        await clock.sleep(LOOK_S)
    return False, f"not finished after {timeout_s:g} s: {said}"


def _summary(run: Mapping[str, Any]) -> str:
    conditions = (run.get("status") or {}).get("conditions") or []
    if not conditions:
        return "the operator has said nothing about it yet"
    return "; ".join(
        f"{each['type']}={each['status']} {each.get('reason', '')} {each.get('message', '')}".rstrip()
        for each in conditions
    )


def _status(run: Mapping[str, Any], kind: str) -> str:
    conditions = (run.get("status") or {}).get("conditions") or []
    return next((str(each["status"]) for each in conditions if each["type"] == kind), "Unknown")


async def _run(given: argparse.Namespace) -> int:
    async with connected() as api:
        succeeded, said = await awaited(
            api, given.name, namespace=given.namespace, timeout_s=given.timeout_s
        )
    print(f"agentrun/{given.name} in {given.namespace}: {said}")
    return 0 if succeeded else 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="aaa_operator.awaited", description="Wait for an AgentRun to succeed."
    )
    parser.add_argument("name", metavar="AGENTRUN")
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--timeout-s", type=float, default=240.0)
    try:
        return asyncio.run(_run(parser.parse_args(arguments)))
    except ApiFailure as failure:
        print(failure, file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
