"""A store's address as it may be shown: in errors, logs and commands to type."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

_PASSWORDS: Final = re.compile(r"([?&][a-z_]*password=)[^&]*", re.IGNORECASE)


def without_passwords(url: str) -> str:
    """The URL with the passwords in its options hidden."""
    return _PASSWORDS.sub(r"\1***", url)


def shown(url: str) -> str:
    """The URL without user and password."""
    url = without_passwords(url)
    try:
        parts = urlsplit(url)
    except ValueError:  # no URL at all: nobody can say where a password would stand in it
        return f"{url.partition(':')[0]}:…"
    if "@" not in parts.netloc:
        return url
    return parts._replace(netloc=f"…@{parts.netloc.rpartition('@')[2]}").geturl()
