"""YAML text into plain values and the line of each, or errors with their lines.

The reader is stricter than YAML: it accepts what the API server reads the same way, and nothing
else. Refused are duplicate keys (one of them would silently win), keys that aren't text, merge
keys, tags, and disputed scalars (:mod:`aaa.manifest.scalars`). Aliases are allowed, in number and
expansion bounded, since a short text may expand to any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from aaa.errors import ManifestError
from aaa.manifest.base import Path, Source, dotted
from aaa.manifest.scalars import DisputedScalar, Scalar, read_plain

MAX_BYTES = 1_048_576
MAX_DOCUMENTS = 100
MAX_DEPTH = 64
MAX_ALIASES = 64
MAX_NODES = 50_000


@dataclass
class Document:
    """One document: its value, its places, and what is wrong with it."""

    value: Any
    source: Source
    problems: list[ManifestError] = field(default_factory=list)


def read_documents(text: str, *, file: str | None) -> Iterator[Document]:
    """The documents of ``text``, empty ones left out. Raises :class:`ManifestError`.

    What makes the rest of the file unreadable is raised; what concerns one document stands in its
    ``problems``, so that a caller can report everything at once.
    """
    if len(text) > MAX_BYTES or len(text.encode(errors="replace")) > MAX_BYTES:
        raise ManifestError(f"is larger than {MAX_BYTES} bytes", file=file)
    loader = None
    try:
        loader = _Loader(text)
        for index in range(MAX_DOCUMENTS + 1):
            node = loader.get_node() if loader.check_node() else None
            if node is None:
                return
            if index == MAX_DOCUMENTS:
                raise _Refused(f"has more than {MAX_DOCUMENTS} documents", _line(node))
            document = _Converter(file, loader.tagged).document(node)
            loader.tagged = []
            if document.value is not None or document.problems:
                yield document
    except _Refused as refused:
        raise ManifestError(refused.message, file=file, line=refused.line) from None
    except yaml.YAMLError as error:
        raise ManifestError(_syntax(error), file=file, line=_error_line(error, text)) from None
    except ValueError:  # an escape beyond Unicode, a version of thousands of digits
        line = None if loader is None else loader.line + 1
        message = "is not valid YAML: it has a character or number out of range"
        raise ManifestError(message, file=file, line=line) from None
    finally:
        if loader is not None:
            loader.dispose()


class _Refused(Exception):
    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message, self.line = message, line


class _Loader(yaml.SafeLoader):
    """Composes nodes; counts aliases and depth while it does, and remembers explicit tags."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.aliases = self.depth = 0
        self.tagged: list[tuple[str, int]] = []

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > MAX_ALIASES:
                raise _Refused(f"has more than {MAX_ALIASES} aliases; write the values out", line)
        elif event.tag is not None:
            self.tagged.append((event.tag, line))
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _Refused(f"is nested more than {MAX_DEPTH} levels deep", line)
        try:
            node: yaml.Node | None = super().compose_node(parent, index)
        finally:
            self.depth -= 1
        return node


class _Converter:
    """Turns one document's nodes into values."""

    def __init__(self, file: str | None, tagged: list[tuple[str, int]]) -> None:
        self.file = file
        self.lines: dict[Path, int] = {}
        self.open: set[int] = set()
        self.nodes = 0
        self.problems = [
            ManifestError(f"has the tag {tag!r}; tags are not allowed", file=file, line=line)
            for tag, line in tagged
        ]

    def document(self, node: yaml.Node) -> Document:
        self.lines[()] = _line(node)
        value = self.value(node, ())
        return Document(value, Source(file=self.file, lines=self.lines), self.problems)

    def value(self, node: yaml.Node, path: Path) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise _Refused(f"expands to more than {MAX_NODES} values", self.lines[()])
        if len(path) >= MAX_DEPTH:  # aliases can nest what was written flat
            raise _Refused(f"is nested more than {MAX_DEPTH} levels deep", _line(node))
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, path)
        if id(node) in self.open:
            raise _Refused(f"{dotted(path)} contains itself by an alias", _line(node))
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.item(child, (*path, i)) for i, child in enumerate(node.value)]
            return self.mapping(node, path)
        finally:
            self.open.discard(id(node))

    def item(self, node: yaml.Node, path: Path) -> Any:
        self.lines[path] = _line(node)
        return self.value(node, path)

    def mapping(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        first_lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key, line = self.key(key_node, path), _line(key_node)
            if key is None:
                continue
            if key in found:
                self.refuse(
                    f"stands twice; the first one is in line {first_lines[key]}",
                    (*path, key),
                    line,
                )
                continue
            first_lines[key] = self.lines[(*path, key)] = line
            found[key] = self.value(value_node, (*path, key))
        return found

    def key(self, node: yaml.Node, path: Path) -> str | None:
        """The key, or ``None`` when it was refused."""
        problem = f"has the key {node.value!r}, which is not text; quote it"
        if not isinstance(node, yaml.ScalarNode):
            problem = "has a key that is a list or an object; keys are text"
        elif node.style is None and node.value == "<<":
            problem = "has a merge key (<<); write the fields out"
        else:
            try:
                key = _read(node)
                if isinstance(key, str):
                    return key
            except DisputedScalar as disputed:
                problem = f"has the key {disputed}"
        self.refuse(problem, path, _line(node))
        return None

    def scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        try:
            return _read(node)
        except DisputedScalar as disputed:
            self.refuse(str(disputed), path, _line(node))
            return None

    def refuse(self, message: str, path: Path, line: int) -> None:
        place = dotted(path) or None
        self.problems.append(ManifestError(message, file=self.file, line=line, field=place))


def _read(node: yaml.ScalarNode) -> Scalar:
    value = read_plain(node.value) if node.style is None else str(node.value)
    if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
        raise DisputedScalar("half of a surrogate pair, which is no character")
    return value


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line + 1
    return line


def _syntax(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        problem = error.problem or error.context or "cannot be read"
        if "alphabetic or numeric character" in problem:
            problem = "a value that begins with * or & must be quoted"
        return f"is not valid YAML: {problem}"
    if isinstance(error, yaml.reader.ReaderError):
        return f"is not valid YAML: the character U+{error.character:04X} is not allowed"
    return "is not valid YAML"


def _error_line(error: yaml.YAMLError, text: str) -> int | None:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        return None if mark is None else mark.line + 1
    position = getattr(error, "position", None)
    return None if position is None else text.count("\n", 0, position) + 1
