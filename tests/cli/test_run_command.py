"""``aaa run`` in a pipe: to the end, killed and gone on with, waiting, refused."""

from __future__ import annotations

import re
import signal

import pytest

from cli.desk import Desk, read_until

POLICY = """---
apiVersion: aaa.dev/v1alpha1
kind: ToolPolicy
metadata:
  name: digging
spec:
  selector:
    matchLabels:
      team: {team}
  tools:
  - name: look
    requiresApproval: true
"""


def test_a_run_is_followed_line_by_line_and_its_result_comes_last(desk: Desk) -> None:
    done = desk.real("run", desk.manifest("look"))
    assert done.code == 0, done
    assert done.out.splitlines()[-1] == "done: seen it"
    assert "attempt 1 started" in done.out
    assert done.err == ""
    assert (desk.folder / ".aaa" / ".gitignore").read_text() == "*\n"


def test_the_same_command_again_shows_the_result_and_runs_nothing(desk: Desk) -> None:
    file = desk.manifest("look")
    assert desk.aaa("run", file).code == 0
    (desk.folder / "shop_agent.py").unlink()  # not even the app is needed
    again = desk.aaa("run", file)
    assert (again.code, again.out) == (0, "done: seen it\n")
    assert desk.effects() == ["look"]


def test_a_run_whose_process_was_killed_goes_on_with_the_same_command(desk: Desk) -> None:
    file = desk.manifest("look hang")
    process = desk.start("run", file)
    read_until(process, "hang c8-0", "attempt 1 started")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (desk.folder / "go").touch()
    again = desk.aaa("run", file)
    assert again.code == 0, again
    assert "is leased to worker" in again.err
    before, _, now = again.out.partition("-- from here --\n")
    assert ("begun" in before, "run completed" in " ".join(now.split())) == (True, True)
    assert desk.effects() == ["look", "hang", "hang"]
    assert desk.types("dig").count("aaa.run.requested") == 1
    assert "1 run checked: nothing is broken" in desk.aaa("check", "--all").out


def test_sigterm_drains_and_says_how_to_go_on(desk: Desk) -> None:
    file = desk.manifest("hang", more="  drainTimeoutSeconds: 0\n")
    process = desk.start("run", file)
    read_until(process, "attempt 1 started")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()
    assert process.returncode == 130, out
    assert out.splitlines()[-1] == "interrupted; dig is kept, and goes on with: aaa run dig.yaml"
    (desk.folder / "go").touch()
    assert desk.aaa("run", file).code == 0


def test_a_run_that_waits_for_approval_exits_with_4_and_says_what_to_type(desk: Desk) -> None:
    file = desk.manifest("blast")
    waiting = desk.aaa("run", file)
    assert waiting.code == 4, waiting
    command = next(
        line.strip() for line in waiting.out.splitlines() if line.startswith("  aaa approve")
    )
    assert desk.effects() == []
    assert desk.aaa(*command.split()[1:], "--by", "ann").code == 0
    lines = [each for each in desk.aaa("show", "dig").out.splitlines() if "by ann" in each]
    event, standing = lines
    assert re.search(r"blast c3-0 .*approved by ann +until \d{4}-\d\d-\d\d \d\d:", event)
    assert "waits for a worker" in standing
    assert desk.aaa("run", file).code == 0
    assert desk.effects() == ["blast"]
    approved = [e for e in desk.aaa("events", "dig", "--json").lines() if e["type"].endswith("ved")]
    assert [event["data"]["by"] for event in approved] == ["ann"]


def test_an_approval_from_another_process_lets_a_followed_run_go_on(desk: Desk) -> None:
    process = desk.start("run", desk.manifest("blast"), "--wait")
    read_until(process, "aaa reject dig")
    pending = desk.aaa("pending", "--json").lines()
    assert [(view["run_id"], view["call_id"], view["name"]) for view in pending] == [
        ("dig", "c3-0", "blast")
    ]
    other = desk.aaa("approve", "dig", "c3-0", "--digest", "0" * 32)
    assert other.code == 2
    assert "is for other arguments" in other.err
    assert "look at it again with 'aaa pending'" in other.err
    assert desk.aaa("approve", "dig", "c3-0", "--digest", pending[0]["args_digest"]).code == 0
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out.splitlines()[-1]) == (0, "done: blasted 1")


