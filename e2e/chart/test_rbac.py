"""The operator and the hooks may do what they do, and no more.

Each request that their code makes is recorded and turned into what an API server would ask its
authorizer; that is compared with the chart's rules, both ways.
"""

import ast
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import httpx2
import pytest

import aaa_operator
from aaa.testing.clock import ManualClock
from aaa_operator import actions as act
from aaa_operator import names
from aaa_operator.admission import binding_path, policy_path
from aaa_operator.api import APPLY, RESOURCES, Api, ApiFailure
from aaa_operator.apply import Applier
from aaa_operator.awaited import awaited
from aaa_operator.cluster import Cluster
from aaa_operator.election import Election
from aaa_operator.main import _WATCHED, Operator
from aaa_operator.namespace import Namespace
from aaa_operator.observe import Raw
from aaa_operator.settings import PoolSettings, Settings
from aaa_operator.uninstall import Uninstall
from chart.matrix import MATRIX
from chart.rendering import Helm

#: Group, resource with its subresource, verb, and the object's name where a rule names it.
Right = tuple[str, str, str, str]
SETTINGS: Final = Settings(pools=PoolSettings(image="x"), lease_name="aaa-operator")
#: Kinds that a planned action may name.
APPLIED: Final = ("Deployment", "ConfigMap", "PodDisruptionBudget", "ControllerRevision")
DELETED: Final = (*APPLIED, "AgentRun")
ANNOTATED: Final = ("Pod", "Deployment", "ControllerRevision")
WITH_STATUS: Final = ("AgentRun", "ToolPolicy", "ToolDecision")


class Recorder:
    """An API server that answers anything, and writes down what it was asked."""

    def __init__(self, answers: dict[str, Raw] | None = None) -> None:
        self.asked: set[Right] = set()
        self.answers = answers or {}

    def api(self) -> Api:
        transport = httpx2.MockTransport(self._answer)
        return Api(httpx2.AsyncClient(transport=transport, base_url="http://api"))

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        self.asked |= set(_rights(request.method, path, request.headers.get("content-type", "")))
        for ending, answer in self.answers.items():
            if path.endswith(ending):
                return httpx2.Response(200, json=answer)
        metadata = {"name": "x", "namespace": "shop", "uid": "u", "resourceVersion": "1"}
        labels = {names.STORE: "", names.WORKER_ACCOUNT: "true"}
        template: Raw = {"metadata": {}, "spec": {}}
        body = {"metadata": {**metadata, "labels": labels}, "spec": {"template": template}}
        return httpx2.Response(200, json=body)


def _rights(method: str, path: str, content: str) -> Iterable[Right]:
    parts = path.strip("/").split("/")
    group, parts = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    if parts[0] == "namespaces" and len(parts) > 2:
        parts = parts[2:]
    resource, name = parts[0], parts[1] if len(parts) > 1 else ""
    below = f"{resource}/{parts[2]}" if len(parts) > 2 else resource
    verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(
        method, "get" if name else "list"
    )
    yield group, below, verb, name
    if content == APPLY:  # an object that is not there yet is created
        yield group, below, "create", name


def _actions(*, shared: bool) -> list[act.Action]:
    """Those of a plan; of the users' Secrets only where a store is shared."""
    made = {"kind": "Secret", "metadata": {"name": "aaa-store"}}
    secret: dict[str, Any] = {"user": "u", "reason": ""}
    tenants: list[act.Action] = [
        act.Admit(digests=(), secret=made, **secret),
        act.Expel(secret="aaa-store", secret_uid="u", **secret),
    ]
    return [*(tenants if shared else ()), *_others()]


def _others() -> list[act.Action]:
    meta: dict[str, Any] = {"name": "x", "reason": ""}
    lock = {"uid": "u", "resource_version": "1"}
    decide = act.Decide(
        **meta, **lock, generation=1, status={}, run_id="r", call_id="c", args_digest="d",
        decision="Approve", by="ann", result=None, why="", expires_ms=None,
    )  # fmt: skip
    applied = [{"kind": kind, "metadata": {"name": "x"}} for kind in APPLIED]
    return [
        *(act.Apply(object=each, reason="") for each in applied),
        *(act.Delete(kind=kind, uid="u", **meta) for kind in DELETED),
        *(act.Annotate(kind=kind, annotations={}, **meta) for kind in ANNOTATED),
        *(act.WriteStatus(kind=kind, status={}, **lock, **meta) for kind in WITH_STATUS),
        act.SetFinalizers(resource_version="1", finalizers=(), **meta),
        act.PutBack(resource_version="1", template={}, **meta),
        act.Scale(pool="x", replicas=1, reason=""),
        act.Evict(pod="x", grace_s=1, evidence={}, reason="", **lock),
        act.DeletePod(pod="x", uid="u", evidence={}, reason=""),
        decide,
        act.Require(run_id="r", policy="p", reason=""),
        act.Submit(name="x", run_id="r", app="a", input={}, deadline_s=None, policy="p", reason=""),
        act.Control(run_id="r", verb="cancel", by="ann", reason=""),
    ]


