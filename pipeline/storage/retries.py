"""Repeats what a store could not do for a moment, and says in one line what it could not do."""

from __future__ import annotations

import errno
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pipeline.redaction import redacted

logger = logging.getLogger(__name__)
T = TypeVar("T")

# What no second try changes. FileExistsError is the answer to "create if absent".
_FINAL = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    NotImplementedError,
    ModuleNotFoundError,
)
_FINAL_NUMBERS = frozenset({errno.EINVAL, errno.ENAMETOOLONG, errno.EMSGSIZE, errno.ENOSYS})
_NO_CREDENTIALS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "TokenRetrievalError",
    "DefaultCredentialsError",
    "RefreshError",
    "UnauthorizedSSOTokenError",
    "SSOTokenLoadError",
)
_TIMES_OUT = ("Timeout", "TimedOut")


class ConflictError(OSError):
    """A conditional PUT was refused: the object is not as the condition says."""


@dataclass(frozen=True)
class Patience:
    """How often and how long an operation is tried.

    Attributes:
        tries: In all.
        first_s: Mean pause after the first try; every further one is twice as long.
        longest_s: Bound of a pause.
        deadline_s: No try begins later than this after the first one.
    """

    tries: int = 6
    first_s: float = 0.25
    longest_s: float = 8.0
    deadline_s: float = 120.0


PATIENCE = Patience()


def repeated(
    operation: Callable[[], T],
    what: str,
    patience: Patience = PATIENCE,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Call an operation until it succeeds, its error is final, or the patience ends.

    Args:
        operation: May be called again after any error: it reads, or writes the same bytes.
        what: Verb and URL, for the error: `"read s3://bucket/x"`.
        patience: How often.
        sleep: Waits.

    Raises:
        OSError: FileNotFoundError, FileExistsError and PermissionError as the store means them;
            TimeoutError or ConnectionError when it did not answer to the end. The text names the
            URL without secrets.
    """
    started = time.monotonic()
    for attempt in range(1, patience.tries + 1):
        try:
            return operation()
        except Exception as error:
            late = time.monotonic() - started > patience.deadline_s
            if is_final(error) or attempt == patience.tries or late:
                raise _named(error, what, attempt) from error
            logger.debug("try %d to %s: %s", attempt, redacted(what), type(error).__name__)
            # Full jitter: workers that were refused together do not come back together.
            pause = min(patience.first_s * 2**attempt, patience.longest_s)
            sleep(random.uniform(0, pause))
    raise AssertionError("unreachable")


def is_final(error: BaseException) -> bool:
    """Whether another try cannot help."""
    if isinstance(error, _FINAL) or is_conflict(error) or _lacks_credentials(error):
        return True
    if isinstance(error, OSError):
        return error.errno in _FINAL_NUMBERS
    return isinstance(error, ValueError | TypeError | KeyError) and not _is_of_network(error)


def is_conflict(error: BaseException) -> bool:
    """Whether a store refused a conditional write because the condition does not hold."""
    refused = isinstance(error, FileExistsError | ConflictError)
    return refused or _code_of(error) in ("412", "PreconditionFailed")


def _code_of(error: BaseException) -> str:
    """The code in the store's answer, wherever the library put it; "" if there is none."""
    seen: BaseException | None = error
    while seen is not None:
        response = getattr(seen, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        status = getattr(seen, "code", None) or getattr(response, "status_code", None)
        if isinstance(status, int | str) and status:
            return str(status)
        seen = seen.__cause__
    return ""


def _is_of_network(error: BaseException) -> bool:
    """Whether an error that looks like a mistake of ours is a broken answer."""
    return type(error).__module__.partition(".")[0] in ("aiohttp", "botocore", "http", "requests")


def _lacks_credentials(error: BaseException) -> bool:
    """Whether a library found no usable credentials."""
    return type(error).__name__ in _NO_CREDENTIALS


def _named(error: Exception, what: str, attempts: int) -> Exception:
    """The same trouble as an OSError whose one line names the URL."""
    reason = redacted(" ".join(str(error).split())) or type(error).__name__
    what = redacted(what)
    if isinstance(error, ModuleNotFoundError | NotImplementedError):
        return error
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(f"{what}: it is not there ({reason})")
    if isinstance(error, FileExistsError) or is_conflict(error):
        return FileExistsError(f"{what}: it has been written by another program ({reason})")
    if isinstance(error, PermissionError) or _lacks_credentials(error):
        return PermissionError(f"{what}: refused ({reason}); check the credentials of this process")
    tried = "" if attempts == 1 else f" {attempts} times"
    if isinstance(error, TimeoutError) or any(t in type(error).__name__ for t in _TIMES_OUT):
        return TimeoutError(f"{what}: tried{tried}, no answer in time ({reason})")
    if is_final(error):
        return OSError(f"{what}: {reason}")
    return ConnectionError(f"{what}: tried{tried} without success ({reason})")
