"""The operator's settings: each with its meaning, unit, default and the reason for the default.

They come from the environment, which the chart fills from its values. A value out of bounds ends
the process at its start with one sentence.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from aaa.errors import ConfigError

PREFIX: Final = "AAA_OPERATOR_"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """What a run that says nothing about its workers gets."""

    #: The stock worker image. No default: a chart and its image belong together.
    image: str = field(metadata={"low": None})
    #: The Secret that holds the store's URL, in each watched namespace.
    store_secret: str = "aaa-store"  # noqa: S105 - a name
    store_key: str = "url"
    #: The workers' service account; ``default`` has no rights and no token is mounted.
    service_account: str = "default"
    #: Secrets of a run's namespace by which the stock image is pulled, beside those that it names.
    image_pull_secrets: tuple[str, ...] = ()
    #: Calls that one worker runs at a time; tools wait more than they compute.
    concurrency: int = field(default=64, metadata={"low": 1, "high": 1024})
    #: Fewest workers while there is work.
    min_replicas: int = field(default=1, metadata={"low": 0, "high": 1000})
    #: Most workers of a shared pool.
    max_replicas: int = field(default=10, metadata={"low": 1, "high": 1000})
    #: Seconds that calls get to end when a worker stops; as long as a careful HTTP call.
    drain_timeout_s: int = field(default=60, metadata={"low": 0, "high": 86_400})
    #: Seconds until a silent worker counts as frozen; the runtime's own default.
    worker_ttl_s: int = field(default=15, metadata={"low": 1, "high": 3600})
    #: Seconds that an empty pool stands before it goes to zero: the next run finds it warm.
    idle_delay_s: int = field(default=60, metadata={"low": 0, "high": 86_400})
    cpu_request: str = "100m"
    memory_request: str = "128Mi"
    memory_limit: str = "512Mi"
    #: The user and group that workers run as; not root, and owner of nothing in the image.
    user_id: int = field(default=65_532, metadata={"low": 1, "high": 2**31 - 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The operator's own."""

    pools: PoolSettings
    #: Namespaces to watch; none is the whole cluster.
    namespaces: tuple[str, ...] = ()
    #: A file with the URL of a store that the namespaces share, as a user who may make users: each
    #: namespace gets a part and a user of its own. Without it namespaces bring their stores.
    store_file: str = ""
    #: Seconds until a namespace's user gets another password: a month; two hold during a change.
    store_rotation_s: int = field(default=2_592_000, metadata={"low": 3_600, "high": 315_360_000})
    #: Seconds between looks at the store while runs are open: a condition within a few seconds.
    store_look_s: float = field(default=2.0, metadata={"low": 0.1, "high": 3600})
    #: Seconds between passes over a namespace in which nothing is heard: mends missed events.
    resync_s: float = field(default=60.0, metadata={"low": 1, "high": 86_400})
    #: Seconds of the first back-off after a failure, and of the longest.
    retry_s: float = field(default=0.5, metadata={"low": 0.01, "high": 60})
    retry_max_s: float = field(default=30.0, metadata={"low": 0.1, "high": 600})
    #: The names of the ValidatingAdmissionPolicy and its binding that tie ``decidedBy`` to its user.
    admission_policy: str = "aaa-tooldecision-decided-by"
    lease_namespace: str = ""
    lease_name: str = "aaa-operator"
    lease_ttl_s: int = field(default=15, metadata={"low": 3, "high": 300})
    #: Ports of the read-only endpoint, of ``/healthz`` and ``/readyz``, and of ``/metrics``.
    read_port: int = field(default=8080, metadata={"low": 1, "high": 65_535})
    health_port: int = field(default=8081, metadata={"low": 1, "high": 65_535})
    metrics_port: int = field(default=9090, metadata={"low": 1, "high": 65_535})
    #: Seconds between changes that must come back through the watch.
    heartbeat_s: float = field(default=20.0, metadata={"low": 1, "high": 600})
    #: Seconds after which such a change that has not come back ends the process: more than a
    #: broken watch takes to be made anew, less than an hour of not noticing.
    watch_limit_s: float = field(default=120.0, metadata={"low": 5, "high": 3600})

    @property
    def lives_in(self) -> str:
        """The namespace of the operator's own Lease."""
        return self.lease_namespace or (self.namespaces or ("default",))[0]

    @property
    def heartbeat_namespace(self) -> str:
        """A namespace that is watched: its own, if that is."""
        watched = not self.namespaces or self.lives_in in self.namespaces
        return self.lives_in if watched else self.namespaces[0]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read ``AAA_OPERATOR_*``. Raises :class:`ConfigError` naming the variable."""
        known = {
            f"{PREFIX}{item.name.upper()}" for kind in (PoolSettings, cls) for item in fields(kind)
        }
        for name in environment:
            if name.startswith(PREFIX) and name not in known:
                raise ConfigError(f"{name} is not a setting of the operator")
        pools = PoolSettings(**_read(PoolSettings, environment))
        if pools.min_replicas > pools.max_replicas:
            raise ConfigError(f"{PREFIX}MIN_REPLICAS is above {PREFIX}MAX_REPLICAS")
        settings = cls(pools=pools, **_read(cls, environment))
        if len({settings.read_port, settings.health_port, settings.metrics_port}) < 3:
            raise ConfigError(
                f"{PREFIX}READ_PORT, {PREFIX}HEALTH_PORT and {PREFIX}METRICS_PORT must be three "
                "different ports"
            )
        return settings


def _read(kind: type, environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in fields(kind):
        variable = f"{PREFIX}{item.name.upper()}"
        text = environment.get(variable, "")
        if item.name == "image" and not text:
            raise ConfigError(f"{variable} is missing: the stock worker image")
        if text and item.name != "pools":
            found[item.name] = _value(variable, text, str(item.type), item.metadata)
    return found


def _value(variable: str, text: str, kind: str, bounds: Mapping[str, Any]) -> object:
    if kind == "str":
        return text
    if kind.startswith("tuple"):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        number = int(text) if kind == "int" else float(text)
    except ValueError:
        raise ConfigError(f"{variable} must be a number, not {text!r}") from None
    if not bounds["low"] <= number <= bounds["high"]:
        raise ConfigError(
            f"{variable} must be between {bounds['low']} and {bounds['high']}, not {text}"
        )
    return number
