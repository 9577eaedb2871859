"""What Kubernetes would refuse of an object: fields that it does not have, values of another type.

The models are those of the locked Kubernetes client, so that nothing is downloaded for it.
"""

import dataclasses
import importlib
import types
import typing
from collections.abc import Iterator
from typing import Any, Final

MODULES: Final = {
    "v1": "core_v1",
    "apps/v1": "apps_v1",
    "batch/v1": "batch_v1",
    "policy/v1": "policy_v1",
    "networking.k8s.io/v1": "networking_v1",
    "rbac.authorization.k8s.io/v1": "rbac_v1",
    "admissionregistration.k8s.io/v1": "admissionregistration_v1",
    "apiextensions.k8s.io/v1": "apiextensions_v1",
}
#: Not Kubernetes' own: whose they are checks them elsewhere.
OTHERS: Final = {"aaa.dev/v1alpha1", "monitoring.coreos.com/v1"}
_PLAIN: Final = {str: (str,), int: (int,), bool: (bool,), float: (int, float)}


def problems(raw: dict[str, Any]) -> list[str]:
    """One sentence a problem."""
    module = importlib.import_module(f"lightkube.models.{MODULES[raw['apiVersion']]}")
    return list(_in(raw, getattr(module, raw["kind"]), raw["kind"]))


def _in(value: Any, wanted: Any, where: str) -> Iterator[str]:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        options = [each for each in arguments if each is not type(None)]
        if value is None or all(list(_in(value, each, where)) for each in options):
            yield from [] if value is None else _in(value, options[0], where)
    elif origin is list:
        if isinstance(value, list):
            for number, each in enumerate(value):
                yield from _in(each, arguments[0], f"{where}[{number}]")
        else:
            yield f"{where} must be a list"
    elif dataclasses.is_dataclass(wanted):
        yield from _fields(value, wanted, where)
    elif wanted in _PLAIN:
        fits = isinstance(value, _PLAIN[wanted]) and (wanted is bool or not isinstance(value, bool))
        if not fits:
            yield f"{where} must be {wanted.__name__}, not {value!r}"


def _fields(value: Any, wanted: Any, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where} must be an object"
        return
    hints = typing.get_type_hints(wanted, vars(importlib.import_module(wanted.__module__)))
    known = {item.metadata.get("json", item.name): item for item in dataclasses.fields(wanted)}
    for key, each in value.items():
        if key not in known:
            yield f"{where} has no field {key}"
        else:
            yield from _in(each, hints[known[key].name], f"{where}.{key}")
    for key, item in known.items():
        required = item.default is item.default_factory is dataclasses.MISSING
        if required and key not in value:
            yield f"{where}.{key} is missing"
