"""One Redis or Valkey server. By default it keeps every acknowledged write, as the product asks."""

from __future__ import annotations

from typing import Any, Literal

import redis

from servers.binaries import redis_binary, valkey_binary
from servers.process import HOST, Server, free_port

#: What ``appendfsync`` says; ``"off"`` is ``appendonly no``: nothing survives a kill.
Fsync = Literal["always", "everysec", "no", "off"]


class RedisServer(Server):
    """``settings`` are further lines of ``redis.conf``, for example ``{"maxmemory": "10mb"}``."""

    def __init__(
        self,
        *,
        flavour: Literal["redis", "valkey"] = "redis",
        fsync: Fsync = "always",
        settings: dict[str, str] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name or flavour)
        self.flavour = flavour
        self.fsync = fsync
        self.settings = settings or {}
        self.bus_port = 0
        self._binary = redis_binary() if flavour == "redis" else valkey_binary()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def version(self) -> tuple[int, int]:
        return self._binary.version

    def client(self, **options: Any) -> redis.Redis:
        """A client of its own for the test; bounded waits, so that a paused server shows."""
        options = {"socket_timeout": 5, "socket_connect_timeout": 5} | options
        return redis.Redis(host=HOST, port=self.port, **options)

    def reset(self) -> None:
        """Delete all data and all server-side functions."""
        with self.client() as client:
            client.flushall()
            client.execute_command("FUNCTION", "FLUSH", "SYNC")

    def command(self) -> list[str]:
        if self.settings.get("cluster-enabled") == "yes" and not self.bus_port:
            self.bus_port = free_port()
        lines = {
            "bind": HOST,
            "port": str(self.port),
            "dir": str(self.home),
            "daemonize": "no",
            "save": "",
            "appendonly": "no" if self.fsync == "off" else "yes",
            "appendfsync": "no" if self.fsync == "off" else self.fsync,
            "enable-debug-command": "local",
            "repl-diskless-sync-delay": "0",
            **({"cluster-port": str(self.bus_port)} if self.bus_port else {}),
            **self.settings,
        }
        arguments = [part for key, value in lines.items() for part in (f"--{key}", value)]
        return [str(self._binary.path), *arguments]

    def answers(self) -> bool:
        try:
            with self.client(socket_timeout=1) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False
