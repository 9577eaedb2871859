"""What goes wrong is told in one sentence, and by the exit code."""

from __future__ import annotations

import re
import socket
import sys
from importlib.abc import MetaPathFinder

import pytest

from cli.desk import Desk

BROKEN = """apiVersion: aaa.dev/v1alpha1
kind: AgentRun
metadata:
  name: dig
spec:
  agent:
    app: shop_agent:app
    imag: shop
"""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["run", "broken.yaml"],
            r"broken\.yaml:8: spec\.agent\.imag: is not a field here.*'image'",
        ),
        (["run", "none.yaml"], r"none\.yaml: cannot be read: no such file"),
        (["run", "away.yaml"], r"away\.yaml:9: spec\.agent\.app: .*no module 'away'"),
        (["run", "dig.yaml", "--app", "shop_agent:nothing"], r"has no 'nothing'\n"),
        (
            ["run", "dig.yaml", "--app", "shop_agent:ap"],
            r"has no 'ap'; did you mean 'shop_agent:app'\?",
        ),
        (["runs", "--store", "x.db"], r"; for a file write sqlite:///x\.db\n"),
        (["run", "dig.yaml", "--app", "shop_agent"], r"must be written module:attribute"),
        (["run", "dig.yaml", "--input", "{task"], r"--input is not JSON: .*line 1 column 2"),
        (["run", "dig.yaml", "--input", '{"task": NaN}'], r"--input is not canonical JSON"),
        (["run", "dig.yaml", "--input", "@no"], r"--input: no cannot be read: no such file"),
        (
            ["run", "dig.yaml", "--app", "lacks:app"],
            r"importing lacks: there is no module 'nonexist' \(lacks\.py:2\)",
        ),
        (
            ["run", "dig.yaml", "--app", "raises:app"],
            r"raises raised ZeroDivisionError: .* \(raises\.py:3\)",
        ),
        (
            ["run", "dig.yaml", "--app", "garbled:app"],
            r"garbled raised SyntaxError: .* \(garbled\.py:1\)",
        ),
        (["run", "dig.yaml", "--input", "3"], r"--input must be a JSON object"),
        (["run", "dig.yaml", "--store", "mysql://x"], r"does not begin with one of memory:"),
        (["run", "dig.yaml", "--stor", "x"], r"no such option: --stor.*'aaa run --help'"),
        (["run"], r"missing argument 'FILE.yaml'"),
        (["fly"], r"no such command 'fly'"),
        (
            ["show", "nothing"],
            r"no run 'nothing' in the store sqlite:///\.aaa/aaa\.db; see 'aaa runs'",
        ),
        (["approve", "dig", "c9-9"], r"run dig has no call 'c9-9'; see 'aaa show dig'"),
        (["approve", "dig", "c3-0"], r"call c3-0 of run dig does not wait for an approval"),
        (["approve", "dig", "c3-0", "--for", "soon"], r"--for: 'soon' is not a duration"),
        (["resolve", "dig", "c3-0"], r"exactly one of --done, --not-done and --retry"),
        (["resolve", "dig", "c3-0", "--done"], r"has no unknown outcome to resolve"),
        (["runs", "--status", "odd"], r"--status: 'odd' is not one of open, completed"),
        (["runs", "--store", "sqlite:///none.db"], r"there is no store at none\.db"),
        (["runs", "--store", "memory:"], r"a store in memory ends with its process"),
        (["check"], r"name one run, or say --all"),
        (["policy", "explain", "dig.yaml", "--tool", "x"], r"there is no tool 'x'"),
        (["worker", "--app", "away:app"], r"there is no module 'away'"),
    ],
)
def test_bad_input_exits_with_2_and_one_sentence(
    desk: Desk, arguments: list[str], sentence: str
) -> None:
    if arguments[0] not in ("run", "worker"):
        assert desk.aaa("run", desk.manifest("look")).code == 0
    desk.manifest("look")
    away = desk.manifest("look", name="away")
    (desk.folder / away).write_text((desk.folder / away).read_text().replace("shop_agent", "away"))
    (desk.folder / "broken.yaml").write_text(BROKEN)
    (desk.folder / "lacks.py").write_text("\nimport nonexist\n")
    (desk.folder / "raises.py").write_text("def half():\n    # of nothing\n    1 / 0\nhalf()\n")
    (desk.folder / "garbled.py").write_text("app = (\n")
    done = desk.aaa(*arguments)
    assert done.code == 2, done
    assert re.search(sentence, done.err), done.err
    assert done.err.startswith("aaa: ")
    assert len(done.err.splitlines()) == 1, done.err
    assert done.out == ""


