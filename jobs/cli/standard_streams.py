"""Standard output and error that survive a closed pipe or a full disk.

A reader may close the pipe (`tango runs ls | head -1`), or the disk under a redirected file may be
full (`tango report RUN > table.txt`). Neither may stop a job that runs for hours: further output is
dropped and the command continues. Output lost to a full disk is reported at the end as an error.
Imports only the standard library.
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
    """File whose writes never fail: after the first failed write, output is dropped.

    Attributes:
        failure: The first error, or `None`.
    """

    def __init__(self, descriptor: int) -> None:
        """Wrap an open file descriptor without taking ownership of it."""
        super().__init__(descriptor, "w", closefd=False)
        self.failure: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        """Write data; after a failure pretend that all of it was written."""
        if self.failure is None:
            try:
                return super().write(data)
            except OSError as error:
                self.failure = error
        return memoryview(data).nbytes


@contextmanager
def lasting_streams() -> Iterator[None]:
    """Replace `sys.stdout` and `sys.stderr` by streams over a `LastingFile` while active.

    Characters that the encoding does not have, as in undecodable file names, are written as escape
    sequences. Streams that are not regular text streams are left alone.
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
    """Whether the reader of a stream has closed it, so that printing may stop."""
    return isinstance(_failure(stream), BrokenPipeError)


def code_of_output(code: int) -> int:
    """Flush the output and return the final exit code; print a message if output was lost.

    Args:
        code: Exit code of the command.

    Returns:
        `code`, or 2 if it is 0 but the output could not be written.
    """
    _flush(sys.stdout)
    failure = _failure(sys.stdout)
    if failure is None or isinstance(failure, BrokenPipeError):
        return code
    print(
        f"tango: standard output cannot be written to ({failure.strerror}) and output was lost; "
        "redirect it to a disk with free space and run the command again",
        file=sys.stderr,
    )
    return code or exit_codes.MISTAKE


def _lasting(stream: IO[str]) -> IO[str]:
    """The same stream over a `LastingFile`; unchanged if it is not a regular text stream."""
    if type(stream) is not io.TextIOWrapper:
        return stream
    file = LastingFile(stream.fileno())
    is_unbuffered = isinstance(stream.buffer, io.FileIO)  # PYTHONUNBUFFERED, `python -u`
    return io.TextIOWrapper(
        file if is_unbuffered else io.BufferedWriter(file),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _flush(stream: IO[str] | None) -> None:
    """Flush a stream; it is `None` if it was closed before the program started."""
    if stream is not None:
        with suppress(OSError, ValueError):
            stream.flush()


def _failure(stream: IO[str]) -> OSError | None:
    """The write error of a stream over a `LastingFile`; `None` for other streams."""
    buffer = getattr(stream, "buffer", None)
    return getattr(getattr(buffer, "raw", buffer), "failure", None)
