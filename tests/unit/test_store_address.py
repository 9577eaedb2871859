"""A store's address as people and logs may see it."""

from __future__ import annotations

import pytest

from aaa.errors import ConfigError
from aaa.store import open_store
from aaa.store.address import shown


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("redis://ann:s3cret@db:6379/0", "redis://…@db:6379/0"),
        ("postgresql://db/x?sslmode=require&password=s3cret", "…&password=***"),
        ("redis://db:6379/0", "redis://db:6379/0"),
        ("mysql://ann:s3cret@[db", "mysql:…"),
    ],
)
def test_no_password_of_an_address_is_shown(url: str, seen: str) -> None:
    assert shown(url).endswith(seen.removeprefix("…"))
    assert "s3cret" not in shown(url)


@pytest.mark.parametrize("url", ["mysql://ann:s3cret@db/x", "mysql://db/x?password=s3cret"])
def test_the_refusal_of_an_address_does_not_repeat_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="does not begin with one of") as caught:
        open_store(url)
    assert "s3cret" not in str(caught.value)
