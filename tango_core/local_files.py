"""Files named by users: expand, validate and read them.

Only regular files up to a maximum size are read. A FIFO without a writer, a device or a socket
would block forever, and a file of another kind must give a one-line error.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from tango_core.errors import InputError

MOST_OF_A_DOCUMENT = 1 << 30
"""Bytes of the largest JSON or text table that is read; the largest public one has 0.1 GB."""


class NotRegularError(OSError):
    """A path is not a regular file."""


def raise_if_not_regular(status: os.stat_result) -> None:
    """Raise `NotRegularError` for files on which `open` or `read` could block forever."""
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularError("is not a regular file")


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file, or one that a link leads to, for reading; never waits.

    Raises:
        NotRegularError: If it is something else.
        OSError: If it is not there or may not be read.
    """
    raise_if_not_regular(os.stat(path))  # opening a device may already do something
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        raise_if_not_regular(os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def identity(place: Path, hash_content: bool) -> str:
    """Fingerprint of the current content of a file or of a directory of files.

    Args:
        place: The file or directory.
        hash_content: Use the content, independent of the path, instead of path, size and
            modification time.

    Raises:
        OSError: If it is not there, cannot be read or is of another kind.
    """
    status = place.stat()
    if stat.S_ISDIR(status.st_mode):
        files = sorted(child for child in place.iterdir() if child.is_file())
        parts = "\n".join(f"{child.name}={identity(child, hash_content)}" for child in files)
        return f"frames:{_digest(parts)[:32]}"
    raise_if_not_regular(status)
    if hash_content:
        return f"sha256:{_content_digest(place)}"
    return f"stat:{status.st_size}:{status.st_mtime_ns}:{_digest(str(place.absolute()))[:16]}"


def has_identity(place: Path, fingerprint: str, hash_content: bool) -> bool:
    """Whether a fingerprint, with or without a suffix, matches the current `identity`."""
    found = identity(place, hash_content)
    return fingerprint == found or fingerprint.startswith(f"{found}:")


def _digest(text: str) -> str:
    """SHA-256 of a text that may hold names of files."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _content_digest(path: Path) -> str:
    """SHA-256 of a file as it was when it was opened, read in pieces."""
    state = hashlib.sha256()
    with open_regular(path) as file:
        left = os.fstat(file.fileno()).st_size
        while left > 0 and (piece := file.read(min(left, 1 << 20))):
            state.update(piece)
            left -= len(piece)
    return state.hexdigest()


def read_text(path: Path, at_most: int = MOST_OF_A_DOCUMENT, errors: str = "strict") -> str:
    """The text of a regular UTF-8 file, with or without a byte order mark.

    Args:
        path: The file.
        at_most: Bytes that it may have.
        errors: `"replace"` for a mark in place of bytes that are no UTF-8, as in `bytes.decode`.

    Raises:
        ValueError: If it is larger than `at_most` bytes, or not UTF-8 and `errors` is `"strict"`.
        OSError: As `open_regular`.
    """
    with open_regular(path) as file:
        data = file.read(at_most + 1)
    if len(data) > at_most:
        raise InputError(f"{path}: larger than {at_most >> 20} MiB, which no such file is")
    try:
        return data.decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason}); save it as UTF-8") from error


def parse_json(text: str, source: str) -> Any:
    """Read one JSON document.

    Args:
        text: The document.
        source: Origin for error messages: a path, or a path with a line.

    Raises:
        ValueError: If it is not JSON, is nested too deeply, or holds a number without end.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InputError(f"{source}: not JSON ({error.msg} at {place})") from error
    except RecursionError as error:
        raise InputError(f"{source}: JSON that is nested too deeply") from error
    except ValueError as error:
        raise InputError(f"{source}: not usable JSON ({error})") from error
