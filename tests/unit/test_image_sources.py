"""What the images are made of: the same versions as everywhere else, and no more than is needed."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = {
    "worker": ("redis", "postgres", "llm", "otel"),
    "operator": ("operator", "otel"),
}


def locked(file: Path) -> dict[str, tuple[str, ...]]:
    """Version and hashes of each package in a lock."""
    text = file.read_text().replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {
        line[0].split("==")[0]: tuple(each for each in line if "==" in each or "--hash=" in each)
        for line in lines
    }


@pytest.mark.parametrize("name", ["build", "operator", "worker"])
def test_an_image_holds_the_versions_that_the_tests_ran_with(name: str) -> None:
    everywhere = locked(ROOT / "requirements.txt")
    for package, pinned in locked(ROOT / "requirements" / f"{name}.txt").items():
        assert pinned == everywhere[package], f"{package}: type make lock"


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_holds_what_its_extras_name(target: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in TARGETS[target]:
        wanted += project["optional-dependencies"][extra]
    names = {re.split(r"[\[><=;\s]", each)[0] for each in wanted}
    assert names <= locked(ROOT / "requirements" / f"{target}.txt").keys()


def test_the_operator_and_the_tests_stay_out_of_the_workers_image() -> None:
    worker = locked(ROOT / "requirements" / "worker.txt").keys()
    assert not worker & {"kopf", "lightkube", "pytest", "hatchling", "uv"}


def test_the_images_run_as_nobody_in_particular_and_start_without_a_shell() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    assert "USER 10001:10001" in lines
    started = [line for line in lines if line.startswith(("ENTRYPOINT", "CMD"))]
    assert len(started) == 3
    assert all(re.fullmatch(r'\w+ \["[^\]]+"\]', line) for line in started)
    bases = {line.split()[1] for line in lines if line.startswith("FROM")}
    assert bases == {"${BASE}", "build", "image"}
