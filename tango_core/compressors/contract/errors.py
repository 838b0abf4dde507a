"""How a check says that a promise is broken."""

from __future__ import annotations


class ContractError(Exception):
    """A method breaks a promise; the message says which one and how, in one line."""


def require(kept: bool, reason: str) -> None:
    """Raise `ContractError` with the reason unless the promise is kept."""
    if not kept:
        raise ContractError(reason)
