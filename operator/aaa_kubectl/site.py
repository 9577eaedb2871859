"""One command's connection: the API server, as the kubeconfig's user, and the sentences for failures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx2
from lightkube.config.client_adapter import user_auth, verify_cluster
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError as KubeConfigError

from aaa.errors import AAAError, ConfigError, RunNotFound, StoreUnavailable
from aaa_kubectl.execauth import ExecAuth
from aaa_kubectl.kubeconfig import load
from aaa_kubectl.where import Where, here
from aaa_operator import names
from aaa_operator.api import Api, ApiFailure, path

TIMEOUT_S: Final = 15.0
MANAGER: Final = "kubectl-aaa"


@dataclass(frozen=True, slots=True)
class Site:
    """Where a command works. ``server`` and ``context`` are for sentences."""

    api: Api
    namespace: str
    server: str
    context: str
    tail: str

    async def run(self, name: str) -> dict[str, Any]:
        """The AgentRun, as its user may read it. Raises :class:`RunNotFound`."""
        try:
            return await self.api.get("AgentRun", name, namespace=self.namespace)
        except ApiFailure as failure:
            if failure.gone and failure.body:
                raise RunNotFound(
                    f"there is no AgentRun {name!r} in namespace {self.namespace}; see "
                    f"'kubectl aaa runs{self.tail}'"
                ) from failure
            raise

    async def any_uid(self) -> str | None:
        """The uid of one of the namespace's AgentRuns; ``None`` if there is none."""
        where = path("AgentRun", self.namespace)
        found = await self.api.get_path(where, params={"limit": "1"})
        items = found.get("items") or ()
        return str(items[0]["metadata"]["uid"]) if items else None


@asynccontextmanager
async def connected(where: Where | None = None) -> AsyncIterator[Site]:
    """The cluster, connected; whatever it refuses becomes an error of one sentence."""
    where = where or here()
    config = load(where)
    try:
        http = httpx2.AsyncClient(
            base_url=config.cluster.server,
            verify=verify_cluster(config.cluster, config.user or User(), config.abs_file),
            auth=_auth(config),
            timeout=httpx2.Timeout(TIMEOUT_S),
        )
    except (KubeConfigError, OSError, ValueError) as error:
        raise ConfigError(
            f"the kubeconfig's context {config.context_name!r} cannot be used: {error}"
        ) from error
    async with http:
        site = Site(
            api=Api(http, manager=MANAGER),
            namespace=where.namespace or config.namespace,
            server=config.cluster.server,
            context=config.context_name,
            tail=where.tail,
        )
        try:
            yield site
        except ApiFailure as failure:
            raise sentence(failure, site) from failure


def sentence(failure: ApiFailure, site: Site) -> AAAError:
    """What an API server's refusal means to whoever typed the command."""
    if failure.status == 0:
        return StoreUnavailable(
            f"the cluster of context {site.context!r} at {site.server} cannot be reached "
            f"({failure.detail}); check the context with 'kubectl config current-context'"
        )
    if failure.status == 401:
        return ConfigError(
            f"the cluster of context {site.context!r} does not know you; log in again"
        )
    if failure.status == 403:
        return ConfigError(f"you may not do this: {failure.detail}")
    if failure.gone and not failure.body:
        # Not a Status object: the API server has no such kind.
        return ConfigError(
            f"the cluster of context {site.context!r} has no {names.API_VERSION}: install AAA's "
            "chart, which brings its CRDs"
        )
    if failure.status in (400, 422):
        return ConfigError(f"the cluster refuses this: {failure.detail}")
    if failure.status >= 500 or failure.busy:
        return StoreUnavailable(f"the cluster cannot answer now: {failure.detail}; try again")
    return ConfigError(failure.detail)


def _auth(config: SingleConfig) -> httpx2.Auth | None:
    user = config.user
    if user is not None and user.exec and not user.token and not user.token_file:
        cluster: dict[str, Any] = {"server": config.cluster.server}
        if config.cluster.certificate_auth_data:
            cluster["certificate-authority-data"] = config.cluster.certificate_auth_data
        return ExecAuth(user.exec, cluster=cluster)
    found: httpx2.Auth | None = user_auth(user)
    return found