class _Client:
    """A store's client that agrees with everything."""

    @property
    def users(self) -> "_Client":
        return self

    def __getattr__(self, _: str) -> Any:
        async def agree(*_: Any, **__: Any) -> None:
            return None

        return agree


async def _of_the_operator(*, shared: bool) -> set[Right]:
    """Every request of the operator's modules, by calling what makes it."""
    recorder = Recorder()
    api, actions = recorder.api(), _actions(shared=shared)
    assert {type(each) for each in _actions(shared=True)} == set(get_args(act.Action))
    applier = Applier(api, _Client(), namespace="shop", now_ms=1)  # type: ignore[arg-type]
    assert not (await applier.carry_out(actions)).failures

    # What a pass reads beside the watch: a run that names all that can be named.
    cluster, ref = Cluster(), {"name": "x"}
    agent = {"app": "a:b", "source": {"configMapRef": ref}, "serviceAccountName": "x"}
    spec = {"agent": agent, "input": {"configMapRef": ref}, "store": {"secretRef": ref}}
    metadata = {"name": "x", "namespace": "shop", "uid": "u", "resourceVersion": "1"}
    run = {"apiVersion": names.API_VERSION, "kind": "AgentRun", "metadata": metadata, "spec": spec}
    cluster.heard("AgentRun", run, deleted=False)
    namespace = Namespace("shop", api=api, cluster=cluster, settings=SETTINGS, canary="c")
    await namespace.look()
    for where in (policy_path, binding_path):
        await api.get_path(where(SETTINGS.admission_policy))
    await Operator(SETTINGS)._compare_definitions(api)

    election = Election(api, namespace="shop", name="aaa-operator", me="m", ttl_s=9)
    await election._write(None)
    await election._write({"metadata": {"name": "aaa-operator"}})
    await api.get("Lease", "aaa-operator", namespace="shop")

    # kopf lists and watches what it is told to.
    watched = {
        (group if slash else "", plural, verb, "")
        for version, plural, _, _ in _WATCHED
        for group, slash, _ in [version.partition("/")]
        for verb in ("list", "watch")
    }
    # Asked by the API server itself, for owner references that block a deletion.
    return recorder.asked | watched | {(names.GROUP, "agentruns/finalizers", "update", "")}


