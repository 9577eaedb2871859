"""What the driver and the server raise, as AAA's errors. The one place that knows both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis import exceptions as driver

from aaa.errors import AAAError, AccessRefused, ConfigError, StoreUnavailable

#: A server that says so hasn't done anything and will do it later, or another one will.
_LATER = (
    "READONLY", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "MOVED", "ASK", "BUSY",
    "OOM", "MISCONF", "NOREPLICAS", "UNBLOCKED",
)  # fmt: skip

_REFUSALS = ("NOAUTH", "WRONGPASS", "NOPERM")


def is_lost_function(error: Exception) -> bool:
    """Whether the server doesn't have the library: restarted empty, or another server took over."""
    return isinstance(error, driver.ResponseError) and "Function not found" in str(error)


def is_refusal(error: BaseException) -> bool:
    """Whether the server does not know the user, or not any more: another login may be needed."""
    login = driver.AuthenticationError | driver.AuthorizationError | driver.NoPermissionError
    text = str(error)
    return isinstance(error, login) or any(word in text for word in _REFUSALS)


def is_redirection(error: Exception) -> bool:
    """Whether another node of the cluster has the keys, now or soon; nothing was done."""
    return isinstance(
        error, driver.AskError | driver.TryAgainError | driver.ClusterDownError
    ) or is_demoted(error)


def is_demoted(error: Exception) -> bool:
    """Whether the server has become a replica: the next connection should look for its master."""
    return isinstance(error, driver.ReadOnlyError) or str(error).startswith("READONLY")


def translated(error: BaseException, where: str) -> AAAError | None:
    """The error to raise instead of the driver's; ``None`` for what isn't the driver's."""
    if isinstance(error, AAAError):
        return error
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, driver.AuthenticationError | driver.AuthorizationError):
        return AccessRefused(
            f"{where} refuses the user name or password of the store URL ({_code(text)})"
        )
    if isinstance(error, driver.NoPermissionError) or "NOPERM" in text:
        return AccessRefused(
            f"the user of the store URL lacks a permission at {where} ({text}); "
            "docs/stores/redis.md has the ACL line that it needs"
        )
    if "certificate" in text.lower():
        return ConfigError(
            f"the certificate of {where} is not trusted ({text}); ?ssl_ca_certs= names a file of "
            "those that are"
        )
    if isinstance(error, driver.OutOfMemoryError):
        return StoreUnavailable(f"{where} is out of memory and takes no writes ({text})")
    if isinstance(error, driver.RedisError):
        return _of_server(error, text, where)
    if isinstance(error, OSError | TimeoutError | EOFError):
        return StoreUnavailable(f"{where} cannot be reached ({text})")
    return None


def _of_server(error: driver.RedisError, text: str, where: str) -> AAAError:
    if "NOAUTH" in text or "WRONGPASS" in text:
        return AccessRefused(f"{where} wants a user name and password that fit ({_code(text)})")
    if "unknown command" in text.lower():
        return ConfigError(f"{where} is too old: it needs Redis 7 or Valkey 8 at least ({text})")
    later = isinstance(
        error,
        driver.ConnectionError
        | driver.TimeoutError
        | driver.ReadOnlyError
        | driver.ClusterError
        | driver.AskError
        | driver.TryAgainError,
    )
    if later or text.startswith(_LATER):
        return StoreUnavailable(f"{where} cannot be reached or is not ready ({text})")
    return ConfigError(f"{where} answered with an error: {text}")


def _code(text: str) -> str:
    """The first words of the server's answer; never what may have been sent to it."""
    return " ".join(text.split()[:3]).rstrip(".,:")


@contextmanager
def driver_errors(where: str) -> Iterator[None]:
    """Raise AAA's errors instead of the driver's."""
    try:
        yield
    except (driver.RedisError, OSError, EOFError) as error:
        instead = translated(error, where)
        if instead is None:
            raise
        raise instead from error
