"""The README's Kubernetes part, typed as it stands. Only the images' place is this cluster's own."""

import re
import shlex

import pytest

from cluster.shell import wait_until
from release import CHART, ROOT, Release

#: A block of commands that are typed in a cluster, with what they print; ``…`` is anything.
_BLOCK = re.compile(r"^```console cluster\n(.*?)^```", re.M | re.S)


@pytest.fixture
def nothing(installed: Release) -> Release:
    """The release's namespace before it was installed."""
    installed.uninstall()
    wait_until(lambda: not installed.all_of("pods"), what="no pod", timeout_s=120)
    return installed


def test_the_readmes_commands_lead_from_nothing_to_a_run_that_has_succeeded(
    nothing: Release,
) -> None:
    typed = _commands((ROOT / "README.md").read_text())
    assert [command.split()[0] for command, _ in typed] == ["helm", "kubectl", "kubectl", "kubectl"]
    try:
        for command, printed in typed:
            said = _type(nothing, command)
            assert _pattern(printed).fullmatch(" ".join(said.split())), f"$ {command}\n{said}"
    finally:
        manifest = str(ROOT / "examples/kubernetes/hello.yaml")
        nothing.kubectl("delete", "-f", manifest, "--ignore-not-found", "--wait=false")


def _type(release: Release, command: str) -> str:
    program, *words = shlex.split(command)
    if program == "helm":
        assert words[:3] == ["install", release.name, str(CHART.relative_to(ROOT))]
        return release.install()
    return release.kubectl(*[_here(word) for word in words], timeout_s=240)


def _here(word: str) -> str:
    """A file of the repository by its whole path: the tests may be started anywhere."""
    return str(ROOT / word) if word.endswith(".yaml") else word


def _commands(page: str) -> list[tuple[str, str]]:
    """Each command with what it prints."""
    found: list[tuple[str, str]] = []
    for block in _BLOCK.findall(page):
        for part in block.split("$ ")[1:]:
            command, _, printed = part.partition("\n")
            found.append((command, printed))
    return found


def _pattern(printed: str) -> re.Pattern[str]:
    words = " ".join(printed.split())
    return re.compile(".*".join(re.escape(part) for part in words.split("…")))
