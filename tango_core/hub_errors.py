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

# The hub's client uses httpx or, in later versions, httpx2. Its own error derives from that
# package's base error, which also covers time-outs, refused connections and proxies and is not an
# `OSError`.
TransportError: Any = HfHubHTTPError.__bases__[0]

# All errors that requests to the hub may raise.
HUB_ERRORS: tuple[Any, ...] = (TransportError, HFValidationError, EntryNotFoundError, OSError)


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
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        return reason_of(error.__cause__, repository, revision, kind)
    if isinstance(error, GatedRepoError):
        return (
            f"it is gated: ask for access on {page_of(repository, kind)}, then give the token of "
            "that account with `hf auth login` or in HF_TOKEN"
        )
    if isinstance(error, RevisionNotFoundError):
        return f"the hub has no revision {revision or constants.DEFAULT_REVISION!r} of it"
    if isinstance(error, RepositoryNotFoundError | HFValidationError):
        return (
            f"there is no such {noun} on the hub, or it is private: give a token that may read it "
            "with `hf auth login` or in HF_TOKEN"
        )
    if isinstance(error, OfflineModeIsEnabled):
        return (
            "it is not complete in the hub's cache, and HF_HUB_OFFLINE forbids to ask the hub; "
            "unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE where there is a network"
        )
    if status is not None:
        advice = "check the token in HF_TOKEN" if status in (401, 403) else "wait and try again"
        return f"the hub answers with status {status}; {advice}"
    if isinstance(error, EntryNotFoundError):
        return "it is not in the hub's cache, and the hub cannot be reached"
    text = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, TransportError):
        return (
            f"the connection to the hub at {constants.ENDPOINT} failed ({text}); check the "
            "network, HF_ENDPOINT and HTTPS_PROXY"
        )
    return text
