"""What the documentation shows, works: every block that can be run, is."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aaa.errors import ManifestError
from docs.pages import PAGES, ROOT, matches, run_page, steps_of


@pytest.fixture
def undisturbed(tmp_path: Path) -> Iterator[None]:
    """A page's blocks may set up logging, find modules in their folder, and go there."""
    root, before = logging.getLogger(), Path.cwd()
    handlers, level, path, modules = root.handlers[:], root.level, sys.path[:], set(sys.modules)
    os.chdir(tmp_path)
    sys.path.insert(0, str(tmp_path))
    yield
    os.chdir(before)
    sys.path[:] = path
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in set(sys.modules) - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.timeout(400)  # the guide types some forty commands
@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_the_page_does_what_the_page_says(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path)


@pytest.mark.parametrize(
    ("block", "error"),
    [
        ("```python\nassert 1 == 2\n```", AssertionError),
        ("```console\n$ echo one\ntwo\n```", AssertionError),
        ("```console\n$ false\n```", AssertionError),
        ("```yaml\napiVersion: aaa.dev/v1alpha1\nkind: AgentRun\n```", ManifestError),
        ("```pyhton\n1\n```", AssertionError),
    ],
)
def test_a_page_that_is_wrong_is_noticed(
    block: str, error: type[Exception], tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(block)
    with pytest.raises(error):
        run_page(page, tmp_path)


def test_output_is_compared_up_to_what_may_differ() -> None:
    assert matches("12:00:01  run begun\n…\nlast …\n", "09:59:59 run   begun\na\nb\nlast one\n")
    assert not matches("one\n", "one\ntwo\n")
    assert not matches("one\n…\n", "two\n")
    assert steps_of("$ a\n1\n2\n$ b \\\n  c\n") == [("a", "1\n2\n"), ("b c", "")]
