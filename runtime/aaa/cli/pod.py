"""What a worker in a pod is told by its environment, and what it does about it.

``AAA_POD_NAME`` begins its name, ``AAA_POD_UID`` goes along in what it says of itself,
``AAA_POLICY_FOLDER`` makes it follow policies, ``AAA_HEALTH_PORT`` makes it answer probes. Outside a
pod none of them is set and nothing here does anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from aaa.clock import SYSTEM_CLOCK, Clock
from aaa.errors import ConfigError
from aaa.runtime import Engine
from aaa.telemetry import names, tell
from aaa.worker import health, policies
from aaa.worker.health import Health
from aaa.worker.policies import Found, PolicyFolder

log = logging.getLogger("aaa.worker")

#: A blocked loop's limit without probes, and the least with them.
BLOCK_LIMIT_S: Final = 60.0
LEAST_BLOCK_LIMIT_S: Final = 15.0


class Pod:
    """One worker process, as its surroundings see it. Probes are answered inside its block."""

    def __init__(
        self,
        *,
        name: str = "",
        uid: str = "",
        policy_folder: Path | None = None,
        health_port: int | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Raises :class:`ConfigError` for a folder that is none or a port that is taken."""
        self.name, self.uid = name, uid
        self._clock = clock
        self._engine: Engine | None = None
        self._refused: dict[str, str] = {}
        self._read: frozenset[str] = frozenset()
        if policy_folder is not None and not policy_folder.is_dir():
            raise ConfigError(f"AAA_POLICY_FOLDER names {policy_folder}, which is not a folder")
        self._folder = None if policy_folder is None else PolicyFolder(policy_folder)
        self._health = (
            None
            if health_port is None
            else Health(health_port, healthy=self._hangs, ready=self._not_ready)
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """As the environment says. Raises :class:`ConfigError`."""
        folder, port = environment.get("AAA_POLICY_FOLDER"), environment.get("AAA_HEALTH_PORT")
        if port and not (port.isascii() and port.isdigit() and int(port) < 65_536):
            raise ConfigError(f"AAA_HEALTH_PORT must be a port's number, not {port!r}")
        return cls(
            name=environment.get("AAA_POD_NAME", ""),
            uid=environment.get("AAA_POD_UID", ""),
            policy_folder=Path(folder) if folder else None,
            health_port=int(port) if port else None,
        )

    def __enter__(self) -> Self:
        if self._health is not None:
            self._health.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._health is not None:
            self._health.close()

    def worker_name(self) -> str | None:
        """``<pod>-<process>-<made up>``: a container that restarts in its pod is another worker."""
        if not self.name:
            return None
        return f"{self.name}-{os.getpid()}-{self._clock.token()[:8]}"

    def loop_block_limit_s(self, worker_ttl_s: float) -> float:
        """After how long a hung loop ends the process.

        Where a probe would have it ended after three TTLs and more, the process is faster: it shows
        where it hangs.
        """
        if self._health is None:
            return BLOCK_LIMIT_S
        return min(BLOCK_LIMIT_S, max(LEAST_BLOCK_LIMIT_S, 3 * worker_ttl_s))

    def attach(self, engine: Engine) -> None:
        """Look after this engine: its tools are attached, it has not started."""
        self._engine = engine
        engine.pod_uid = self.uid
        if self._folder is None:
            return
        try:
            self._take(self._folder.look() or Found())
        except OSError as error:
            raise ConfigError(f"AAA_POLICY_FOLDER cannot be read: {error}") from None

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow the policies inside the block."""
        if self._folder is None:
            yield
            return
        task = asyncio.create_task(
            policies.follow(self._folder, self._take, clock=self._clock, failed=self._not_listed)
        )
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # -------------------------------------------------------------------------- inside

    def _take(self, found: Found) -> None:
        engine = self._engine
        if engine is None:
            return
        refused = dict(engine.follow_policies(found.layers, refused=found.refused))
        for policy, why in refused.items():
            if self._refused.get(policy) != why:
                message = "policy %s is refused: %s"
                tell(log, names.LOG_POLICY_REFUSED, message, policy, why, worker=engine.worker)
        self._refused = refused
        read = frozenset(found.layers) - set(refused)
        for policy in sorted(read - self._read):
            tell(log, names.LOG_POLICY_READ, "policy %s is in force", policy, worker=engine.worker)
        self._read = read

    def _not_listed(self, error: OSError) -> None:
        worker = self._engine.worker if self._engine is not None else ""
        message = "the folder of policies cannot be read, what was read stays: %s"
        tell(log, names.LOG_POLICY_REFUSED, message, error, worker=worker)

    def _hangs(self) -> str | None:
        lag_s = 0.0 if self._engine is None else self._engine.lag_s
        return None if lag_s < health.HUNG_S else f"the event loop has hung for {lag_s:.0f} s"

    def _not_ready(self) -> str | None:
        engine = self._engine
        if engine is None or not engine.started:
            return "starting"
        if engine.draining:
            return "draining"
        return None if engine.leased else "the worker's lease is not held"
