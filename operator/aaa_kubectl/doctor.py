"""``doctor``: whether this user's ``kubectl aaa`` can work in this namespace, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aaa.cli import exits, loop
from aaa.cli.options import JsonOption

if TYPE_CHECKING:
    from aaa_kubectl.site import Site

#: What one may do: words, verb, group, resource.
_RIGHTS: Final = (
    ("read runs", "list", "aaa.dev", "agentruns"),
    ("cancel, suspend and resume runs", "patch", "aaa.dev", "agentruns"),
    ("decide on calls", "create", "aaa.dev", "tooldecisions"),
    ("restart pools", "patch", "apps", "deployments"),
)
_ACCESS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was looked at. ``needed``: nothing works without it."""

    what: str
    fine: bool
    said: str = ""
    needed: bool = True


def doctor(json: JsonOption = False) -> int:
    """Check the cluster, AAA's CRDs, the operator's endpoint and your rights.

    \b
    Example:
      kubectl aaa doctor -n shop
    """
    return loop.run(_doctor(json))


async def _doctor(json: bool) -> int:
    from aaa.cli import screen
    from aaa_kubectl.site import connected

    async with connected() as site:
        steps = await _steps(site)
    for step in steps:
        if json:
            screen.say_json({"what": step.what, "fine": step.fine, "said": step.said})
            continue
        mark, style = ("ok", "green") if step.fine else ("no", "red" if step.needed else "yellow")
        screen.say(f"{mark}  {step.what}" + (f": {step.said}" if step.said else ""), style=style)
    return exits.DONE if all(step.fine for step in steps if step.needed) else exits.USAGE


async def _steps(site: Site) -> list[Step]:
    from aaa_kubectl.deciding import user_of

    version = await site.api.get_path("/version")
    said = f"{site.server}, Kubernetes {version.get('gitVersion', '?')}, as {await user_of(site)}"
    steps = [Step(f"context {site.context}", True, said)]
    steps.append(await _definitions(site))
    if not steps[-1].fine:
        return steps
    for words, verb, group, resource in _RIGHTS:
        allowed = await _may(site, verb, group, resource)
        steps.append(Step(f"you may {words} in {site.namespace}", allowed, needed=False))
    steps.append(await _endpoint(site))
    return steps


async def _definitions(site: Site) -> Step:
    from aaa_operator.api import ApiFailure

    try:
        await site.api.get_path("/apis/aaa.dev/v1alpha1")
    except ApiFailure as failure:
        if not failure.gone:
            raise
        return Step("aaa.dev/v1alpha1", False, "not installed; install AAA's chart")
    return Step("aaa.dev/v1alpha1", True, "installed")


async def _may(site: Site, verb: str, group: str, resource: str) -> bool:
    wanted: dict[str, Any] = {
        "namespace": site.namespace,
        "verb": verb,
        "group": group,
        "resource": resource,
    }
    asked = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": wanted},
    }
    found = await site.api.ask(_ACCESS, asked)
    return bool((found.get("status") or {}).get("allowed"))


async def _endpoint(site: Site) -> Step:
    from aaa.errors import AAAError
    from aaa_kubectl.remote import Remote, find_operator
    from aaa_kubectl.where import here

    try:
        operator = await find_operator(site, here().operator)
        what = "operator " + "/".join(operator)
        uid = await site.any_uid()
        if uid is None:
            return Step(what, True, f"not asked: there is no AgentRun in {site.namespace}")
        await Remote(site, operator, uid=uid).get("/pools")
    except AAAError as error:
        return Step("operator", False, str(error))
    return Step(what, True, "answers")
