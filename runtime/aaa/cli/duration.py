"""Durations as people type them: ``90s``, ``15m``, ``24h``, ``7d``."""

from __future__ import annotations

import re
from typing import Final

from aaa.errors import ConfigError

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_FORM: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
MAX_S: Final = 366 * 86_400


def parse_duration(text: str, *, option: str) -> float:
    """Seconds. Raises :class:`ConfigError` naming the option."""
    found = _FORM.fullmatch(text.strip())
    value = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < value <= MAX_S:
        raise ConfigError(f"{option}: {text!r} is not a duration such as 90s, 15m, 24h or 7d")
    return value
