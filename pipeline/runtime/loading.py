"""Loading modules and models without looking for garbage in them.

Modules are hundreds of thousands of objects that stay until the process ends. The collector looks
through them again and again while they are made, which is a fifth to a quarter of what loading
torch, transformers, MLflow or Ray Data costs.
"""

from __future__ import annotations

import atexit
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Standing:
    """The blocks that are active in this process; threads may overlap."""

    lock = threading.Lock()
    num_active = 0
    was_enabled = True


@contextmanager
def loading() -> Iterator[None]:
    """Look for no garbage while such a block is active anywhere in this process.

    What is there when the last block ends is left out of later collections, too; it is still freed
    when nothing refers to it. For blocks of seconds that import or load, not for work.
    """
    with _Standing.lock:
        if not _Standing.num_active:
            _Standing.was_enabled = gc.isenabled()
            gc.disable()
        _Standing.num_active += 1
    try:
        yield
    finally:
        with _Standing.lock:
            _Standing.num_active -= 1
            if not _Standing.num_active:
                gc.freeze()
                if _Standing.was_enabled:
                    gc.enable()


@atexit.register
def _thaw() -> None:
    """Let the end of the interpreter free everything, where a library would complain otherwise.

    Those that are built with nanobind, such as DuckDB, print a page about objects that are there
    still. In other processes that end is a second shorter without it.
    """
    if any(kind.__module__ == "nanobind" for kind in type.__subclasses__(type)):
        gc.unfreeze()
