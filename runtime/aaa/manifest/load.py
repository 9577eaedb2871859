"""YAML text into manifests. All that is wrong with a file is reported together.

Guarantees: what is returned is complete, valid and would be read the same way by the API server;
every error names file, line and field. It does not look at the world: whether an app can be
imported, a ConfigMap exists or a policy fits a tool is judged elsewhere, with
:meth:`aaa.manifest.base.Resource.problem` for the place.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from aaa.errors import ManifestError
from aaa.manifest.agentrun import AgentRun
from aaa.manifest.base import API_VERSION, Source
from aaa.manifest.nodes import read_documents
from aaa.manifest.problems import ManifestErrors, did_you_mean, from_validation
from aaa.manifest.tooldecision import ToolDecision
from aaa.manifest.toolpolicy import ToolPolicy

Manifest = AgentRun | ToolPolicy | ToolDecision

KINDS: dict[str, type[Manifest]] = {
    "AgentRun": AgentRun,
    "ToolPolicy": ToolPolicy,
    "ToolDecision": ToolDecision,
}


def load_manifests(text: str | bytes, *, file: str | None = None) -> list[Manifest]:
    """The manifests of a file's ``text``, in its order; ``file`` is the name that errors show.

    Objects of other API groups, such as the ConfigMap that a cluster needs beside a run, are none
    of ours and left out; what could be a misspelt kind of ours is an error.
    Raises :class:`ManifestErrors` (a :class:`ManifestError`) with every problem found.
    """
    found: list[Manifest] = []
    problems: list[ManifestError] = []
    try:
        for document in read_documents(_decoded(text, file), file=file):
            if document.problems:
                problems += document.problems
                continue
            if _anothers(document.value):
                continue
            try:
                found.append(parse_manifest(document.value, source=document.source))
            except ManifestErrors as errors:
                problems += errors.errors
    except ManifestError as error:  # the rest of the file cannot be read
        problems.append(error)
    problems += _repeated(found)
    if not found and not problems:
        problems.append(ManifestError("holds no manifest", file=file))
    if problems:
        raise ManifestErrors(problems)
    return found


def parse_manifest(value: object, *, source: Source | None = None) -> Manifest:
    """One manifest from plain values, as the API server hands them out.

    Raises :class:`ManifestErrors`; ``source`` gives the errors their places.
    """
    source = source or Source()
    model = _model_for(value, source)
    try:
        manifest = model.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        raise ManifestErrors(from_validation(error, model=model, source=source)) from None
    manifest._source = source
    return manifest


def _anothers(value: object) -> bool:
    """Whether an object is another API's, and its kind none that was meant to be ours."""
    if not isinstance(value, Mapping):
        return False
    version, kind = value.get("apiVersion"), value.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        return False
    ours = API_VERSION.partition("/")[0]
    similar = get_close_matches(kind.lower(), [each.lower() for each in KINDS])
    return version.partition("/")[0] != ours and not similar


def _model_for(value: object, source: Source) -> type[Manifest]:
    def refuse(message: str, field: str | None) -> ManifestErrors:
        line = source.line((field,) if field else ())
        return ManifestErrors([ManifestError(message, file=source.file, line=line, field=field)])

    if not isinstance(value, Mapping):
        raise refuse("must be an object with apiVersion, kind, metadata and spec", None)
    for field in ("apiVersion", "kind"):
        if field not in value:
            raise refuse("is missing", field)
    version: Any = value["apiVersion"]
    kind: Any = value["kind"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise refuse(
            f"{kind!r} is not a kind of AAA's{did_you_mean(str(kind), list(KINDS))}", "kind"
        )
    if version != API_VERSION:
        raise refuse(f"must be {API_VERSION!r}, not {version!r}", "apiVersion")
    return KINDS[kind]


def _decoded(text: str | bytes, file: str | None) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise ManifestError("is not UTF-8 text", file=file, line=line) from None


def _repeated(manifests: list[Manifest]) -> list[ManifestError]:
    """One object must not stand twice: applying the file would keep only the last."""
    first: dict[tuple[str, str | None, str], Manifest] = {}
    problems = []
    for manifest in manifests:
        key = (manifest.kind, manifest.metadata.namespace, manifest.metadata.name)
        if key in first:
            line = first[key].source.line(("metadata", "name"))
            message = f"{manifest.kind} {key[2]!r} stands twice; the first one is in line {line}"
            problems.append(manifest.problem(message, at=("metadata", "name")))
        first.setdefault(key, manifest)
    return problems
