"""Errors that users cause, apart from programming errors.

The command `tango` prints a `UserError` as one line; everything else is a programming error and
keeps its traceback.
"""

from __future__ import annotations


class UserError(Exception):
    """Base of all errors that a user causes and can correct.

    The message is one line that names the setting, its value, what is allowed, and what to do next.
    """


class InputError(UserError, ValueError):
    """A setting, an option or the content of a file that cannot be used."""


class MissingFileError(UserError, FileNotFoundError):
    """A file or directory that a setting names and that is not there."""