def test_a_rejection_reaches_the_model(desk: Desk) -> None:
    file = desk.manifest("blast")
    assert desk.aaa("run", file).code == 4
    assert desk.aaa("reject", "dig", "c3-0", "--reason", "too loud", "--by", "ann").code == 0
    assert "blast c3-0          rejected by ann  too loud\n" in desk.aaa("events", "dig").out
    done = desk.aaa("run", file)
    assert done.code == 0
    assert "ann rejected it. Reason: too loud" in done.out.splitlines()[-1]


def test_an_unknown_outcome_is_resolved_by_a_person(desk: Desk) -> None:
    file = desk.manifest("once", app="patient", more="  drainTimeoutSeconds: 0\n")
    process = desk.start("run", file)
    read_until(process, "attempt 1 started")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    waiting = desk.aaa("run", file)
    assert waiting.code == 4, waiting
    assert "aaa resolve dig c3-0 --not-done\n" in waiting.out
    assert [view["reason"] for view in desk.aaa("unknown", "--json").lines()] == ["OutcomeUnknown"]
    resolve = ("resolve", "dig", "c3-0", "--done", '"it was"', "--by", "ann", "--reason", "I saw")
    assert desk.aaa(*resolve).code == 0
    told = " ".join(desk.aaa("show", "dig").out.split())
    assert "once c3-0 resolved by ann it was done: I saw" in told
    done = desk.aaa("run", file)
    assert done.code == 0, done
    assert desk.effects() == ["once"]


def test_a_policy_binds_the_runs_that_it_selects_and_no_others(desk: Desk) -> None:
    bound = desk.manifest("look", name="bound", more=POLICY.format(team="digging"))
    free = desk.manifest("look", name="free", more=POLICY.format(team="flying"))
    assert desk.aaa("run", bound).code == 4
    done = desk.aaa("run", free)
    assert done.code == 0
    assert done.err == (
        "warning: policy digging binds no run here: it selects team=flying, "
        "and run free has team=digging\n"
    )
    assert done.err == desk.aaa("policy", "explain", free).err


@pytest.mark.parametrize(("wanted", "code"), [("diging", 2), ("digging", 4), ("dogs", 0)])
def test_a_protection_that_a_misspelt_label_would_lift_is_refused(
    desk: Desk, wanted: str, code: int
) -> None:
    """Whoever wrote the policy believes that the run is protected by it."""
    done = desk.aaa("run", desk.manifest("look", more=POLICY.format(team=wanted)))
    assert done.code == code
    if code == 2:
        assert (
            "dig.yaml:18: spec.selector: policy digging binds no run here: it selects team=diging, "
            "and run dig has team=digging; mend the label or the selector"
        ) in done.err
        assert desk.effects() == []
        told = desk.aaa("policy", "explain", "dig.yaml").err
        assert told.startswith("warning: policy digging binds no run here")


def test_a_failed_run_exits_with_1_also_when_it_is_shown_again(desk: Desk) -> None:
    file = desk.manifest("break")
    for _ in range(2):
        done = desk.aaa("run", file, "--json")
        assert done.code == 1
        (told,) = done.lines()
        assert (told["status"], told["error"]["error"]) == ("failed", "ModelError")


def test_several_runs_of_a_file_run_together(desk: Desk) -> None:
    desk.manifest("look", name="one")
    both = desk.folder / "both.yaml"
    text = (desk.folder / "one.yaml").read_text()
    both.write_text(f"{text}---\n{text.replace('name: one', 'name: two')}")
    done = desk.aaa("run", "both.yaml", "--json")
    assert done.code == 0, done
    assert {told["run_id"]: told["status"] for told in done.lines()} == {
        "one": "completed",
        "two": "completed",
    }


