"""Store URLs of Redis: what they may say, and what the driver is told.

::

    redis://[user:password@]host[:6379][/database][?option=value…]     rediss:// for TLS
    redis+cluster://host[:6379][,host…]/                               rediss+cluster://
    redis+sentinel://host[:26379][,host…]/service[/database]           rediss+sentinel://

Options are in :data:`OPTIONS`. A wrong URL raises :class:`ConfigError`, without the password.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from aaa.errors import ConfigError

Mode = Literal["single", "cluster", "sentinel"]
Host = tuple[str, int]

#: Query options, and what each is for.
OPTIONS: Final[dict[str, str]] = {
    "prefix": "the beginning of every key and channel; default aaa:",
    "partitions": "number of partitions of a store that doesn't exist yet; default 64",
    "timeout_s": "how long an answer may take; default 5",
    "connect_timeout_s": "how long a connection may take; default 3",
    "wait_replicas": "replicas that must have an at_most_once claim before it is handed out",
    "wait_timeout_ms": "how long to wait for them; default 1000",
    "socket": "path of a unix socket, instead of host and port",
    "sentinel_username": "the user at the sentinels, if they have users of their own",
    "sentinel_password": "the password at the sentinels",
    "ssl_ca_certs": "file of certificates to trust",
    "ssl_certfile": "file of the client's certificate",
    "ssl_keyfile": "file of the client's key",
    "ssl_check_hostname": "false: the certificate may name another host",
}
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_DEFAULT_PORTS: Final[dict[Mode, int]] = {"single": 6379, "cluster": 6379, "sentinel": 26379}
_DEFAULT_PREFIX = "aaa:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the store is, and how to talk to it."""

    mode: Mode
    hosts: tuple[Host, ...]
    database: int = 0
    service: str = ""
    socket: str = ""
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    tls_options: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = _DEFAULT_PREFIX
    partitions: int | None = None
    timeout_s: float = 5.0
    connect_timeout_s: float = 3.0
    wait_replicas: int = 0
    wait_timeout_ms: int = 1_000
    #: Gives the URL as it is now, where it can change.
    latest: Callable[[], str] | None = field(default=None, repr=False, compare=False)

    @property
    def shown(self) -> str:
        """The address as errors name it: never with user or password."""
        where = self.socket or ",".join(f"{host}:{port}" for host, port in self.hosts)
        kind = {"single": "Redis", "cluster": "Redis Cluster", "sentinel": "Redis Sentinel"}
        return f"{kind[self.mode]} at {where}"

    def base(self, partition: int) -> str:
        """The beginning of a partition's keys; the part in braces is the cluster's hash tag."""
        return f"{self.prefix}{{p{partition}}}:"

    def key(self, name: str) -> str:
        """A key that belongs to no partition."""
        return f"{self.prefix}{{{name}}}"

    def credentials(self) -> dict[str, Any]:
        """What a connection to a server says first, for the driver: asked for at each connection."""
        now = self.now()
        return {"username": now.username, "password": now.password}

    def now(self) -> Address:
        """The address with the users and passwords that it has now; the rest is as it was opened."""
        if self.latest is None:
            return self
        try:
            read = parse(self.latest())
        except (OSError, ConfigError):  # in the middle of a change; the old ones may still do
            return self
        return replace(
            self,
            username=read.username,
            password=read.password,
            sentinel_username=read.sentinel_username,
            sentinel_password=read.sentinel_password,
        )

    def tls_arguments(self) -> dict[str, Any]:
        """What the driver needs to check certificates; empty without TLS."""
        return dict(self.tls_options) if self.tls else {}