@pytest.mark.parametrize("command", [["doctor"], ["runs"], ["run", "dig.yaml"]])
def test_a_store_that_is_not_there_exits_with_3_in_time(desk: Desk, command: list[str]) -> None:
    desk.manifest("look")
    with socket.socket() as nobody:  # bound, and not listening: connections are refused
        nobody.bind(("127.0.0.1", 0))
        url = f"redis://user:secret@127.0.0.1:{nobody.getsockname()[1]}/0"
        done = desk.aaa(*command, "--store", url)
    assert done.code == 3, done
    assert len(done.err.splitlines()) == 1, done.err
    assert "check --store or AAA_STORE, and that the server is up" in done.err
    assert "secret" not in done.err


def test_each_of_several_problems_has_a_line_that_begins_alike(desk: Desk) -> None:
    (desk.folder / "broken.yaml").write_text(BROKEN.replace("    app:", "    ap:"))
    done = desk.aaa("run", "broken.yaml")
    assert done.code == 2
    assert len(done.err.splitlines()) > 1
    assert all(line.startswith("aaa: broken.yaml") for line in done.err.splitlines()), done


def test_a_store_that_does_not_answer_exits_with_3_in_time(desk: Desk) -> None:
    with socket.socket() as silent:  # accepts, and never says a word
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        done = desk.aaa("doctor", "--store", f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
    assert done.code == 3, done


def test_debug_shows_the_traceback_wherever_it_stands(desk: Desk) -> None:
    done = desk.aaa("run", "none.yaml", "--debug")
    assert done.code == 2
    assert "Traceback" in done.err
    assert "aaa: none.yaml: cannot be read" in done.err


def test_debug_shows_where_a_model_or_a_tool_raised(desk: Desk) -> None:
    """The log has the message for everybody; the trace is for whoever mends the code."""
    file = desk.manifest("break")
    plain, traced = (
        desk.aaa("run", file),
        desk.aaa("run", desk.manifest("break", name="b2"), "--debug"),
    )
    assert (plain.code, traced.code) == (1, 1)
    assert "Traceback" not in plain.err
    assert 'raise RuntimeError("the model is broken")' in traced.err


def test_another_code_than_a_run_began_with_is_refused_by_name(desk: Desk) -> None:
    file = desk.manifest("blast")
    assert desk.aaa("run", file).code == 4
    agent = desk.folder / "shop_agent.py"
    agent.write_text(agent.read_text().replace("[look, hang,", "[hang,"))
    done = desk.aaa("run", file)
    assert done.code == 2
    assert "began as aaa.tool_loop@1 with tools" in done.err


@pytest.mark.parametrize(
    ("url", "driver", "extra"),
    [("redis://db/0", "redis", "redis"), ("postgresql://db/x", "psycopg", "postgres")],
)
def test_a_driver_that_is_not_installed_is_named_with_its_extra(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, url: str, driver: str, extra: str
) -> None:
    desk.manifest("look")
    for name in [
        name for name in sys.modules if name.startswith(("aaa.store.redis", "aaa.store.p"))
    ]:
        if name != "aaa.store.port":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Without(driver), *sys.meta_path])
    for name in [name for name in sys.modules if name.partition(".")[0] == driver]:
        monkeypatch.delitem(sys.modules, name)
    done = desk.aaa("run", "dig.yaml", "--store", url)
    assert done.code == 2, done
    assert f"needs the extra '{extra}'; in the clone of aaa: pip install '.[{extra}]'" in done.err


class _Without(MetaPathFinder):
    """Finds every module but one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname.partition(".")[0] == self._name:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def test_a_model_without_its_key_is_said_before_a_run_begins(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is not spent on it: with the key, the same command begins it."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    file = desk.manifest("look", app="remote")
    sentence = "ProviderClient('openai:m') has no key: set OPENAI_API_KEY, or give api_key=\n"
    for command in (["run", file], ["worker", "--app", "shop_agent:remote"]):
        done = desk.aaa(*command)
        assert (done.code, done.err.endswith(sentence)) == (2, True), done
    assert desk.aaa("runs", "--json").lines() == []
