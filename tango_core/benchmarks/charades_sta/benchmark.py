"""Charades-STA: when does in a video of about half a minute happen what a sentence says?

Gao et al., "TALL: Temporal Activity Localization via Language Query", ICCV 2017,
https://arxiv.org/abs/1705.02101: 3,720 sentences about 1,334 videos of Charades in the test split.
The headline is the mean IoU; R@1 at IoU 0.3, 0.5 and 0.7 stand beside it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from tango_core.benchmarks.annotations.benchmark import AnnotatedBenchmark
from tango_core.benchmarks.annotations.records import Record, Table
from tango_core.benchmarks.annotations.tables import Row, number_of, read_rows, text_of
from tango_core.benchmarks.charades_sta import lmms_eval
from tango_core.benchmarks.charades_sta.lmms_eval import REPEATED
from tango_core.benchmarks.scoring.spans import Span
from tango_core.local_files import read_text
from tango_core.metrics import MEAN_IOU, RECALL_03, RECALL_05, RECALL_07
from tango_core.types import Question

_PARQUET = "data/test-*.parquet"
_HUBS = tuple(
    f"{start}hub/datasets--{owner}--charades_sta/snapshots/*/{path}"
    for start in ("", "../")
    for owner in ("lmms-eval", "lmms-lab")
    for path in (_PARQUET, "test-*.parquet")
)
_ANNOTATIONS = (
    "charades_sta_test.txt",
    "charades_sta/charades_sta_test.txt",
    _PARQUET,
    "test-*.parquet",
    "charades_sta_test.json",
    "charades_sta_test.jsonl",
    *_HUBS,
)
# Of Charades; lmms-eval below HF_HOME/charades_sta and below HF_HOME.
_FOLDERS = ("Charades_v1_480", "charades_sta/Charades_v1_480", "Charades_v1", "videos", ".")
_SUFFIXES = (".mp4", ".mkv", ".avi", ".webm")
# "3MSZA 24.3 30.4##person turn a light on."
_LINE = re.compile(r"(?P<video>\S+)\s+(?P<start>\S+)\s+(?P<end>\S+?)\s*##(?P<caption>.*)")


class CharadesSTABenchmark(AnnotatedBenchmark):
    """Charades-STA as its authors' text file or as lmms-eval's table."""

    name = "charades_sta"
    title = "Charades-STA"
    layout = f"charades_sta_test.txt or {_PARQUET}, and Charades_v1_480/<video>.mp4"
    splits: ClassVar = {"test": 3720}
    protocols: ClassVar = lmms_eval.PROTOCOLS
    metrics = (MEAN_IOU, RECALL_03, RECALL_05, RECALL_07)
    unlisted_groups = (REPEATED,)
    lmms_eval_samples = lmms_eval.SAMPLES

    def _tables(self) -> list[Table]:
        path = self._find_annotations(_ANNOTATIONS)
        table = Table(path, _lines(path) if path.suffix == ".txt" else read_rows(path))
        asked: Counter[str] = Counter()
        self._numbers: list[int] = []
        last: dict[tuple[str, str, str], int] = {}
        for index, row in enumerate(table.rows):
            asked[str(row.get("video"))] += 1
            self._numbers.append(asked[str(row.get("video"))])
            last[_identity(row)] = index
        self._counted = set(last.values())
        return [table]

    def _record(self, index: int, number: int, row: Row, table: Table) -> Record:
        if "line" in row:
            raise ValueError(f"must be 'VIDEO start end##sentence', got {row['line'][:60]!r}")
        file, caption = text_of(row, "video"), text_of(row, "caption")
        video = PurePosixPath(file).stem if _has_suffix(file) else file
        start, end = _times(row)
        notes = [f"start {start:g} s is after end {end:g} s; swapped"] if start > end else []
        notes += ["start and end are equal; every reply has IoU 0"] if start == end else []
        repeated = index not in self._counted
        notes += ["a later row is the same; lmms-eval counts the last one"] if repeated else []
        return Record(
            index=index,
            row=row,
            video_id=video,
            path=self._path(video),
            clip=None,
            question=Question(
                id=f"{video}-{self._numbers[index]}",
                text=caption,
                groups={REPEATED: "yes"} if repeated else {},
                span=(min(start, end), max(start, end)),
            ),
            notes=tuple(notes),
        )

    def _path(self, video: str) -> str:
        """Return where the video is, or where the release would put it."""
        found = self.media.find(_FOLDERS, [video + suffix for suffix in _SUFFIXES])
        return found or self.media.at(
            next(filter(self.media.holds, _FOLDERS[:-1]), _FOLDERS[0]), f"{video}.mp4"
        )


def _lines(path: Path) -> list[Row]:
    """The rows of the authors' text file; a line of another form is a row with `line` alone."""
    rows: list[Row] = []
    for line in read_text(path).splitlines():
        found = _LINE.fullmatch(line.strip())
        if found:
            times = [found["start"], found["end"]]
            rows.append(
                {
                    "video": f"{found['video']}.mp4",
                    "caption": found["caption"].strip(),
                    "timestamp": [_number(time) for time in times],
                }
            )
        elif line.strip():
            rows.append({"line": line})
    return rows


def _number(text: str) -> float | str:
    """A number, or the text for somebody else to complain about."""
    try:
        return float(text)
    except ValueError:
        return text


def _times(row: Row) -> Span:
    """Start and end of a row in seconds.

    Raises:
        ValueError: If they are not two numbers of at least 0.
    """
    value: Any = row.get("timestamp")
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            value = None
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ValueError(f"timestamp must be [start, end], got {row.get('timestamp')!r}")
    start, end = (
        number_of({name: time}, name) for name, time in zip(("start", "end"), value, strict=True)
    )
    if min(start, end) < 0:
        raise ValueError(f"timestamp must not be negative, got {row.get('timestamp')!r}")
    return start, end


def _identity(row: Row) -> tuple[str, str, str]:
    """What makes two rows the same for lmms-eval."""
    return str(row.get("video")), str(row.get("caption")), str(row.get("timestamp"))


def _has_suffix(file: str) -> bool:
    """Whether a name ends like a video file's."""
    return PurePosixPath(file).suffix.lower() in _SUFFIXES