def parse(url: str) -> Address:
    """Read a store URL. Raises :class:`ConfigError` in one sentence that never shows a password."""
    parts = urlsplit(url)
    scheme, _, kind = parts.scheme.lower().partition("+")
    mode: Mode = {"": "single", "cluster": "cluster", "sentinel": "sentinel"}.get(kind, "")  # type: ignore[assignment]
    if scheme not in ("redis", "rediss") or not mode:
        raise ConfigError(f"store URL scheme {parts.scheme!r} is not one of Redis")
    user, password, hosts = _authority(parts.netloc, mode)
    options = _options(parts.query)
    service, database = _path(parts.path, mode)
    return Address(
        mode=mode,
        hosts=hosts,
        database=database,
        service=service,
        socket=options.get("socket", ""),
        tls=scheme == "rediss",
        username=user,
        password=password,
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
        tls_options=_tls(options),
        prefix=_prefix(options.get("prefix", _DEFAULT_PREFIX)),
        partitions=_integer(options, "partitions", 1, 4_096),
        timeout_s=_seconds(options, "timeout_s", 5.0),
        connect_timeout_s=_seconds(options, "connect_timeout_s", 3.0),
        wait_replicas=_integer(options, "wait_replicas", 0, 100) or 0,
        wait_timeout_ms=_integer(options, "wait_timeout_ms", 1, 60_000) or 1_000,
    )


def _authority(netloc: str, mode: Mode) -> tuple[str | None, str | None, tuple[Host, ...]]:
    login, at, places = netloc.rpartition("@")
    user, colon, password = login.partition(":")
    hosts = tuple(_host(place, mode) for place in places.split(",")) if places else ()
    if mode == "single" and len(hosts) > 1:
        raise ConfigError(
            "store URL redis:// names several hosts: use redis+cluster:// or redis+sentinel://"
        )
    hosts = hosts or (("localhost", _DEFAULT_PORTS[mode]),)
    return (unquote(user) or None) if at else None, unquote(password) if colon else None, hosts


def _host(place: str, mode: Mode) -> Host:
    name, port = place, ""
    if place.startswith("["):  # an IPv6 address
        name, _, port = place[1:].partition("]")
        port = port.removeprefix(":")
    elif ":" in place:
        name, _, port = place.rpartition(":")
    if not name or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536)):
        raise ConfigError(f"store URL: {place!r} is not host:port")
    return name, int(port) if port else _DEFAULT_PORTS[mode]


def _path(path: str, mode: Mode) -> tuple[str, int]:
    steps = [unquote(step) for step in path.strip("/").split("/") if step]
    service = ""
    if mode == "sentinel":
        if not steps:
            raise ConfigError(
                "store URL redis+sentinel:// must name the service: redis+sentinel://host/mymaster"
            )
        service = steps.pop(0)
    database = steps.pop(0) if steps else "0"
    if steps or not (database.isascii() and database.isdigit()):
        raise ConfigError(f"store URL: {path!r} must end with the number of a database")
    if mode == "cluster" and int(database):
        raise ConfigError(f"store URL: a cluster has database 0 only, not {database}")
    return service, int(database)


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in OPTIONS:
            raise ConfigError(
                f"store URL option {name!r} is not known; there are {', '.join(OPTIONS)}"
            )
        if name in options:
            raise ConfigError(f"store URL option {name!r} stands there twice")
        options[name] = value
    return options


def _prefix(prefix: str) -> str:
    if not prefix or len(prefix) > 64 or not all(c.isalnum() or c in "._:/-" for c in prefix):
        raise ConfigError(
            f"store URL option prefix={prefix!r} must be 1 to 64 letters, digits, '.', '_', ':', "
            "'/' or '-'"
        )
    return prefix


def _tls(options: Mapping[str, str]) -> dict[str, Any]:
    chosen: dict[str, Any] = {name: options[name] for name in _TLS_FILES if name in options}
    check = options.get("ssl_check_hostname", "true").lower()
    if check not in ("true", "false"):
        raise ConfigError(
            f"store URL option ssl_check_hostname must be true or false, not {check!r}"
        )
    return chosen | {"ssl_check_hostname": check == "true"}


def _integer(options: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
        raise ConfigError(
            f"store URL option {name} must be a whole number from {low} to {high}, not {text!r}"
        )
    return int(text)


def _seconds(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 600:
        raise ConfigError(f"store URL option {name} must be 0.05 to 600 seconds, not {text!r}")
    return value
