"""Real files, judged by the oracle of the simulator."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.chaos.simulator import oracle

_COUNTED = re.compile(r"clips: +(\d+) \((\d+) decoded, (\d+) encoded, (\d+) failed")


class Left:
    """What a job has left, as the oracle looks at it.

    Args:
        files: Returns path -> content of all files there are, runs and caches.
        reference: What an undisturbed job leaves; `None` for that job itself.
    """

    def __init__(self, files: Callable[[], dict[str, bytes]], reference: Any = None) -> None:
        self._files = files
        self.state: Any = SimpleNamespace()
        self.world = SimpleNamespace(struck=[])
        self.rotten: dict[str, bytes] = {}
        self.finished: set[tuple[str, ...]] = set()
        self.intact: set[tuple[str, ...]] = set()
        self.look()
        self.reference = reference or oracle.expected(self)  # type: ignore[arg-type]

    def look(self) -> None:
        """See what is there now."""
        found = self._files()
        self.state = SimpleNamespace(paths=lambda: sorted(found), read=found.get)

    def after_attempt(self) -> None:
        """What must be true however an attempt ended: all is whole, and nothing is lost."""
        self.look()
        oracle.check_whole(self)  # type: ignore[arg-type]
        oracle.check_accounts(self)  # type: ignore[arg-type]

    def work_left(self, run: str) -> tuple[int, int]:
        """Clips that answers, and that token sets are missing of, before a run is resumed."""
        return oracle.work_left(self, self.reference, run)  # type: ignore[arg-type]

    def finished_run(self, run: str) -> None:
        """The run holds every answer once, right, and counts them so; so do the caches."""
        oracle.check_finished(self, run, self.reference)  # type: ignore[arg-type]


def files_below(folder: Path) -> Callable[[], dict[str, bytes]]:
    """The files of a directory, by their path as in a world of the simulator."""

    def look() -> dict[str, bytes]:
        found = {}
        for path in folder.rglob("*"):
            name = path.relative_to(folder)
            if path.is_file() and not any(part.startswith(".") for part in name.parts):
                found[f"/runs/{name}"] = path.read_bytes()
        return found

    return look


def counted(text: str) -> tuple[int, int, int]:
    """Clips that a command says it took, encoded, and lost."""
    clips, _, encoded, failed = _COUNTED.findall(text)[-1]
    return int(clips), int(encoded), int(failed)


def check_work(left: tuple[int, int], text: str) -> int:
    """Clips that a calm attempt encoded; more than were missing is wrong."""
    clips, encoded, _ = counted(text)
    oracle.check_work(left, SimpleNamespace(num_clips=clips), encoded)  # type: ignore[arg-type]
    return encoded
