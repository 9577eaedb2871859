"""Policies from a folder, followed while the worker runs: one file ``<hash>.json`` a set of policies.

The folder is made for mounted ConfigMaps: all of its files are swapped at once by a link, seconds or
minutes after the ConfigMap has changed. A file is what its name says or it is nothing: the hash of
its content is its name, so whoever reads one that is half written, edited or misnamed refuses it, and
what was read under that hash before stays in force. A folder that cannot be listed changes nothing.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aaa.clock import Clock
from aaa.errors import ConfigError
from aaa.policy import PolicyLayers

log = logging.getLogger("aaa.worker")

#: How often the folder is looked at, in seconds.
LOOK_EVERY_S: Final = 1.0
MAX_FILES: Final = 1_024
MAX_FILE_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"([0-9a-f]{32})\.json")

#: What tells one content of a file from the next without reading it.
_Mark = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the folder holds: policies by hash, and by hash or file name what is wrong with others."""

    layers: Mapping[str, PolicyLayers] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


class PolicyFolder:
    """Reads the folder again and again; a file that has not changed is not read again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._marks: dict[str, _Mark] = {}
        self._found = Found()

    def look(self) -> Found | None:
        """What is there now, or ``None`` if nothing has changed. Raises ``OSError``."""
        marks = self._list()
        if marks == self._marks and self._marks:
            return None
        layers: dict[str, PolicyLayers] = {}
        refused: dict[str, str] = {}
        count = len(marks)
        for name in sorted(marks)[:MAX_FILES]:
            hash_ = name.removesuffix(".json")
            if marks[name] == self._marks.get(name) and hash_ in self._found.layers:
                layers[hash_] = self._found.layers[hash_]
                continue
            try:
                layers[hash_] = self._read(name)
            except ConfigError as error:
                del marks[name]  # looked at again: it may be on its way
                refused[hash_ if _NAME.fullmatch(name) else name] = str(error)
                if hash_ in self._found.layers:  # the name is the content's: this is what it was
                    layers[hash_] = self._found.layers[hash_]
        if count > MAX_FILES:
            refused["…"] = f"the folder has {count} files; {MAX_FILES} of them are read"
        before, self._marks, self._found = self._found, marks, Found(layers=layers, refused=refused)
        return None if before == self._found else self._found

    def _list(self) -> dict[str, _Mark]:
        marks: dict[str, _Mark] = {}
        for path in self._path.iterdir():
            if not path.name.startswith("."):  # a mount keeps its own things there
                seen = path.stat()
                marks[path.name] = (seen.st_ino, seen.st_size, seen.st_mtime_ns)
        return marks

    def _read(self, name: str) -> PolicyLayers:
        named = _NAME.fullmatch(name)
        if named is None:
            raise ConfigError(f"policy file {name} is not named <hash>.json")
        try:
            with (self._path / name).open("rb") as file:
                text = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise ConfigError(f"policy file {name} cannot be read: {error.strerror}") from None
        if len(text) > MAX_FILE_BYTES:
            raise ConfigError(f"policy file {name} is longer than {MAX_FILE_BYTES} bytes")
        try:
            layers = PolicyLayers.from_json(json.loads(text))
        except ConfigError as error:
            raise ConfigError(f"policy file {name}: {error}") from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"policy file {name} is not JSON: {error}") from None
        if layers.hash != named[1]:
            raise ConfigError(
                f"policy file {name} holds other policies: their hash is {layers.hash}"
            )
        return layers


async def follow(
    folder: PolicyFolder,
    take: Callable[[Found], None],
    *,
    clock: Clock,
    failed: Callable[[OSError], None],
) -> None:
    """Look again and again, for good, and hand over each change. ``failed`` hears of each new reason
    why the folder could not be listed.
    """
    reason = ""
    while True:
        await clock.sleep(LOOK_EVERY_S)
        try:
            found = folder.look()
        except OSError as error:  # in the middle of a swap, or the mount has gone
            if str(error) != reason:
                failed(error)
            reason = str(error)
            continue
        reason = ""
        if found is not None:
            take(found)