def test_changed_input_under_the_same_name_is_refused_with_the_way_out(desk: Desk) -> None:
    file = desk.manifest("look")
    assert desk.aaa("run", file).code == 0
    other = desk.aaa("run", file, "--input", '{"task": "hang"}')
    assert other.code == 2
    assert "began with other input" in other.err
    assert "spec.runKey" in other.err
    assert desk.effects() == ["look"]


def test_an_input_whose_task_is_misspelt_is_named(desk: Desk) -> None:
    given = '{"Tasks": "look", "why": "it broke"}'
    done = desk.aaa("run", desk.manifest("look"), "--input", given)
    assert "the input of dig has 'Tasks' and no 'task'" in done.err, done
    other = desk.aaa("run", desk.manifest("look", name="two"), "--input", '{"order": "1"}')
    assert "no 'task'" not in other.err


def test_a_suspended_manifest_starts_nothing_until_it_says_running(desk: Desk) -> None:
    desk.manifest("look", more="  desiredState: Suspended\n")
    assert desk.aaa("run", "dig.yaml").code == 4
    assert desk.effects() == []
    desk.manifest("look", more="  desiredState: Running\n")
    assert desk.aaa("run", "dig.yaml").code == 0


def test_a_run_that_a_person_suspended_goes_on_by_a_persons_word_only(desk: Desk) -> None:
    file = desk.manifest("blast")
    assert desk.aaa("run", file).code == 4
    assert desk.aaa("suspend", "dig", "--by", "ann").code == 0
    held = desk.aaa("run", file)
    assert held.code == 4, held
    assert "dig is suspended by ann; 'aaa resume dig' goes on\n" in held.err
    assert "aaa.run.resumed" not in desk.types("dig")
    assert desk.aaa("resume", "dig").out == "resumed dig\n"
    assert "neither suspended nor parked" in desk.aaa("resume", "dig").out
    assert desk.types("dig").count("aaa.run.resumed") == 1
    assert "waits for approval" in desk.aaa("run", file).out


def test_a_deadline_cancels_the_run(desk: Desk) -> None:
    done = desk.aaa("run", desk.manifest("hang", more="  activeDeadlineSeconds: 1\n"), "--json")
    assert done.code == 1, done
    assert done.lines() == [{"run_id": "dig", "status": "cancelled"}]


def test_a_run_that_begins_suspended_keeps_its_deadline(desk: Desk) -> None:
    deadline = "  activeDeadlineSeconds: 1\n"
    desk.manifest("hang", more=f"  desiredState: Suspended\n{deadline}")
    assert desk.aaa("run", "dig.yaml").code == 4
    desk.manifest("hang", more=f"  desiredState: Running\n{deadline}")
    done = desk.aaa("run", "dig.yaml", "--json")
    assert done.lines() == [{"run_id": "dig", "status": "cancelled"}]


def test_a_run_that_is_cancelled_from_outside_ends(desk: Desk) -> None:
    process = desk.start("run", desk.manifest("hang"))
    read_until(process, "attempt 1 started")
    assert desk.aaa("cancel", "dig", "--reason", "enough").code == 0
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out.splitlines()[-1]) == (1, "cancelled: enough")


def test_a_tool_that_cannot_be_stopped_ends_the_process_and_not_the_run(desk: Desk) -> None:
    file = desk.manifest("stuck")
    done = desk.real("run", file)
    assert done.code == 70, done
    assert "stuck could not be stopped, so this process has to end" in done.err
    assert (
        done.err.splitlines()[-1] == "ended early; dig is kept, and goes on with: aaa run dig.yaml"
    )
    again = desk.real("run", file)
    assert again.code == 0, again
    assert "ToolTimeout" in again.out.splitlines()[-1]


@pytest.mark.parametrize("sequence", ["\x1b", "\x07", "\x9b", "\u202e"])
def test_what_a_tool_returns_cannot_act_on_a_terminal(desk: Desk, sequence: str) -> None:
    file = desk.manifest("evil hang")
    (desk.folder / "go").touch()
    for arguments in (["run", file], ["show", "dig"], ["events", "dig"], ["show", "dig", "--json"]):
        done = desk.aaa(*arguments)
        assert done.code == 0, done
        assert "plain" in done.out
        assert sequence not in done.out + done.err
