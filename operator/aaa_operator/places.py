"""Where a namespace's runs are kept: a store that it brings, or its part of the shared one."""

from __future__ import annotations

import base64
import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from aaa.errors import ConfigError
from aaa_operator import names
from aaa_operator.api import Api, ApiFailure
from aaa_operator.observe import Problem, RunSeen
from aaa_operator.settings import Settings
from aaa_operator.stores import url_in
from aaa_operator.tenants import Tenant, is_ours

#: Options of Redis and of Postgres that name the certificates to trust.
_TRUST: Final = ("ssl_ca_certs", "sslrootcert")
#: Options whose value is a file, or something found in one, however it is spelt.
_FILES: Final = frozenset(
    (
        *_TRUST, "ssl_certfile", "ssl_keyfile", "socket", "sslcert", "sslkey", "sslcrl",
        "sslcrldir", "sslkeylogfile", "passfile", "service", "servicefile",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A store as the operator opens it."""

    url: str = field(repr=False)
    #: Set where it is a part of the shared store.
    tenant: Tenant | None = None
    #: The Secret that the tenant's workers mount, if it is there.
    secret: dict[str, Any] | None = field(default=None, repr=False)


async def place_of(
    api: Api, runs: Sequence[RunSeen], *, namespace: str, uid: str, settings: Settings
) -> Place | Problem:
    """The store of these runs: one for all of a namespace. Of no runs, the namespace's own."""
    pools = settings.pools
    default = (pools.store_secret, pools.store_key)
    stores = [run.manifest.spec.store for run in runs if run.manifest is not None]
    wanted = {
        default if store is None else (store.secret_ref.name, store.secret_ref.key)
        for store in stores
    }
    if len(wanted) > 1:
        named = ", ".join(sorted(name for name, _ in wanted))
        return Problem(
            "SeveralStores",
            f"the active runs of this namespace name several stores ({named}); use one store a "
            "namespace",
        )
    name, key = wanted.pop() if wanted else default
    try:
        secret = await api.get("Secret", name, namespace=namespace)
    except ApiFailure as failure:
        if not failure.gone:
            return Problem("StoreSecretUnreadable", str(failure))
        secret = None
    if settings.store_file and (name, key) == default and (secret is None or is_ours(secret)):
        return _part(secret, namespace=namespace, uid=uid, settings=settings)
    return _own(secret, name, key)


def _own(secret: dict[str, Any] | None, name: str, key: str) -> Place | Problem:
    if secret is None:
        return Problem(
            "StoreSecretMissing",
            f"Secret {name!r} does not exist; create it with the store's URL under {key!r} and the "
            f"label {names.STORE}",
        )
    if names.STORE not in ((secret.get("metadata") or {}).get("labels") or {}):
        return Problem(
            "StoreSecretMissing",
            f"Secret {name!r} lacks the label {names.STORE}; add it if a store's URL is in there",
        )
    data = secret.get("data") or {}
    if key not in data:
        return Problem(
            "StoreSecretMissing", f"Secret {name!r} has no key {key!r}; put the store's URL there"
        )
    decoded = base64.b64decode(data[key]).decode(errors="replace").strip()
    url = url_in(decoded, where=f"Secret {name!r}, key {key!r},")
    if isinstance(url, Problem):
        return url
    url = with_own_files(url, data.get(names.CA_KEY), where=f"Secret {name!r}")
    return url if isinstance(url, Problem) else Place(url=url)


def with_own_files(url: str, ca: str | None, *, where: str) -> str | Problem:
    """The URL of a namespace as the operator opens it: it names none of the operator's own files.

    The only file that it may name is that of the certificates in the Secret itself (``ca``, as the
    Secret has them), which workers find at :data:`names.CA_FILE`, and the operator in one of its own.
    """
    parts = urlsplit(url)
    options = parse_qsl(parts.query, keep_blank_values=True)
    trusting = [each for each in options if each[0] in _TRUST and each[1] == names.CA_FILE]
    named = sorted(name for name, value in options if _is_file(name, value))
    if named != sorted(name for name, _ in trusting) or "%2f" in parts.netloc.lower():
        return Problem(
            "StoreUrlRefused",
            f"the URL in {where} names a file ({', '.join(named) or 'its host'}); only "
            f"{' or '.join(_TRUST)}={names.CA_FILE} may, with the certificates in the Secret's key "
            f"{names.CA_KEY!r}",
        )
    if not trusting:
        return url
    if ca is None:
        return Problem(
            "StoreUrlRefused",
            f"the URL in {where} trusts {names.CA_FILE}, and the Secret has no key {names.CA_KEY!r}; "
            "put the certificates there",
        )
    file = _kept(base64.b64decode(ca))
    mine = [(name, file if (name, value) in trusting else value) for name, value in options]
    return parts._replace(query=urlencode(mine, safe=":/,")).geturl()


def _is_file(name: str, value: str) -> bool:
    return (name in _FILES and value != "system") or value.startswith(("/", "."))


def _kept(content: bytes) -> str:
    """A file of the operator's with this content; the same content is the same file."""
    folder = Path(tempfile.gettempdir()) / "aaa-trusted"
    folder.mkdir(mode=0o700, exist_ok=True)
    file = folder / f"{hashlib.sha256(content).hexdigest()}.crt"
    if not file.exists():
        draft = file.with_suffix(".draft")
        draft.write_bytes(content)
        draft.replace(file)
    return str(file)


def _part(
    secret: dict[str, Any] | None, *, namespace: str, uid: str, settings: Settings
) -> Place | Problem:
    file = settings.store_file
    try:
        shared = Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        return Problem(
            "StoreFileUnreadable", f"the operator cannot read the shared store's URL: {error}"
        )
    url = url_in(shared, where=f"the shared store's URL in the operator's {file}")
    if isinstance(url, Problem):
        return url
    trusted = Path(file).with_name(names.CA_KEY)
    tenant = Tenant(
        namespace=namespace,
        uid=uid,
        shared_url=url,
        secret_name=settings.pools.store_secret,
        secret_key=settings.pools.store_key,
        ca=trusted.read_text("utf-8") if trusted.is_file() else None,
    )
    try:
        return Place(url=tenant.url, tenant=tenant, secret=secret)
    except ConfigError as error:
        return Problem("StoreUrlRefused", f"{error}; give each namespace a Secret of its own")
