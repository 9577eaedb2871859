"""The cluster that kubectl would talk to: KUBECONFIG's files merged as kubectl merges them.

The first file that has a name wins; relative paths are relative to the file that says them. Without
a kubeconfig, a pod's own service account is used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import yaml
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError as KubeConfigError

from aaa.errors import ConfigError
from aaa_kubectl.where import Where

DEFAULT: Final = "~/.kube/config"
_PATHS: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


def load(where: Where, environment: Mapping[str, str] = os.environ) -> SingleConfig:
    """The context's cluster and user. Raises :class:`ConfigError`, one sentence."""
    files = _files(where, environment)
    if not files and where.kubeconfig is None and Path(SERVICE_ACCOUNT, "token").exists():
        config = KubeConfig.from_service_account()
    elif not files:
        named = where.kubeconfig or environment.get("KUBECONFIG") or DEFAULT
        raise ConfigError(
            f"there is no kubeconfig at {named}; set KUBECONFIG, or name one with --kubeconfig"
        )
    else:
        config = _merged(files)
    named = ", ".join(str(file) for file in files) or "the pod's service account"
    wanted = where.context or config.current_context
    if not wanted:
        raise ConfigError(
            f"no context is chosen in {named}; choose one with --context or "
            "'kubectl config use-context'"
        )
    try:
        # Of a named context it is never the absent default.
        return cast("SingleConfig", config.get(wanted))
    except (KubeConfigError, KeyError) as error:
        known = ", ".join(sorted(config.contexts)) or "none"
        said = "is incomplete" if wanted in config.contexts else "is not there"
        raise ConfigError(
            f"the context {wanted!r} {said} in {named}; there are: {known}"
        ) from error


def _files(where: Where, environment: Mapping[str, str]) -> list[Path]:
    if where.kubeconfig is not None:
        wanted = [where.kubeconfig]
    else:
        said = environment.get("KUBECONFIG") or DEFAULT
        wanted = [Path(each).expanduser() for each in said.split(os.pathsep) if each]
    return [file for file in wanted if file.is_file()]


def _merged(files: list[Path]) -> KubeConfig:
    whole: dict[str, Any] = {"clusters": {}, "contexts": {}, "users": {}, "current-context": None}
    for file in files:
        found = _read(file)
        for key in ("clusters", "contexts", "users"):
            for each in found.get(key) or ():
                whole[key].setdefault(each["name"], _absolute(each, file.parent))
        whole["current-context"] = whole["current-context"] or found.get("current-context")
    lists = {key: list(whole[key].values()) for key in ("clusters", "contexts", "users")}
    try:
        return KubeConfig.from_dict(
            {**lists, "current-context": whole["current-context"]}, fname=files[0]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{files[0]}: not a kubeconfig ({error})") from error


def _read(file: Path) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"{file}: cannot be read as a kubeconfig ({said})") from error
    if not isinstance(found, Mapping):
        raise ConfigError(f"{file}: not a kubeconfig")
    return found


def _absolute(entry: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The entry with its paths made whole."""
    found = dict(entry)
    for part in ("cluster", "user"):
        if isinstance(found.get(part), Mapping):
            found[part] = {
                key: str(folder / value) if key in _PATHS and value else value
                for key, value in found[part].items()
            }
    return found
