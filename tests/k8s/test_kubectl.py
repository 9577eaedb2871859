"""``kubectl aaa`` over a cluster: what people read, decide and are told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from lightkube.config.models import UserExec
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from aaa_kubectl import program
from aaa_kubectl.execauth import ExecAuth
from aaa_kubectl.where import hoisted
from aaa_operator import names
from k8s.plugin_scene import ANN, Town, town


@pytest.fixture
def place(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("COLUMNS", "140")
    with town(redis_url, tmp_path) as made:
        made.until("AwaitingApproval", "True/Waiting")
        yield made


def _answer(place: Town, path: str, reply: Response, *, method: str = "GET") -> None:
    """Let the API server answer this from now on."""

    async def answer(_: Request) -> Response:
        return reply

    place.api.app.router.routes.insert(0, Route(path, answer, methods=[method]))


def test_a_call_is_seen_approved_in_ones_own_name_and_its_run_completes(place: Town) -> None:
    call, listed = place.call, place.type("runs")
    assert "AwaitingApproval" in listed.out
    waiting = place.type("pending")
    assert f"refund {call} waits for approval" in waiting.out
    assert f"kubectl aaa approve refund {call} --digest" in waiting.out
    assert " --kubeconfig " in waiting.out  # the command that is shown reaches the same place
    approved = place.type("approve", "refund", call, "--for", "1h")
    assert (approved.code, approved.out) == (0, f"approved {call} of refund, for 1h\n"), approved
    (decision,) = [raw for (kind, _, _), raw in place.api.objects.items() if kind == "ToolDecision"]
    assert decision["spec"]["decidedBy"] == ANN
    assert decision["spec"]["runRef"] == {"name": "refund", "uid": "uid-refund"}
    place.until("Succeeded", "True/Completed")
    shown = place.type("show", "refund")
    assert f"approved by {ANN}" in shown.out
    assert shown.out.startswith("refund  completed")
    assert "done" in shown.out.splitlines()[-1]
    again = place.type("approve", "refund", call)
    assert again.code == 2
    assert "does not wait for an approval; see 'kubectl aaa show refund" in again.err


def test_what_was_decided_on_other_arguments_is_not_taken(place: Town) -> None:
    typed = place.type("approve", "refund", place.call, "--digest", "0" * 32)
    assert typed.code == 2
    assert "it was not taken (DigestDiffers)" in typed.err


def test_a_rejection_reaches_the_model(place: Town) -> None:
    assert place.type("reject", "refund", place.call, "--reason", "no").code == 0
    place.until("Succeeded", "True/Completed")
    assert f"rejected by {ANN}" in place.type("events", "refund").out


def test_machines_get_the_same_and_are_told_what_was_cut(place: Town) -> None:
    (call,) = place.type("pending", "--json").lines()
    assert call["arguments"] == {"note": "n" * 600, "order_id": "A-100"}  # what one decides on
    assert call["cut"] == []
    events = place.type("events", "refund", "--json").lines()
    (asked,) = [each for each in events if each["type"] == "aaa.tool.requested"]
    assert asked["cut"] == ["arguments"]
    assert len(asked["data"]["arguments"]) == 400
    (whole,) = place.type("show", "refund", "--json").lines()
    assert [each["seq"] for each in whole["events"]] == [each["seq"] for each in events]
    (listed,) = place.type("runs", "--json").lines()
    assert (listed["name"], listed["info"]["awaiting"]) == ("refund", 1)


def test_a_run_is_cancelled_by_its_wish_and_an_ended_one_is_left_alone(place: Town) -> None:
    assert place.type("cancel", "refund").out == "asked refund to cancel\n"
    assert place.api.get("AgentRun", "refund")["spec"]["desiredState"] == "Cancelled"
    place.until("Succeeded", "False/Cancelled")
    typed = place.type("suspend", "refund")
    assert (typed.code, "has ended" in typed.err) == (2, True)


def test_pools_show_their_pods_and_are_asked_to_restart_by_an_annotation(place: Town) -> None:
    pool = place.api.get("AgentRun", "refund")["status"]["pool"]["name"]
    shown = place.type("pools")
    assert f"{pool}  1 of 1 ready, 1 open run" in shown.out
    assert f"{pool}-0" in shown.out
    assert place.type("restart", pool).code == 0
    assert ("PATCH", "Deployment", pool, "") in place.api.writes
    typed = place.type("restart", "nothing")
    assert typed.code == 2
    assert "there is no pool 'nothing' in shop; see 'kubectl aaa pools" in typed.err


def test_evictions_are_listed_with_their_evidence_also_when_no_run_is_left(place: Town) -> None:
    assert "no pod was evicted in shop" in place.type("evictions").err
    record = (
        '[{"pod": "p-1", "podUid": "u", "at": "2027-01-15T07:00:00Z", "outcome": "Evicted",'
        ' "reason": "holds no lease", "evidence": {"worker": "p-1-abc", "looks": 2}}]'
    )
    config = {
        "kind": "ConfigMap",
        "metadata": {"name": names.EVICTIONS, "labels": {names.MANAGED_BY: names.MANAGER}},
        "data": {"evictions.json": record},
    }
    place.api.put(config)
    place.shop.operator.cluster.heard(
        "ConfigMap", place.api.get("ConfigMap", names.EVICTIONS), deleted=False
    )
    shown = place.type("evictions")
    assert "2027-01-15T07:00:00Z  p-1  Evicted" in shown.out
    assert "worker=p-1-abc, looks=2" in shown.out
    _answer(
        place,
        f"/apis/{names.API_VERSION}/namespaces/shop/agentruns",
        JSONResponse({"items": []}),
    )
    assert place.type("evictions").out == shown.out
    assert "no runs in shop" in place.type("runs").err


def test_a_policy_is_explained_with_the_origin_of_each_value(place: Town) -> None:
    typed = place.type("policy", "explain", "refund", "--tool", "refund")
    assert typed.code == 0, typed
    assert "run refund: policies in force: none" in typed.out
    assert "is not known" not in typed.out  # its worker lives and has told
    assert "requires_approval  yes" in " ".join(typed.out.split("\n")).replace("   ", "  ")
    assert "decorator" in typed.out
    assert "built-in" in typed.out
    missing = place.type("policy", "explain", "refund", "--tool", "refnud")
    assert (missing.code, "has no tool refnud" in missing.err) == (2, True)
    (told,) = place.type("policy", "explain", "refund", "--tool", "refund", "--json").lines()
    assert told["tools"]["refund"]["settings"]["lease_ttl_s"] > 0


def test_the_doctor_says_what_works_and_what_one_may(place: Town) -> None:
    fine = place.type("doctor")
    assert fine.code == 0
    assert f"Kubernetes v1.34.0, as {ANN}" in fine.out
    assert "ok  operator aaa/aaa-operator: answers" in fine.out
    place.allowed = False
    assert "no  you may decide on calls in shop" in place.type("doctor").out


def test_each_thing_that_is_missing_is_said_in_one_sentence(place: Town) -> None:
    def told(*arguments: str) -> tuple[int, str]:
        typed = place.type(*arguments)
        assert typed.out == ""
        assert len(typed.err.splitlines()) == 1
        return typed.code, typed.err

    assert (
        "there is no AgentRun 'x' in namespace shop; see 'kubectl aaa runs" in told("show", "x")[1]
    )
    code, said = told("show", "refund", "--operator", "aaa/other")
    assert "there is no operator's Service aaa/other; install AAA's chart" in said
    assert "name the Service with --operator" in said
    code, said = told("show", "refund", "--context", "moon")
    assert (code, "the context 'moon' is not there" in said) == (2, True)
    forbidden = {
        "kind": "Status",
        "reason": "Forbidden",
        "message": "ann cannot create tooldecisions",
    }
    path = f"/apis/{names.API_VERSION}/namespaces/shop/tooldecisions"
    _answer(place, path, JSONResponse(forbidden, status_code=403), method="POST")
    code, said = told("approve", "refund", place.call)
    assert (code, "you may not do this: ann cannot create tooldecisions" in said) == (2, True)
    silent = {"kind": "Status", "reason": "ServiceUnavailable", "message": "no endpoints available"}
    proxy = "/api/v1/namespaces/aaa/services/http:aaa-operator:read/proxy/{rest:path}"
    _answer(place, proxy, JSONResponse(silent, status_code=503))
    code, said = told("show", "refund")
    assert (code, "the operator behind aaa/aaa-operator does not answer" in said) == (3, True)
    _answer(place, proxy, JSONResponse({**silent, "message": "not allowed"}, status_code=403))
    assert "ask for get on services/proxy of http:aaa-operator:read in aaa" in told("runs")[1]
    _answer(place, proxy, JSONResponse({"version": 9}))
    assert "install the kubectl-aaa of its release" in told("runs")[1]
    none = PlainTextResponse("404 page not found", status_code=404)
    _answer(place, f"/apis/{names.API_VERSION}/namespaces/shop/agentruns", none)
    assert "has no aaa.dev/v1alpha1: install AAA's chart" in told("runs")[1]


def test_a_namespace_that_the_operator_does_not_look_after_is_named(place: Town) -> None:
    stranger = {"kind": "AgentRun", "metadata": {"name": "far", "uid": "uid-far"}, "spec": {}}
    place.api.put(stranger, namespace="other")
    typed = place.type("show", "far", "-n", "other")
    assert "does not look after namespace other" in typed.err


def test_without_a_kubeconfig_or_a_cluster_the_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert program.run(["runs"]) == 2
    assert "there is no kubeconfig at" in capsys.readouterr().err
    config = tmp_path / "config"
    config.write_text(
        "current-context: c\nclusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "contexts: [{name: c, context: {cluster: k, user: u}}]\nusers: [{name: u, user: {}}]\n"
    )
    monkeypatch.setenv("KUBECONFIG", str(config))
    assert program.run(["runs"]) == 3
    assert "the cluster of context 'c' at http://127.0.0.1:1 cannot be reached" in (
        capsys.readouterr().err
    )
    config.write_text("clusters: []\ncontexts: []\n")
    assert program.run(["runs"]) == 2
    assert "no context is chosen" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_login_command_of_the_kubeconfig_gives_the_token(place: Town, version: str) -> None:
    seen: list[str] = []

    async def runs(request: Request) -> Response:
        seen.append(request.headers.get("authorization", ""))
        if seen[-1] != "Bearer two":
            return JSONResponse({"kind": "Status", "message": "expired"}, status_code=401)
        return JSONResponse({"items": []})

    route = Route(f"/apis/{names.API_VERSION}/namespaces/shop/agentruns", runs)
    place.api.app.router.routes.insert(0, route)
    counted = place.folder / "count"
    script = (
        "import json, os, pathlib\n"
        f"file = pathlib.Path({str(counted)!r})\n"
        "count = len(file.read_text()) if file.exists() else 0\n"
        "file.write_text('x' * (count + 1))\n"
        "told = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "assert told['kind'] == 'ExecCredential' and os.environ['OWN'] == '1'\n"
        "print(json.dumps({'status': {'token': ['one', 'two'][count]}}))\n"
    )
    login: dict[str, Any] = {
        "apiVersion": f"client.authentication.k8s.io/{version}",
        "command": sys.executable,
        "args": ["-c", script],
        "env": [{"name": "OWN", "value": "1"}],
    }
    config = place.kubeconfig(exec=login)
    assert program.run(["runs", "--kubeconfig", str(config)]) == 2  # "one" is refused
    counted.write_text("x")
    assert program.run(["runs", "--kubeconfig", str(config)]) == 0
    assert seen == ["Bearer one", "Bearer two"]


async def test_a_token_is_kept_until_the_cluster_refuses_it(tmp_path: Path) -> None:
    token = tmp_path / "token"
    print_it = f'print(\'{{"status": {{"token": "\' + open({str(token)!r}).read() + \'"}}}}\')'
    login = UserExec("client.authentication.k8s.io/v1", sys.executable, args=["-c", print_it])
    seen: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers["authorization"].removeprefix("Bearer "))
        return httpx2.Response(200 if seen[-1] == token.read_text() else 401)

    transport = httpx2.MockTransport(answer)
    async with httpx2.AsyncClient(transport=transport, auth=ExecAuth(login, cluster={})) as http:
        for now in ("one", "one", "two"):
            token.write_text(now)
            assert (await http.get("http://town/")).status_code == 200
    assert seen == ["one", "one", "one", "two"]


def test_options_of_the_place_may_stand_anywhere() -> None:
    typed = ["show", "-n", "shop", "r", "--context=c", "--json", "--", "-n"]
    assert hoisted(typed) == ["-n", "shop", "--context=c", "show", "r", "--json", "--", "-n"]
    assert hoisted(["resolve", "r", "c", "--not-done"]) == ["resolve", "r", "c", "--not-done"]
    assert hoisted(["runs", "-nshop"]) == ["-nshop", "runs"]
    assert hoisted(["runs", "-n"]) == ["runs", "-n"]


def test_a_missing_extra_is_said_and_help_is_given_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "find_spec", lambda _: None)
    assert program.run(["runs"]) == 2
    assert "pip install '.[kubectl]'" in capsys.readouterr().err
    assert program.run(["runs", "--help"]) == 0


def test_every_command_teaches_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for name in [
        "runs",
        "show",
        "events",
        "pending",
        "unknown",
        "approve",
        "reject",
        "resolve",
        "cancel",
        "suspend",
        "resume",
        "pools",
        "restart",
        "evictions",
        "doctor",
    ]:
        assert program.run([name, "--help"]) == 0
        assert f"kubectl aaa {name}" in capsys.readouterr().out.split("Example")[1]
