"""A run's trace is linked with the pass of the operator that submitted it."""

from __future__ import annotations

from pathlib import Path

import pytest

from aaa.client import open_client
from aaa.telemetry import Telemetry, span_id_of, trace_id_of
from aaa_operator import actions as act
from aaa_operator.tracing import reconciling
from unit.telemetry_scene import Recorder

SUBMIT = act.Submit(
    name="n", run_id="r1", app="pool/loop@1/x", input={}, deadline_s=None, policy="h", reason=""
)


async def test_a_pass_and_the_run_that_it_submits_are_linked_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    monkeypatch.setattr(Telemetry, "current", classmethod(lambda _: recorder.telemetry))
    client, info = await open_client(f"sqlite:///{tmp_path}/aaa.db")
    with reconciling(recorder.telemetry, "shop", [SUBMIT]):
        await client.submit(SUBMIT.app, {}, run_id="r1")
    await client.overview("r1")
    await client.close()
    (submit,) = recorder.spans("aaa.run.submit")
    (reconcile,) = recorder.spans("aaa.operator.reconcile")
    assert len(recorder.spans()) == 2  # looking after a run leaves nothing in its trace
    assert submit.context.trace_id == trace_id_of(info.identity, "r1")
    assert [link.context.span_id for link in submit.links] == [reconcile.context.span_id]
    assert [link.context.span_id for link in reconcile.links] == [span_id_of("r1")]
    assert dict(reconcile.attributes or {}) == {
        "k8s.namespace.name": "shop",
        "aaa.operator.actions": 1,
    }


def test_a_pass_that_does_nothing_leaves_no_span() -> None:
    recorder = Recorder()
    with reconciling(recorder.telemetry, "shop", []), reconciling(None, "shop", [SUBMIT]):
        pass
    assert recorder.spans() == []
