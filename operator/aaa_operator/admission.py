"""Whether the admission policy that ties ``decidedBy`` to its user stands as it was installed. Pure.

Without it anybody who may create a ToolDecision could sign with another's name. So while it, or
its binding, is missing or says anything else, no decision is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aaa_operator.observe import Problem, Raw

#: The rule, as the chart installs it.
EXPRESSION: Final = "object.spec.decidedBy == request.userInfo.username"
_RULES: Final[Mapping[str, Any]] = {
    "apiGroups": ["aaa.dev"],
    "apiVersions": ["v1alpha1"],
    "operations": ["CREATE"],
    "resources": ["tooldecisions"],
}
_PATH: Final = "/apis/admissionregistration.k8s.io/v1"


def policy_path(name: str) -> str:
    return f"{_PATH}/validatingadmissionpolicies/{name}"


def binding_path(name: str) -> str:
    return f"{_PATH}/validatingadmissionpolicybindings/{name}"


def judge_admission(policy: Raw | None, binding: Raw | None, *, name: str) -> Problem | None:
    """Why no decision may be taken now; ``None`` if the policy stands."""
    if policy is None:
        return _barred(f"ValidatingAdmissionPolicy {name} is missing")
    if binding is None:
        return _barred(f"ValidatingAdmissionPolicyBinding {name} is missing")
    spec = policy.get("spec") or {}
    rules = (spec.get("matchConstraints") or {}).get("resourceRules") or ()
    said = [each.get("expression") for each in spec.get("validations") or ()]
    wrong = (
        EXPRESSION not in said
        or spec.get("failurePolicy", "Fail") != "Fail"
        or bool(spec.get("matchConditions"))
        or not any(_covers(rule) for rule in rules)
        or any(
            (spec.get("matchConstraints") or {}).get(key)
            for key in ("excludeResourceRules", "namespaceSelector", "objectSelector")
        )
    )
    if wrong:
        return _barred(f"ValidatingAdmissionPolicy {name} was changed")
    bound = binding.get("spec") or {}
    loose = (
        bound.get("policyName") != name
        or "Deny" not in (bound.get("validationActions") or ())
        or bool(bound.get("matchResources"))
    )
    if loose:
        return _barred(f"ValidatingAdmissionPolicyBinding {name} was changed")
    return None


def _covers(rule: Mapping[str, Any]) -> bool:
    """Whether every creation of a ToolDecision falls under the rule."""
    return not rule.get("resourceNames") and all(
        "*" in (rule.get(key) or ()) or set(wanted) <= set(rule.get(key) or ())
        for key, wanted in _RULES.items()
    )


def _barred(what: str) -> Problem:
    return Problem(
        "AdmissionPolicyMissing",
        f"{what}, so nobody can tell who decided; install the chart's again: the decision is then "
        "taken by itself",
    )
