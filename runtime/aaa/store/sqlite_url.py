"""``sqlite:///relative.db`` and ``sqlite:////absolute.db``, with settings after ``?``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from aaa.errors import ConfigError

#: How hard SQLite tries to keep what it has acknowledged. Only the first two keep everything.
SYNCHRONOUS = ("full", "extra", "normal", "off")
MAX_PARTITIONS = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a URL says. ``partitions``: ``None`` takes what the file has, 64 in a new one."""

    path: Path
    partitions: int | None = None
    synchronous: str = "full"

    def __post_init__(self) -> None:
        if self.synchronous not in SYNCHRONOUS:
            known = ", ".join(SYNCHRONOUS)
            raise ConfigError(f"synchronous={self.synchronous!r} must be one of {known}")
        if self.partitions is not None and not 1 <= self.partitions <= MAX_PARTITIONS:
            raise ConfigError(f"partitions={self.partitions} must be 1 to {MAX_PARTITIONS}")


def parse(url: str) -> Settings:
    """Read a URL. Raises :class:`ConfigError` saying what is wrong with it."""
    rest = url.partition(":")[2]
    place, _, query = rest.partition("?")
    if not place.startswith("///"):
        raise ConfigError(
            f"store URL {url!r} must be sqlite:///relative.db or sqlite:////absolute.db"
        )
    path = unquote(place[3:])
    if not path or path.endswith("/") or path == ":memory:":
        raise ConfigError(f"store URL {url!r} names no file; for a store in memory use memory:")
    partitions, synchronous = None, "full"
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "partitions" and value.isdecimal():
            partitions = int(value)
        elif name == "synchronous":
            synchronous = value.lower()
        else:
            raise ConfigError(
                f"store URL {url!r}: {name}={value!r} is not partitions=<number> or synchronous=…"
            )
    return Settings(path=Path(path), partitions=partitions, synchronous=synchronous)
