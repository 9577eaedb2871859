"""Credentials from a kubeconfig's ``exec`` plugin, for every version of its interface.

The plugin is run when a token is needed first and when the API server refuses the one it gave; it may
ask its user on the terminal. Plugins that give client certificates instead of tokens are not served.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from typing import Any

import httpx2

from aaa.errors import ConfigError


class ExecAuth(httpx2.Auth):
    """``plugin`` is the kubeconfig's ``user.exec``; ``cluster`` what it may want to know."""

    def __init__(self, plugin: Any, *, cluster: dict[str, Any]) -> None:
        self._plugin, self._cluster = plugin, cluster
        self._token: str | None = None

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if self._token is not None:
            request.headers["Authorization"] = f"Bearer {self._token}"
            reply = yield request
            if reply.status_code != 401:
                return
        self._token = await self._ask()
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request

    async def _ask(self) -> str:
        plugin = self._plugin
        told = {
            "apiVersion": plugin.apiVersion,
            "kind": "ExecCredential",
            "spec": {"interactive": sys.stdin.isatty(), "cluster": self._cluster},
        }
        own = {item.name: item.value for item in plugin.env or ()}
        environment = {**os.environ, **own, "KUBERNETES_EXEC_INFO": json.dumps(told)}
        try:
            process = await asyncio.create_subprocess_exec(
                plugin.command,
                *(plugin.args or ()),
                env=environment,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise ConfigError(
                f"the kubeconfig's login command {plugin.command!r} cannot be run: "
                f"{error.strerror or error}"
            ) from error
        out, _ = await process.communicate()
        if process.returncode != 0:
            raise ConfigError(
                f"the kubeconfig's login command {plugin.command!r} ended with "
                f"{process.returncode}; log in and try again"
            )
        try:
            token = json.loads(out)["status"]["token"]
        except (ValueError, KeyError, TypeError):
            token = None
        if not isinstance(token, str) or not token:
            raise ConfigError(
                f"the kubeconfig's login command {plugin.command!r} gave no token; client "
                "certificates from a login command are not supported"
            )
        return token