def _granted(roles: Sequence[Raw]) -> set[Right]:
    return {
        (group, resource, verb, name)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def _roles_of(helm: Helm, account: str, case: str) -> list[Raw]:
    """The roles that are bound to a service account."""
    found = helm.objects(MATRIX[case])
    bound = {
        (each["roleRef"]["kind"], each["metadata"].get("namespace"), each["roleRef"]["name"])
        for each in found
        if each["kind"] in ("RoleBinding", "ClusterRoleBinding")
        and any(subject["name"] == account for subject in each["subjects"])
    }
    return [
        each
        for each in found
        if (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) in bound
    ]


def _compare(granted: set[Right], asked: set[Right]) -> None:
    named = {(group, resource, verb) for group, resource, verb, name in granted if name}
    broad = {right[:3] for right in granted if not right[3]}
    needed = {right[:3] for right in asked}
    assert needed - named - broad == set(), "asked, and not granted"
    assert (named | broad) - needed == set(), "granted, and never asked"
    for group, resource, verb, name in asked:
        if (group, resource, verb) in named - broad and name != "x":
            assert (group, resource, verb, name) in granted


@pytest.mark.parametrize("case", ["defaults", "whole cluster", "a store without users"])
async def test_the_operator_may_do_what_it_does_and_no_more(helm: Helm, case: str) -> None:
    roles = _roles_of(helm, "aaa-operator", case)
    _compare(_granted(roles), await _of_the_operator(shared=case != "a store without users"))
    cluster_wide = [each for each in roles if each["kind"] == "ClusterRole"]
    if case == "defaults":  # nothing of the cluster but the named definitions and policies
        assert all("resourceNames" in rule for each in cluster_wide for rule in each["rules"])


VERBS: Final = {
    "get": "get", "list_all": "list", "create": "create", "replace": "update", "merge": "patch",
    "patch_version": "patch", "delete": "delete",
}  # fmt: skip


def _written_in(source: Path) -> Iterable[tuple[str, str, str]]:
    """Group, resource and verb of each request whose kind is spelt out in a module."""
    for node in ast.walk(ast.parse(source.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        kind = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        if node.func.attr in VERBS and isinstance(kind, str) and kind in RESOURCES:
            prefix, plural = RESOURCES[kind]
            below = [each.value for each in node.keywords if each.arg == "below"]
            parts = [str(each.value) for each in below if isinstance(each, ast.Constant)]
            resource = "/".join([plural, *parts])
            group = prefix.split("/")[1] if prefix.startswith("apis/") else ""
            yield group, resource, VERBS[node.func.attr]


def test_no_module_of_the_operator_asks_for_more(helm: Helm) -> None:
    granted = {right[:3] for right in _granted(_roles_of(helm, "aaa-operator", "defaults"))}
    folder = Path(aaa_operator.__file__).parent
    modules = [each for each in folder.glob("*.py") if each.stem not in ("uninstall", "awaited")]
    asked = {right: each.stem for each in modules for right in _written_in(each)}
    assert len(asked) > 5
    assert {right: where for right, where in asked.items() if right not in granted} == {}


def test_each_watched_namespace_has_the_same_rights_and_no_other_has_any(helm: Helm) -> None:
    roles = _roles_of(helm, "aaa-operator", "three namespaces")
    runs = [each for each in roles if each["metadata"]["name"] == "aaa-operator-runs"]
    assert {each["metadata"]["namespace"] for each in runs} == {"shop", "billing", "support"}
    assert len({str(each["rules"]) for each in runs}) == 1


async def test_the_uninstalling_job_may_do_what_it_does_and_no_more(helm: Helm) -> None:
    pool = {"metadata": {"name": "pool", "namespace": "shop"}, "spec": {"replicas": 1}}
    held = {"finalizers": [names.FINALIZER], "resourceVersion": "1"}
    run = {"metadata": {"name": "run", "namespace": "shop", **held}}
    answers: dict[str, Raw] = {
        "/deployments": {"items": [pool]},
        "/pods": {"items": []},
        "/agentruns": {"items": [run]},
    }
    recorder = Recorder(answers)
    task = Uninstall(recorder.api(), namespaces=["shop"], timeout_s=1, clock=ManualClock())
    # This server never changes, so the run looks as if somebody always put the finalizer back.
    with pytest.raises(ApiFailure, match="changed all the time"):
        await task.carry_out(namespace="shop", operator="aaa-operator", selector="a=b")
    for case in ("defaults", "whole cluster"):
        _compare(_granted(_roles_of(helm, "aaa-uninstall", case)), recorder.asked)


async def test_the_test_may_look_at_its_own_run_only(helm: Helm) -> None:
    recorder = Recorder()
    api, clock = recorder.api(), ManualClock()
    await awaited(api, "aaa-test", namespace="shop", timeout_s=1, clock=clock)
    granted = _granted(_roles_of(helm, "aaa-test", "defaults"))
    assert granted == recorder.asked == {("aaa.dev", "agentruns", "get", "aaa-test")}


ROLES: Final = ("aaa-view", "aaa-edit", "aaa-policy-admin", "aaa-approver")


def test_each_role_writes_its_own_kind_only(helm: Helm) -> None:
    writes: dict[str, set[tuple[str, str]]] = {}
    for name in ROLES:
        granted = _granted([helm.one("ClusterRole", name)])
        reads = {"get", "list", "watch"}
        writes[name] = {(resource, verb) for _, resource, verb, _ in granted if verb not in reads}
    assert writes["aaa-view"] == set()
    assert {resource for resource, _ in writes["aaa-edit"]} == {"agentruns"}
    assert {resource for resource, _ in writes["aaa-policy-admin"]} == {"toolpolicies"}
    assert writes["aaa-approver"] == {("tooldecisions", "create")}


def test_who_may_edit_a_namespace_may_neither_approve_nor_loosen_a_policy(helm: Helm) -> None:
    aggregated = {
        name: [
            label.rpartition("aggregate-to-")[2]
            for label in helm.one("ClusterRole", name)["metadata"]["labels"]
            if "aggregate-to-" in label
        ]
        for name in ROLES
    }
    assert aggregated == {
        "aaa-view": ["view"],
        "aaa-edit": ["edit"],
        "aaa-policy-admin": [],
        "aaa-approver": [],
    }


def test_reading_goes_through_one_service_only(helm: Helm) -> None:
    (rule,) = helm.one("Role", "aaa-read")["rules"]
    assert rule["verbs"] == ["get"]
    assert all("aaa-operator:read" in name for name in rule["resourceNames"])


def test_every_resource_that_the_operator_names_is_known() -> None:
    assert {plural for _, plural in RESOURCES.values()} >= {plural for _, plural, _, _ in _WATCHED}
