"""Text from models, tools and strangers, made fit for a terminal.

What they wrote may hold escape sequences that move the cursor, change the title or hide text.
Nothing of theirs reaches a terminal but through :func:`clean`, :func:`short` or :func:`as_json`.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any, Final

_SEQUENCES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b[\]P^_X]|[\x9d\x90\x9e\x9f\x98]).*?(?:\x07|\x1b\\|\x9c|\Z)"  # OSC, DCS, PM, APC, SOS
    r"|\x1b[ -/]*[0-~]",
    re.DOTALL,
)
#: Controls, and characters that turn the direction of what follows.
_UNSEEN: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """The text without anything that a terminal would obey; line ends and tabs stay."""
    text = text.encode("utf-8", "replace").decode().replace("\r\n", "\n")
    return _UNSEEN.sub("", _SEQUENCES.sub("", text))


def short(value: Any, limit: int = 200) -> str:
    """One line of at most ``limit`` characters."""
    text = value if isinstance(value, str) else as_json(value)
    text = " ".join(clean(text).split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def as_json(value: Any, *, indent: int | None = None) -> str:
    """JSON whose strings cannot act on a terminal; the same value to a machine."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one(count: int, noun: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def moment(ms: float) -> str:
    """Local date and time."""
    return datetime.fromtimestamp(ms / 1000, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def seconds(ms: float) -> str:
    """A time that people read: ``0.12 s``, ``3.4 s``, ``4 min 10 s``, ``2 h 5 min``."""
    s = max(0.0, ms / 1000)
    if s < 1:
        return f"{s:.2f} s"
    if s < 60:
        return f"{s:.1f} s"
    minutes, rest = divmod(round(s), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
