"""Who runs a command."""

from __future__ import annotations

import getpass


def user_name() -> str:
    """The name of this user; empty for a user id without a name, as containers have."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
