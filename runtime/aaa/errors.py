"""Every error that AAA raises, as one tree grouped by what the caller should do about it.

::

    AAAError
    ├── FixError                 mend the input, the code or the setting, then try again
    │   ├── ConfigError            a value is wrong where it is defined, or conflicts at ``attach()``
    │   ├── ManifestError          a manifest is wrong: carries file, line and field
    │   ├── PolicyConflict         two policies disagree, or a merge of layers is invalid
    │   ├── AppError               an application cannot be imported or is not one
    │   ├── AlgorithmError         an algorithm broke its contract or raised; its run is parked
    │   └── InvalidArguments       a tool's arguments do not fit its schema
    ├── StopError                going on would do harm; a person has to look
    │   ├── StoreTooNew            data written by a newer version than this code can read
    │   ├── StoreMismatch          the store was laid out with other settings (partitions, hash)
    │   ├── StoreUnsafe            the store's settings lose data and ``--strict`` was asked for
    │   ├── StoreWentBack          the store holds older data than this process has seen
    │   └── CorruptHistory         an event cannot be read or does not belong to its run
    ├── RetryError               nothing is wrong with the request: ask again later
    │   └── StoreUnavailable       the store cannot be reached
    │       └── AccessRefused        also a ConfigError: user, password or a right is refused
    ├── ReloadError              what the caller knows is out of date: read again, then decide
    │   ├── RunConflict            the run id is taken by other input
    │   ├── RunDeleted             the run existed and was deleted (a tombstone remains)
    │   ├── RunNotFound            no such run
    │   ├── CallNotFound           no such call in the run
    │   └── DecisionRefused        an approval or resolution does not fit the call's state
    ├── OutcomeError             how a tool call ended, when a tool or algorithm raises it itself
    │   ├── OutcomeUnknown         the action may have happened: verify, do not retry
    │   ├── NotExecuted            the action is known not to have begun
    │   ├── ToolError              the tool failed and says so
    │   └── ResultRejected         the tool did run, but what it returned cannot be recorded
    └── ModelError               a model gave no usable answer (each is also one of the kinds above)
        ├── ModelUnavailable       also a RetryError: 5xx, timeout, no connection, a cut stream
        ├── ModelRateLimited       also a RetryError: 429, ``retry_after_s`` if the provider said
        └── ModelRefused           also a FixError: the provider rejects this request as it is
"""

from __future__ import annotations


class AAAError(Exception):
    """Base of everything AAA raises. The message is one sentence: what, where, what to do."""


class FixError(AAAError):
    """Mend the input, the code or the setting, then try again."""


class ConfigError(FixError, ValueError):
    """A configuration value is out of bounds or conflicts with another."""


class ManifestError(FixError):
    """A manifest cannot be accepted.

    ``file`` and ``line`` (1-based) say where it stands, ``field`` is the dotted path inside the
    document; each is ``None`` where it is not known.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        field: str | None = None,
    ) -> None:
        self.reason, self.file, self.line, self.field = message, file, line, field
        place = ":".join(str(part) for part in (file, line) if part is not None)
        super().__init__(": ".join(part for part in (place, field, message) if part))


class PolicyConflict(FixError):
    """Two policies disagree about one field, or the merged configuration is invalid."""


class AppError(FixError):
    """``module:attribute`` cannot be imported, or is not an :class:`aaa.app.App`."""


class AlgorithmError(FixError):
    """An algorithm raised, or yielded what it may not; after three times its run is parked (L11)."""


class InvalidArguments(FixError):
    """Arguments do not fit the tool's schema; the message tells the model what to change."""


class StopError(AAAError):
    """Going on would do harm; a person has to look first."""


class StoreTooNew(StopError):
    """The data was written by a newer version than this code can read."""


class StoreMismatch(StopError):
    """The store was laid out with other settings than this process has."""


class StoreUnsafe(StopError):
    """The store's own settings can lose acknowledged writes."""


class StoreWentBack(StopError):
    """The store holds older data than this process has already seen (G23)."""


class CorruptHistory(StopError):
    """An event cannot be read, or stands where it does not belong; names run and seq."""


class RetryError(AAAError):
    """Nothing is wrong with the request itself: ask again later."""


class StoreUnavailable(RetryError):
    """The store cannot be reached, or did not answer in time; the write may have happened."""


class AccessRefused(StoreUnavailable, ConfigError):
    """The store refuses the user, the password, or a right.

    At the start that is a setting to mend. Later it is an outage: passwords are rotated and rights
    are set anew while workers run, and an outcome that waits to be recorded must not be lost to that.
    """


class ReloadError(AAAError):
    """What the caller knows is out of date: read again, then decide."""


class RunConflict(ReloadError):
    """The run id is taken by a run with other input."""


class RunDeleted(ReloadError):
    """The run existed and was deleted; its tombstone refuses a second life (L12)."""


class RunNotFound(ReloadError):
    """There is no run with this id in the store."""


class CallNotFound(ReloadError):
    """The run has no such call."""


class DecisionRefused(ReloadError):
    """An approval, rejection or resolution does not fit the call as it stands."""


class OutcomeError(AAAError):
    """How a call ended. A tool may raise one of these to say it about itself."""


class OutcomeUnknown(OutcomeError):
    """The action may have taken effect; it must be verified and not simply retried (G4)."""


class NotExecuted(OutcomeError):
    """The action is known not to have begun."""


class ToolError(OutcomeError):
    """The tool failed; recorded as its one result and not run again (G20)."""


class ResultRejected(OutcomeError):
    """The tool did run, but its result is not JSON or is too large to be recorded (G16)."""


class ModelError(AAAError):
    """A model gave no usable answer. ``status`` is the HTTP status, where there was one.

    The message never holds a credential: what a provider echoes back is cleaned before.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


class ModelUnavailable(ModelError, RetryError):
    """The provider failed, did not answer in time, or its answer broke off."""


class ModelRateLimited(ModelError, RetryError):
    """The provider wants fewer requests; ``retry_after_s`` is its own advice, if it gave any."""

    def __init__(
        self, message: str, *, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message, status=status)


class ModelRefused(ModelError, FixError):
    """The provider rejects the request, the key or the model's name; repeating changes nothing."""


def extra_hint(extra: str) -> str:
    """How to install an optional part, for an error: AAA is installed from a clone of it."""
    return f"the extra {extra!r}; in the clone of aaa: pip install '.[{extra}]'"
