"""Exit codes of the command `tango`; the README of this package has the table."""

from __future__ import annotations

import signal

OK = 0
"""Done."""

FAILED = 1
"""Done, and something in it is not good: more clips failed than allowed, answers are missing."""

MISTAKE = 2
"""It could not be done: a recipe, an option, a path, a full disk, a store or a cluster that does
not answer. One line says what and what to do."""

INTERRUPTED = 128 + signal.SIGINT
"""130: Ctrl-C."""


def of(is_good: bool) -> int:
    """Exit code of a finished command: 0 if everything is good, otherwise 1."""
    return OK if is_good else FAILED
