"""A namespace as a tenant of the shared store: its user, its password, and the Secret that tells them.

The store's URL that the operator is given is an administrator's, and stays with the operator. Each
namespace gets a store of its own behind it, whose keys begin with the namespace's UID, and a user who
reaches that and nothing else. The Secret keeps the password and since when it holds; what the user
may do, and the Secret's other content, follow from it. So both can be made anew at any time. Pure.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from aaa.client import password_digest, tenant_url
from aaa_operator import names
from aaa_operator.observe import Raw, meta_of, ms_of, timestamp_of

#: How long a password that was replaced still holds: a pod's mount is refreshed within two minutes.
OVERLAP_MS: Final = 600_000
_PREVIOUS: Final = "previous"
_PASSWORD: Final = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A namespace's part of the shared store. ``shared_url`` is the administrator's."""

    namespace: str
    uid: str
    shared_url: str = field(repr=False)
    secret_name: str
    secret_key: str
    #: Certificates to trust, PEM, where the store's are of a private authority.
    ca: str | None = field(default=None, repr=False)

    @property
    def user(self) -> str:
        return f"aaa-{self.uid}"

    @property
    def url(self) -> str:
        """Its store, opened as the administrator. Raises :class:`ConfigError` without users."""
        return tenant_url(self.shared_url, self.uid)

    def url_with(self, password: str) -> str:
        """Its store, opened as its own user."""
        return tenant_url(self.shared_url, self.uid, user=self.user, password=password)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What should stand: the passwords that let in, as digests, and the Secret."""

    digests: tuple[str, ...]
    secret: Mapping[str, Any] = field(repr=False)


def is_ours(secret: Raw) -> bool:
    """Whether the operator has made the Secret; any other is a store that the namespace brings."""
    return meta_of(secret).labels.get(names.MANAGED_BY) == names.MANAGER


def access(
    tenant: Tenant,
    secret: Raw | None,
    *,
    now_ms: int,
    rotation_ms: int,
    fresh: Callable[[], str],
) -> Access:
    """What should stand, given the Secret that stands. ``fresh`` makes up a password.

    A password that is older than ``rotation_ms`` is replaced, and lets in for :data:`OVERLAP_MS` more.
    """
    password, since_ms, previous = _known(tenant, secret)
    if password is None:
        password, since_ms, previous = fresh(), now_ms, None
    elif now_ms - since_ms >= rotation_ms:
        password, since_ms, previous = fresh(), now_ms, password_digest(password)
    elif now_ms - since_ms >= OVERLAP_MS:
        previous = None
    digests = [password_digest(password)] + ([previous] if previous else [])
    return Access(
        digests=tuple(digests),
        secret=_secret(tenant, password, since_ms=since_ms, previous=previous),
    )


def stands(secret: Raw | None, wanted: Mapping[str, Any]) -> bool:
    """Whether the Secret is as it should be, beside what others have added to its metadata."""
    if secret is None:
        return False
    live, marks = meta_of(secret), wanted["metadata"]
    return bool(
        secret.get("data") == wanted["data"]
        and marks["labels"].items() <= live.labels.items()
        and marks["annotations"].items() <= live.annotations.items()
    )


def _known(tenant: Tenant, secret: Raw | None) -> tuple[str | None, int, str | None]:
    """The password in the Secret, since when, and the digest of the one before it."""
    data = (secret or {}).get("data") or {}
    try:
        since_ms = ms_of(meta_of(secret or {}).annotations.get(names.PASSWORD_SINCE))
        password = urlsplit(_decoded(data.get(tenant.secret_key, ""))).password or ""
        previous = _decoded(data.get(_PREVIOUS, ""))
    except ValueError:
        return None, 0, None
    if since_ms is None or not _PASSWORD.fullmatch(password):
        return None, 0, None
    return password, since_ms, previous if _PASSWORD.fullmatch(previous) else None


def _secret(
    tenant: Tenant, password: str, *, since_ms: int, previous: str | None
) -> dict[str, Any]:
    texts = {tenant.secret_key: tenant.url_with(password)}
    if previous is not None:
        texts[_PREVIOUS] = previous
    if tenant.ca is not None:
        texts[names.CA_KEY] = tenant.ca
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": tenant.secret_name,
            "namespace": tenant.namespace,
            "labels": {names.MANAGED_BY: names.MANAGER, names.STORE: "true"},
            "annotations": {names.PASSWORD_SINCE: timestamp_of(since_ms)},
        },
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()},
    }


def _decoded(text: str) -> str:
    return base64.b64decode(text, validate=True).decode()
