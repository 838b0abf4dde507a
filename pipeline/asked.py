"""What a run was asked, one row per clip: its file, its key in every cache, and its questions.

The answers hold replies and neither the questions' words nor the clip's file; who looks at a run
later should need neither the benchmark nor the model. A run that is continued adds a part for the
clips of that attempt; of a clip that is there twice the later row counts.
"""

from __future__ import annotations

import hashlib
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
).append(pa.field("subtitles_digest", pa.string()))
"""`subtitles_digest` is empty for questions that are put without, null where nobody noted it."""

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
        part = clips.slice(start, _ROWS_PER_PART)
        paths = pa.array([redacted(path) for path in part["path"].to_pylist()], pa.string())
        shown = pa.array((subtitles_digest(one.as_py()) for one in part["subtitles"]), pa.string())
        part = part.set_column(CLIP.get_field_index("path"), ASKED.field("path"), paths)
        part = part.append_column("subtitles_digest", shown).select(ASKED.names)
        name = f"part-{number:05d}-{uuid.uuid4().hex[:12]}.parquet"
        write_sealed(part, folder, name, run_of_folder(folder))


def subtitles_digest(packed: str | None) -> str:
    """16 hexadecimal digits that stand for a clip's subtitles (`rows.CLIP`); empty for none."""
    if packed is None:
        return ""
    return hashlib.blake2b(packed.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def read_asked(run: Path | Storage) -> Iterator[pa.Table]:
    """What a run was asked, newest part first; tables of `ASKED`.

    Runs of earlier versions have nothing of the kind, or lack columns, which are null.

    Raises:
        DamagedFileError: If a part is damaged.
    """
    folder = Storage.at(run).child(FOLDER)
    found = {name: int(match[1]) for name in folder.names() if (match := _PART.fullmatch(name))}
    for name in sorted(found, key=lambda name: found[name], reverse=True):
        table = read_sealed(folder, name, must=True).table
        for field in ASKED:
            if field.name not in table.column_names:
                table = table.append_column(field, pa.nulls(table.num_rows, field.type))
        yield table
