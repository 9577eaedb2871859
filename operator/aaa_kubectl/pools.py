"""``pools``, ``restart``, ``evictions``: the workers behind the runs."""

from __future__ import annotations

import json as plain_json
from typing import Annotated, Any

import typer

from aaa.cli import loop
from aaa.cli.options import JsonOption
from aaa.errors import ConfigError
from aaa_kubectl.looking import reading_all
from aaa_operator import names


def pools(json: JsonOption = False) -> int:
    """List the namespace's worker pools with their pods.

    \b
    Example:
      kubectl aaa pools -n shop
    """
    return loop.run(_pools(json))


async def _pools(json: bool) -> int:
    from rich.table import Table
    from rich.text import Text

    from aaa.cli import screen
    from aaa.cli.text import clean, moment, one

    told: dict[str, Any] = {"pools": []}
    async with reading_all() as (site, remote):
        if remote is not None:
            told = await remote.get("/pools")
    if json:
        for pool in told["pools"]:
            screen.say_json(pool)
        return 0
    if not told["pools"]:
        screen.note(f"no pools in {site.namespace}")
        return 0
    for pool in told["pools"]:
        head = Text(pool["name"], style="bold")
        head.append(
            f"  {pool['ready']} of {pool['replicas']} ready, {one(pool['runs'], 'open run')}"
        )
        if pool["restartingSinceMs"] is not None:
            head.append(f", restarting since {moment(pool['restartingSinceMs'])}", style="yellow")
        screen.out().print(head, soft_wrap=True)
        if pool["problem"] is not None:
            problem = pool["problem"]
            screen.say(f"  {problem['reason']}: {problem['message']}", style="yellow")
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
        for pod in pool["pods"]:
            begun = "" if pod["startedMs"] is None else moment(pod["startedMs"])
            ready = "ready" if pod["ready"] else "not ready"
            again = one(pod["restarts"], "restart") if pod["restarts"] else ""
            table.add_row(f"  {clean(pod['name'])}", pod["phase"], ready, begun, again)
        if pool["pods"]:
            screen.out().print(table)
    return 0


def restart(
    pool: Annotated[str, typer.Argument(metavar="POOL", help="The pool's name; see 'pools'.")],
    json: JsonOption = False,
) -> int:
    """Replace a pool's pods one by one, each after its drain.

    Calls in flight get their drain's time to end.

    \b
    Example:
      kubectl aaa restart aaa-1f0c9d2e3b4a5968 -n shop
    """
    return loop.run(_restart(pool, json))


async def _restart(pool: str, json: bool) -> int:
    from aaa.cli import screen
    from aaa_kubectl.site import connected
    from aaa_operator.api import ApiFailure

    patch = {"metadata": {"annotations": {names.RESTART: "asked"}}}
    async with connected() as site:
        missing = (
            f"there is no pool {pool!r} in {site.namespace}; see 'kubectl aaa pools{site.tail}'"
        )
        try:
            found = await site.api.get("Deployment", pool, namespace=site.namespace)
            if names.POOL not in (found["metadata"].get("labels") or {}):
                raise ConfigError(missing)
            await site.api.merge("Deployment", pool, patch, namespace=site.namespace)
        except ApiFailure as failure:
            if failure.gone:
                raise ConfigError(missing) from failure
            raise
    if json:
        screen.say_json({"pool": pool, "restart": "asked"})
    else:
        screen.say(f"asked {pool} to restart; follow it with 'kubectl aaa pools{site.tail}'")
    return 0


def evictions(json: JsonOption = False) -> int:
    """List the pods that were removed because their worker was frozen, with the evidence.

    \b
    Example:
      kubectl aaa evictions -n shop
    """
    return loop.run(_evictions(json))


async def _evictions(json: bool) -> int:
    from rich.text import Text

    from aaa.cli import screen
    from aaa.cli.text import short

    async with reading_all() as (site, remote):
        if remote is not None:
            found = (await remote.get("/evictions"))["evictions"]
        else:  # the record outlives the runs
            found = await _recorded(site)
    for one in found:
        if json:
            screen.say_json(one)
            continue
        head = Text(f"{short(one.get('at', ''), 40)}  {short(one.get('pod', ''), 253)}  ")
        refused = str(one.get("outcome", "")).startswith("Refused")
        head.append(short(one.get("outcome", ""), 80), style="red" if refused else "")
        screen.out().print(head, soft_wrap=True)
        screen.say(f"  {short(one.get('reason', ''), 400)}")
        said = ", ".join(f"{key}={value}" for key, value in (one.get("evidence") or {}).items())
        screen.say(f"  {short(said, 600)}", style="dim")
    if not found and not json:
        screen.note(f"no pod was evicted in {site.namespace}")
    return 0


async def _recorded(site: Any) -> list[dict[str, Any]]:
    from aaa_operator.api import ApiFailure

    try:
        raw = await site.api.get("ConfigMap", names.EVICTIONS, namespace=site.namespace)
        found = plain_json.loads((raw.get("data") or {}).get("evictions.json", "[]"))
    except ApiFailure as failure:
        if failure.gone:
            return []
        raise
    return [each for each in found if isinstance(each, dict)]
