"""``aaa policy explain``: what is in force for each tool, and which layer said so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from aaa.cli.options import JsonOption
from aaa.errors import ConfigError

if TYPE_CHECKING:
    from aaa.app import App
    from aaa.manifest import ToolPolicy
    from aaa.policy import ToolPolicyRules, ToolSettings

_NOT_KNOWN: Final = "what the tools' own code says is not known; name it with --app"


def explain(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Manifests: ToolPolicies, AgentRuns.")
    ],
    app: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="MODULE:ATTRIBUTE",
            help="The app whose tools are meant.  [default: the AgentRuns']",
            show_default=False,
        ),
    ] = None,
    tool: Annotated[
        str | None,
        typer.Option("--tool", metavar="NAME", help="Only this tool.", show_default=False),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Show each tool's effective settings and where each comes from.

    For each AgentRun in the files, with the policies that select it. Without an AgentRun, all
    policies are taken together.

    \b
    Examples:
      aaa policy explain refund.yaml
      aaa policy explain policies/*.yaml --app agent:app --tool refund
    """
    from aaa.cli import screen

    cases = [
        (
            title,
            rules,
            _settings(rules, loaded, tool),
            _unmatched(rules, loaded),
            loaded is not None,
        )
        for title, rules, loaded in _cases(files, app)
    ]
    if tool is not None and not any(settings for _, _, settings, _, _ in cases):
        raise ConfigError(f"--tool: there is no tool {tool!r}; leave --tool out to see them all")
    for title, rules, settings, unmatched, known in cases:
        told = _json(title, settings, unmatched)
        if json:
            screen.say_json(told)
        else:
            names = [policy.name for policy in rules]
            print_explained(told, names, unknown_code=None if known else _NOT_KNOWN)
    for sentence in _binding_none(files):
        screen.note(f"warning: {sentence}")
    return 0


def _binding_none(files: Sequence[Path]) -> list[str]:
    from aaa.cli.manifests import read, split
    from aaa.cli.unmatched import binding_none

    runs, policies = split([each for file in files for each in read(file)])
    return binding_none(policies, runs)


def policies_in(files: Sequence[Path]) -> list[ToolPolicy]:
    """The ToolPolicies of some files. Raises :class:`ManifestError`, also for a file without one."""
    from aaa.cli.manifests import read
    from aaa.errors import ManifestError
    from aaa.manifest import ToolPolicy

    found: list[ToolPolicy] = []
    for file in files:
        here = [each for each in read(file) if isinstance(each, ToolPolicy)]
        if not here:
            raise ManifestError("holds no ToolPolicy", file=str(file))
        found += here
    return found


_Case = tuple[str, "tuple[ToolPolicyRules, ...]", "App | None"]


def _cases(files: Sequence[Path], app: str | None) -> list[_Case]:
    """What to explain: (title, policies, the app if it is known)."""
    from aaa.app import load_app
    from aaa.cli.manifests import bound, read
    from aaa.manifest import AgentRun, ToolPolicy

    manifests = [(file, each) for file in files for each in read(file)]
    policies = [each for _, each in manifests if isinstance(each, ToolPolicy)]
    cases: list[_Case] = []
    for file, each in manifests:
        if isinstance(each, AgentRun):
            own = load_app(app or each.spec.agent.app, folder=file.parent.resolve())
            cases.append((f"run {each.metadata.name}", bound(each, policies), own))
    if cases:
        return cases
    if not policies:
        raise ConfigError("there is neither an AgentRun nor a ToolPolicy in what was given")
    loaded = load_app(app, folder=Path.cwd()) if app is not None else None
    return [(app or "policies alone", tuple(policy.rules() for policy in policies), loaded)]


def _settings(
    rules: tuple[ToolPolicyRules, ...], app: App | None, tool: str | None
) -> dict[str, ToolSettings]:
    from aaa.policy import compile_settings

    if app is not None:
        handler = app.own().tools
        if handler is None:
            return {}
        handler.use_policies([*handler.policies, *rules])
        found = dict(handler.compile())
    else:
        names = sorted({e.name for r in rules for e in r.tools if not e.is_prefix} | {tool or ""})
        found = {name: compile_settings(name, policies=rules) for name in names if name}
    return {name: each for name, each in found.items() if tool in (None, name)}


def _unmatched(rules: tuple[ToolPolicyRules, ...], app: App | None) -> dict[str, tuple[str, ...]]:
    from aaa.policy import unmatched_tools

    if app is None:
        return {}
    known = [tool.name for tool in app.tools.registry] if app.tools is not None else []
    return unmatched_tools(rules, known)


def _json(
    title: str, settings: dict[str, ToolSettings], unmatched: dict[str, tuple[str, ...]]
) -> dict[str, Any]:
    return {
        "of": title,
        "tools": {
            name: {
                "settings": each.to_json(),
                "origins": dict(each.origins),
                "notes": list(each.notes),
                "hash": each.hash,
            }
            for name, each in settings.items()
        },
        "unmatched": {name: list(entries) for name, entries in unmatched.items()},
    }


def print_explained(
    told: Mapping[str, Any], policies: Sequence[str], *, unknown_code: str | None
) -> None:
    """What ``--json`` says, as tables; ``unknown_code`` is said where the code's own layers are not known."""
    from rich.table import Table
    from rich.text import Text

    from aaa.cli import screen

    screen.say(f"{told['of']}: policies in force: {', '.join(policies) or 'none'}", style="bold")
    if unknown_code is not None:
        screen.say(unknown_code, style="yellow")
    for name, each in told["tools"].items():
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        table.add_column(overflow="fold", style="dim")
        for field, value in each["settings"].items():
            shown = _derived(field, each["settings"]) or _value(value)
            table.add_row(f"  {field}", Text(shown), Text(each["origins"].get(field, "")))
        screen.say(f"\n{name}", style="bold")
        screen.out().print(table)
        for remark in each["notes"]:
            screen.say(f"  note: {remark}", style="yellow")
    for policy, entries in told["unmatched"].items():
        screen.say(f"\nwarning: policy {policy}: no tool matches {', '.join(entries)}", style="red")


def _derived(field: str, settings: Mapping[str, Any]) -> str | None:
    """What holds where nobody has set a value."""
    if settings[field] is not None:
        return None
    if field == "heartbeat_s":
        return f"{settings['lease_ttl_s'] / 3:g} (lease_ttl_s / 3)"
    return "<run id>/<call id>" if field == "idempotency_key" else None


def _value(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
