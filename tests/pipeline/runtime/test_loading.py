"""What loading without collections leaves behind."""

import gc
import subprocess
import sys
import weakref

import pytest

from pipeline.runtime.loading import loading


class _Knot:
    """Refers to itself, so only the collector frees it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _collector() -> object:
    """The collector as it was."""
    yield
    gc.unfreeze()
    gc.enable()


def test_the_collector_rests_until_the_last_block_ends() -> None:
    with loading():
        with loading():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_block_that_fails_wakes_the_collector() -> None:
    with pytest.raises(ValueError, match="no such model"), loading():
        raise ValueError("no such model")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with loading():
        pass
    assert not gc.isenabled()


def test_what_was_loaded_is_not_looked_through_again() -> None:
    before = gc.get_freeze_count()
    with loading():
        kept = [[] for _ in range(1000)]
    assert gc.get_freeze_count() >= before + len(kept)


def test_garbage_that_is_made_later_is_found() -> None:
    with loading():
        pass
    gone = weakref.ref(_Knot())
    assert gone() is not None
    gc.collect()
    assert gone() is None


ENDS = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() > 0))  # after all that is registered later
from pipeline.runtime.loading import loading
with loading():
    import json{more}
"""


@pytest.mark.parametrize(("more", "frozen"), [("", "True"), (", duckdb", "False")])
def test_a_process_ends_quickly_or_if_a_library_would_complain_in_order(more, frozen) -> None:
    code = ENDS.format(more=more)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, frozen, "")
