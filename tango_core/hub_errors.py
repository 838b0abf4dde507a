"""One-line messages for errors of the Hugging Face hub.

Imports huggingface_hub, so only what asks the hub may import this module.
"""

from __future__ import annotations

from typing import Any

from huggingface_hub import constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import get_token

# The hub's client uses httpx or, in later versions, httpx2. Its own error derives from that
# package's base error, which also covers time-outs, refused connections and proxies and is not an
# `OSError`.
TransportError: Any = HfHubHTTPError.__bases__[0]

# All errors that requests to the hub may raise.
HUB_ERRORS: tuple[Any, ...] = (
    HfHubHTTPError,
    HFValidationError,
    EntryNotFoundError,
    OfflineModeIsEnabled,
    TransportError,
    OSError,
)


def page_of(repository: str, kind: str = "model") -> str:
    """Address of a repository's page, where access can be requested."""
    folder = "datasets/" if kind == "dataset" else ""
    return f"{constants.ENDPOINT}/{folder}{repository}"


def reason_of(
    error: BaseException, repository: str, revision: str | None = None, kind: str = "model"
) -> str:
    """Reason for a failed request to the hub, without the repository's name.

    Args:
        error: One of `HUB_ERRORS`.
        repository: Id on the hub.
        revision: Branch, tag or commit; `None` for the main one.
        kind: `"model"` or `"dataset"`.
    """
    noun = "data set" if kind == "dataset" else "checkpoint"
    status = _status(error)
    if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        return reason_of(error.__cause__, repository, revision, kind)
    if isinstance(error, GatedRepoError):
        return _gated(repository, kind, status)
    if isinstance(error, RevisionNotFoundError):
        return f"the hub has no revision {revision or constants.DEFAULT_REVISION!r} of it"
    if isinstance(error, RepositoryNotFoundError | HFValidationError):
        with_token = "the token here does not open it"
        without = "there is no token here: `hf auth login`"
        private = f", or it is private and {with_token if get_token() else without}"
        return f"there is no such {noun} on the hub{private if status == 401 else ''}"
    if isinstance(error, OfflineModeIsEnabled):
        # Only checkpoints are looked for in the hub's cache.
        cache = "it is not complete in the hub's cache, and " if kind == "model" else ""
        return (
            f"{cache}HF_HUB_OFFLINE forbids to ask the hub; unset HF_HUB_OFFLINE and "
            "TRANSFORMERS_OFFLINE where there is a network"
        )
    if status in (401, 403):
        return (
            f"the hub refuses it with {status}; the token in HF_TOKEN or of `hf auth login` is "
            f"wrong or may not read {repository}"
        )
    if status is not None:
        return f"the hub answers with status {status}" + (
            "; wait and try again" if status == 429 or status >= 500 else ""
        )
    if isinstance(error, EntryNotFoundError):
        return "it is not in the hub's cache, and the hub cannot be reached"
    if isinstance(error, TransportError):
        text = " ".join(str(error).split()) or "no answer in time"
        return (
            f"the connection to the hub at {constants.ENDPOINT} failed "
            f"({type(error).__name__}: {text}); check the network, HF_ENDPOINT and HTTPS_PROXY"
        )
    return " ".join(f"{type(error).__name__}: {error}".split())


def _gated(repository: str, kind: str, status: int | None) -> str:
    """Next step for a user without access."""
    page = page_of(repository, kind)
    if status == 401 or not get_token():
        return (
            f"it is gated: ask for access on {page}, then give the token of that account with "
            "`hf auth login` or in HF_TOKEN"
        )
    return f"it is gated and the account of your token has no access yet: ask for it on {page}"


def _status(error: BaseException) -> int | None:
    """HTTP status of an error; `None` if there was no response."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    return status if isinstance(status, int) else None
