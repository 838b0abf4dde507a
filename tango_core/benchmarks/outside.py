"""Mistakes in a benchmark of one's own: one line that names it, what was raised, and where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tango_core.benchmarks.base import Benchmark
from tango_core.extensions import last_line_in
from tango_core.outside_code import is_outside, source_files

# What such a class may raise by its contract; from elsewhere, such as a file that is not there, it
# is one line already.
_SAID = (ValueError, OSError, ModuleNotFoundError)


@contextmanager
def in_one_line(name: str, cls: type[Benchmark]) -> Iterator[None]:
    """Turn whatever the code of a benchmark from outside raises into one line.

    Args:
        name: The recipe's `benchmark.name`.
        cls: The class of that name; for one of this package nothing happens.

    Raises:
        ValueError: With the benchmark, the exception, and the last line of its own code that ran.
    """
    try:
        yield
    except Exception as error:
        if not is_outside(cls) or isinstance(error, MemoryError):
            raise
        where, is_last = last_line_in(error, _files_of(cls))
        if isinstance(error, _SAID) and not is_last:
            raise
        what = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
        raise ValueError(
            f"benchmark.name {name!r} failed{where and f' ({where})'}: {what}"
        ) from error


def _files_of(cls: type[Benchmark]) -> set[str]:
    """The files that a class is made of, as they stand in a traceback."""
    try:
        return {str(path) for path in map(Path.absolute, source_files(cls).values())}
    except ValueError:  # defined in no file
        return set()
