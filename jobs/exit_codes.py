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

HANGUP = 128 + signal.SIGHUP
"""129: the terminal was closed."""

INTERRUPTED = 128 + signal.SIGINT
"""130: Ctrl-C."""

TERMINATED = 128 + signal.SIGTERM
"""143: SIGTERM, as schedulers send it."""


def of(is_good: bool) -> int:
    """Of a command that is done: whether everything in it is good."""
    return OK if is_good else FAILED
