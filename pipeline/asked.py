"""What a run was asked, one row per clip: its file, its key in every cache, and its questions.

The answers hold replies and neither the questions' words nor the clip's file; who looks at a run
later should need neither the benchmark nor the model. A run that is continued adds a part for the
clips of that attempt; of a clip that is there twice the later row counts.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from pipeline.answer_parts import run_of_folder
from pipeline.redaction import redacted
from pipeline.rows import CLIP
from pipeline.seal import read_sealed, write_sealed
from pipeline.storage import Storage

FOLDER = "clips"

ASKED = pa.schema(
    [
        CLIP.field(name)
        for name in (
            "benchmark",
            "video_id",
            "path",
            "clip_start",
            "clip_end",
            "clip_key",
            "source_fingerprint",
            "questions",
        )
    ]
)

_PART = re.compile(r"part-(\d+)-[0-9a-f]{12}\.parquet")
# Strings of one Arrow array take 2 GiB at most, and a clip's questions some kilobytes.
_ROWS_PER_PART = 50_000


def write_asked(clips: pa.Table, run: Storage) -> None:
    """Add clips to what a run was asked; nothing is written for none.

    Args:
        clips: Rows of `rows.CLIP`. Secrets in paths are left out.
        run: The run directory.
    """
    folder = run.child(FOLDER)
    numbers = [int(found[1]) for name in folder.names() if (found := _PART.fullmatch(name))]
    following = 1 + max(numbers, default=-1)
    for number, start in enumerate(range(0, clips.num_rows, _ROWS_PER_PART), following):
        part = clips.select(ASKED.names).slice(start, _ROWS_PER_PART)
        paths = pa.array([redacted(path) for path in part["path"].to_pylist()], pa.string())
        part = part.set_column(ASKED.get_field_index("path"), ASKED.field("path"), paths)
        name = f"part-{number:05d}-{uuid.uuid4().hex[:12]}.parquet"
        write_sealed(part, folder, name, run_of_folder(folder))


def read_asked(run: Path | Storage) -> Iterator[pa.Table]:
    """What a run was asked, newest part first; tables with the columns of `ASKED`.

    Runs of earlier versions have nothing of the kind.

    Raises:
        DamagedFileError: If a part is damaged.
    """
    folder = Storage.at(run).child(FOLDER)
    found = {name: int(match[1]) for name in folder.names() if (match := _PART.fullmatch(name))}
    for name in sorted(found, key=lambda name: found[name], reverse=True):
        yield read_sealed(folder, name, must=True).table
