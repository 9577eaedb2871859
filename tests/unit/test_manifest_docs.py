"""The manifests' page says what the models say, and its examples load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aaa.manifest import KINDS, AgentRun, load_manifests
from aaa.manifest.agentrun import Agent, AgentRunSpec, AgentRunStatus, Workers
from aaa.manifest.base import Model
from aaa.manifest.metadata import LabelRequirement, LabelSelector
from aaa.manifest.pod import EnvVar
from aaa.manifest.tooldecision import ToolDecisionSpec
from aaa.manifest.toolpolicy import ToolPolicySpec, ToolPolicyStatus, ToolSettingsEntry
from aaa.policy import SETTING_FIELDS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "manifests.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_page_has_an_example_of_every_kind_and_all_load_together() -> None:
    found = load_manifests("---\n".join(EXAMPLES), file="docs/manifests.md")
    assert [manifest.kind for manifest in found] == list(KINDS)
    assert isinstance(found[0], AgentRun)


@pytest.mark.parametrize(
    "model",
    [
        Agent,
        AgentRunSpec,
        AgentRunStatus,
        EnvVar,
        LabelRequirement,
        LabelSelector,
        ToolDecisionSpec,
        ToolPolicySpec,
        ToolPolicyStatus,
        ToolSettingsEntry,
        Workers,
    ],
)
def test_the_page_lists_every_field_with_its_description(model: type[Model]) -> None:
    for name, info in model.model_fields.items():
        row = re.compile(
            rf"^\| `{info.alias or name}` \| .* \| {re.escape(str(info.description))} \|$", re.M
        )
        assert row.search(PAGE), f"{model.__name__}.{name}"


def test_the_policy_page_has_a_row_for_every_setting() -> None:
    page = (DOCS / "policy.md").read_text(encoding="utf-8")
    for name in SETTING_FIELDS:
        assert re.search(rf"^\| `{name}` \|", page, flags=re.MULTILINE), name


def test_the_policy_page_s_programs_run() -> None:
    page = (DOCS / "policy.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        exec(compile(program, "docs/policy.md", "exec"), {})
