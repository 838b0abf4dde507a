"""Custom: people's own videos, from a folder or from a table of questions.

Whether a video exists and can be decoded is not checked here: a video that cannot be shown becomes
a row of the results that says so. A table that cannot be understood is refused at once, by file and
row. See `README.md` beside this file for the columns.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import ClassVar

from tango_core.benchmarks.base import Benchmark, Defect
from tango_core.benchmarks.custom.rows import Row, read_rows
from tango_core.benchmarks.protocols.plain import PLAIN
from tango_core.benchmarks.protocols.versions import under_each_harness
from tango_core.types import VideoItem

logger = logging.getLogger(__name__)

VIDEO_SUFFIXES = frozenset(
    {".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".flv", ".wmv", ".mpg", ".mpeg", ".ts"}
    | {".mts", ".3gp", ".ogv", ".gif"}
)
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp"})
TABLE_SUFFIXES = (".csv", ".jsonl")


PROTOCOL = replace(PLAIN, name="custom")


class CustomBenchmark(Benchmark):
    """A user's own videos.

    Args:
        root: A folder of videos (also in sub-folders; a folder of images is one video), a folder
            with a `questions.csv` or `questions.jsonl`, such a table anywhere, or one video file.
        split: Only `"test"`.
        seed: Ignored; the videos are what they are.
        protocol: Any of the known names; there is one prompt and one reading rule.

    Attributes:
        misspelt: Column of the table -> the column with a meaning that was probably meant.

    Raises:
        ValueError: If `root` is missing or of no such kind, or a row cannot be understood.
        FileNotFoundError: If `root` does not exist.
    """

    name = "custom"
    protocols: ClassVar = under_each_harness(PROTOCOL)
    root: Path

    def __init__(
        self,
        root: str | None = None,
        split: str = "test",
        seed: int = 0,
        protocol: str = "vlmevalkit",
    ) -> None:
        super().__init__(root, split, seed, protocol)
        if not root:
            raise ValueError(
                "benchmark.root is missing; for custom set it to a folder of videos, "
                "or to a .csv or .jsonl table of questions"
            )
        self.root = Path(root).absolute()
        if not self.root.exists():
            raise FileNotFoundError(f"benchmark.root {root!r} does not exist; check the path")
        table = _table_of(self.root)
        rows = read_rows(table) if table else []
        self.misspelt = {name: meant for row in rows for name, meant in row.misspelt}
        for name, meant in self.misspelt.items():
            logger.warning(
                "%s: column %r is taken for a group; did you mean %r?", table, name, meant
            )
        self._items = _clips_of_table(table, rows) if table else _clips_of_folder(self.root)

    def items(self, limit: int | None = None) -> Iterator[VideoItem]:
        """Yield the clips in the order of the table, or by name for a folder.

        Raises:
            ValueError: If `limit` is negative.
        """
        if limit is not None and limit < 0:
            raise ValueError(f"limit must be 0 or more, got {limit}")
        return islice(iter(self._items), limit)

    def defects(self) -> list[Defect]:
        """Columns with nearly the name of another one; fatal if that leaves no questions."""
        asked = any(item.questions for item in self._items)
        return [
            Defect(
                str(self.root),
                f"column {name!r} is taken for a group of results; did you mean {meant!r}?",
                fatal=meant == "question" and not asked,
            )
            for name, meant in self.misspelt.items()
        ]


def _table_of(root: Path) -> Path | None:
    """Return the table that `root` is or holds."""
    if root.is_file():
        return root if root.suffix.lower() in TABLE_SUFFIXES else None
    tables = [root / f"questions{suffix}" for suffix in TABLE_SUFFIXES]
    found = [table for table in tables if table.is_file()]
    if len(found) > 1:
        raise ValueError(
            f"{root}: both {found[0].name} and {found[1].name} are here; "
            "remove one, or set benchmark.root to the one you mean"
        )
    return found[0] if found else None


def _clips_of_table(table: Path, rows: Sequence[Row]) -> list[VideoItem]:
    """Group a table's rows into clips, in the order in which clips first occur."""
    clips: dict[tuple[str, tuple[float, float] | None], list[Row]] = {}
    for row in rows:
        clips.setdefault((row.video, row.clip), []).append(row)
    unscored = sum(row.unscored for row in rows)
    if unscored:
        logger.warning(
            "%s: %d free-form %s not scored; a column match (exact or contains) scores",
            table,
            unscored,
            "answer is" if unscored == 1 else "answers are",
        )
    return [
        VideoItem(
            video_id=video if clip is None else f"{video}#{clip[0]!r}-{clip[1]!r}",
            path=video if "://" in video else os.path.join(table.parent, video),
            clip=clip,
            questions=tuple(row.question for row in rows if row.question),
        )
        for (video, clip), rows in clips.items()
    ]


def _clips_of_folder(root: Path) -> list[VideoItem]:
    """Take every video below a folder, without questions."""
    if not root.is_dir():
        if not root.is_file() or root.suffix.lower() not in VIDEO_SUFFIXES:
            raise ValueError(
                f"benchmark.root {str(root)!r} is neither a folder, nor a table "
                f"({', '.join(TABLE_SUFFIXES)}), nor a video file"
            )
        return [VideoItem(root.name, str(root))]
    found = sorted(path.relative_to(root).as_posix() for path in _videos_below(root))
    if not found and _holds_images(root):
        return [VideoItem(root.name, str(root))]
    if not found:
        raise ValueError(
            f"benchmark.root {str(root)!r} holds no videos ({', '.join(sorted(VIDEO_SUFFIXES))}), "
            "no folders of images and no questions.csv or questions.jsonl"
        )
    return [VideoItem(name, str(root / name)) for name in found]


def _videos_below(root: Path) -> Iterator[Path]:
    """Yield video files, and folders that hold images and no video; hidden ones are skipped."""
    visited: set[str] = set()
    for name, folders, files in os.walk(root, followlinks=True):
        folder = Path(name)
        folders[:] = [other for other in folders if not other.startswith(".")]
        if os.path.realpath(folder) in visited:  # a link that leads back
            folders.clear()
            continue
        visited.add(os.path.realpath(folder))
        visible = [Path(file) for file in files if not file.startswith(".")]
        videos = [file for file in visible if file.suffix.lower() in VIDEO_SUFFIXES]
        yield from (folder / file for file in videos)
        if not videos and folder != root and _holds_images(folder):
            folders.clear()
            yield folder
        elif len(videos) < len(visible):
            logger.info("%s: %d files are no videos", folder, len(visible) - len(videos))


def _holds_images(folder: Path) -> bool:
    """Return whether a folder holds an image, and so may be the frames of a video."""
    return any(
        entry.suffix.lower() in IMAGE_SUFFIXES and not entry.name.startswith(".")
        for entry in folder.iterdir()
    )
