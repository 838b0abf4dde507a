"""Standard output and error that survive a closed pipe or a full disk.

A reader may have seen enough (`tango runs ls | head -1`), and a disk may be full under a file
(`tango report RUN > table.txt`). Neither ends a job of hours. What can be written no more is
dropped, the command goes on, and its own exit code counts; but output that a full disk swallowed
is a mistake that is said at the end. Imports the standard library alone.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from jobs import exit_codes

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class LastingFile(io.FileIO):
    """A file descriptor whose writes succeed; from the first failure on they go nowhere.

    Attributes:
        failure: The first failure, or `None`.
    """

    def __init__(self, descriptor: int) -> None:
        """Take an open descriptor, which stays open."""
        super().__init__(descriptor, "w", closefd=False)
        self.failure: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        """Write as much as goes; all of it counts as written where nothing goes any more."""
        if self.failure is None:
            try:
                return super().write(data)
            except OSError as error:
                self.failure = error
        return memoryview(data).nbytes


@contextmanager
def lasting_streams() -> Iterator[None]:
    """While active, `sys.stdout` and `sys.stderr` go on where nobody reads them any more.

    Names of files need not be text: what the encoding lacks is written as its number. Streams that
    a program has replaced by its own stay.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_lasting, before)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            _flush(stream)
        sys.stdout, sys.stderr = before


def has_no_reader(stream: IO[str]) -> bool:
    """Whether the program that read a stream has closed it: whoever only prints may end."""
    return isinstance(_failure(stream), BrokenPipeError)


def code_of_output(code: int) -> int:
    """The exit code of a command, after the end of its output; says in one line what is lost.

    Args:
        code: Of the command itself; it counts unless it is 0.

    Returns:
        2 where the command is done and its output could not be written.
    """
    _flush(sys.stdout)
    failure = _failure(sys.stdout)
    if failure is None or isinstance(failure, BrokenPipeError):
        return code
    print(
        f"tango: standard output cannot be written to ({failure.strerror}); what the command "
        "printed is lost; give it a place with room and start it again",
        file=sys.stderr,
    )
    return code or exit_codes.MISTAKE


def _lasting(stream: IO[str]) -> IO[str]:
    """The same stream over a `LastingFile`; one that is no ordinary stream as it is."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.reconfigure(errors="backslashreplace")
    is_buffered = type(stream.buffer) is io.BufferedWriter
    is_raw = type(stream) is io.TextIOWrapper and isinstance(stream.buffer, io.FileIO)
    if not (is_buffered or is_raw):
        return stream
    file = LastingFile(stream.fileno())
    return io.TextIOWrapper(
        io.BufferedWriter(file) if is_buffered else file,  # PYTHONUNBUFFERED, `python -u`
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _flush(stream: IO[str] | None) -> None:
    """Write what is left; `None` is a stream that was closed before the program began."""
    if stream is not None:
        with suppress(OSError, ValueError):
            stream.flush()


def _failure(stream: IO[str]) -> OSError | None:
    """Why a stream is written no more, if it is one of ours."""
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    return raw.failure if isinstance(raw, LastingFile) else None
