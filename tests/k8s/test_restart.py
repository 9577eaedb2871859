"""A pool is restarted pod by pod, each after its drain: the next step from every situation."""

from __future__ import annotations

from typing import Any

import pytest

from aaa_operator import names
from aaa_operator.actions import Action, Annotate, Delete
from aaa_operator.observe import timestamp_of
from aaa_operator.render import labels_of
from aaa_operator.restart import plan_restarts
from k8s.scene import NOW_MS, World, raw_pod

POOL = "aaa-1"
SINCE = NOW_MS // 1000 * 1000


def _world(asked: str | None, *pods: dict[str, Any], replicas: int | None = None) -> World:
    annotations = {} if asked is None else {names.RESTART: asked}
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": POOL, "labels": labels_of(POOL), "annotations": annotations},
        "spec": {"replicas": len(pods) if replicas is None else replicas, "template": {}},
    }
    return World.of(deployment, *pods)


def _pod(name: str, *, after_s: int, ready: bool = True, going: bool = False) -> dict[str, Any]:
    raw = raw_pod(name, POOL, ready=ready)
    raw["metadata"]["creationTimestamp"] = timestamp_of(SINCE + after_s * 1000)
    if going:
        raw["metadata"]["deletionTimestamp"] = timestamp_of(NOW_MS)
    return raw


def _said(actions: list[Action]) -> list[str]:
    found = []
    for action in actions:
        if isinstance(action, Delete):
            assert (action.kind, action.uid) == ("Pod", f"uid-{action.name}")
            found.append(f"delete {action.name}")
        else:
            assert isinstance(action, Annotate)
            assert (action.kind, action.name) == ("Deployment", POOL)
            found.append(f"mark {action.annotations[names.RESTART]}")
    return found


OLD, OLDER, NEW = (
    _pod("old", after_s=-10),
    _pod("older", after_s=-20),
    _pod("new", after_s=1),
)
WAITS = _pod("new", after_s=1, ready=False)
BROKEN = _pod("old", after_s=-10, ready=False)
GOES = _pod("older", after_s=-20, going=True)


@pytest.mark.parametrize(
    ("asked", "pods", "replicas", "wanted"),
    [
        (None, [OLD], 1, []),
        # The operator's own clock counts, whatever somebody's desk said.
        ("asked", [OLD], 1, [f"mark {NOW_MS}"]),
        (str(SINCE), [OLD, OLDER], 2, ["delete older"]),
        (str(SINCE), [OLD, GOES], 2, []),
        (str(SINCE), [OLD], 2, []),
        (str(SINCE), [OLD, WAITS], 2, []),
        (str(SINCE), [OLD, NEW], 2, ["delete old"]),
        # What does not come up may be what the restart is to mend.
        (str(SINCE), [BROKEN, NEW], 2, ["delete old"]),
        (str(SINCE), [NEW], 1, ["mark None"]),
        (str(SINCE), [], 0, ["mark None"]),
        # More pods than wanted: scaling down goes on beside it.
        (str(SINCE), [OLD, NEW], 1, ["delete old"]),
    ],
)
def test_the_next_step_of_a_restart(
    asked: str | None, pods: list[dict[str, Any]], replicas: int, wanted: list[str]
) -> None:
    world = _world(asked, *pods, replicas=replicas)
    assert _said(plan_restarts(world.snapshot())) == wanted


def test_a_restart_replaces_each_pod_once_and_comes_to_its_end() -> None:
    pods = [_pod(f"p{index}", after_s=-60 + index) for index in range(3)]
    world = _world("asked", *pods)
    replaced: list[str] = []
    for _ in range(12):
        steps = plan_restarts(world.snapshot())
        if not steps:
            break
        (step,) = steps
        if isinstance(step, Delete):
            replaced.append(step.name)
            del world.objects["Pod", step.name]
            world.put(_pod(f"new-{len(replaced)}", after_s=30))
        else:
            world.carry_out(step)
    assert replaced == ["p0", "p1", "p2"]
    assert not world.get("Deployment", POOL)["metadata"]["annotations"]
