"""Resume a run: which of its answers are still valid.

`clips/` in the run directory holds one row per clip with its file, cache key and questions, which
the answers do not contain. So a run can be read without its benchmark and model. Every attempt adds
a part with its clips; if a clip occurs twice, the later row is valid.

A clip is answered again if its file was replaced, or if its questions or subtitles were edited;
answers about clips that the benchmark no longer lists are dropped. The information about a clip
takes about 300 bytes.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.clips import Clip
from pipeline.progress.parts import (
    clip_digest,
    clips_of,
    encoded,
    question_digest,
    run_of_folder,
)
from pipeline.redaction import redacted
from pipeline.rows import CLIP, are_failed
from pipeline.storage import Storage
from pipeline.storage.seal import read_sealed, write_sealed
from tango_core.types import Question

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
"""`subtitles_digest` is empty for prompts without subtitles, and null if not recorded."""

_PART = re.compile(r"part-(\d+)-[0-9a-f]{12}\.parquet")
# Strings of one Arrow array take 2 GiB at most, and a clip's questions some kilobytes.
_ROWS_PER_PART = 50_000


def write_asked(clips: pa.Table, run: Storage) -> None:
    """Record the questions of clips in a run; writes nothing if there are no clips.

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
    """Yield the recorded clips and questions of a run, newest part first, as tables of `ASKED`.

    Runs of earlier versions have no records, or lack columns, which are null then.

    Raises:
        DamagedFileError: If a part is damaged.
    """
    folder = Storage.at(run).child(FOLDER)
    found = {name: int(match[1]) for name in folder.names() if (match := _PART.fullmatch(name))}
    for name in sorted(found, key=lambda name: found[name], reverse=True):
        table = read_sealed(folder, name, must=True).table
        for column in ASKED:
            if column.name not in table.column_names:
                table = table.append_column(column, pa.nulls(table.num_rows, column.type))
        yield table


@dataclass(frozen=True)
class AnsweredClips:
    """Clips that have the same questions under every cell of a job, and no other cell.

    Attributes:
        questions: Digest of a clip -> sum of the digests of its questions modulo 2 ** 64, and
            their number.
        failed: Digests of the clips of which any answer failed.
    """

    questions: Mapping[bytes, tuple[int, int]] = field(default_factory=dict)
    failed: Set[bytes] = frozenset()

    @classmethod
    def of(
        cls, tables: Iterable[pa.Table], cells: Sequence[str], *, keep_damaged: bool = True
    ) -> AnsweredClips:
        """Find the answered clips in tables of answers.

        Args:
            tables: Tables of whole clips, from `AnswerParts.whole_clips`.
            cells: Names of the job's cells.
            keep_damaged: Whether answers about damaged clips count as successful.
        """
        questions: dict[bytes, tuple[int, int]] = {}
        failed: set[bytes] = set()
        for table in tables:
            clips, names = clips_of(table)
            codes, ids = encoded(table["question_id"])
            known = np.array([*map(question_digest, ids), 0], np.uint64)
            per_cell = pa.table(
                {
                    "clip": clips,
                    "cell": table["cell"],
                    "question": known[codes],
                    "failed": are_failed(table, keep_damaged=keep_damaged),
                    "wanted": pc.is_in(table["cell"], pa.array(cells, pa.string())),
                }
            ).group_by(["clip", "cell"])
            per_clip = per_cell.aggregate(
                [("question", "sum"), ("question", "count"), ("failed", "any"), ("wanted", "all")]
            ).group_by("clip")
            sums = ("question_sum", "question_count")
            found = per_clip.aggregate(
                [(name, kind) for name in sums for kind in ("min", "max")]
                + [("failed_any", "any"), ("wanted_all", "all"), ("cell", "count")]
            )
            for row in found.to_pylist():
                sum_, count = row["question_sum_min"], row["question_count_min"]
                is_equal = (sum_, count) == (row["question_sum_max"], row["question_count_max"])
                if is_equal and row["wanted_all_all"] and row["cell_count"] == len(cells):
                    clip = clip_digest(*names[row["clip"]])
                    questions[clip] = (sum_, count)
                    if row["failed_any_any"]:
                        failed.add(clip)
        return cls(questions, failed)

    def __len__(self) -> int:
        """Number of clips."""
        return len(self.questions)

    def has(self, benchmark: str, video_id: str, questions: Iterable[str]) -> bool:
        """Whether a clip is here with exactly these questions.

        Args:
            benchmark: Name of its benchmark.
            video_id: Its id.
            questions: Ids of the questions that are to be asked.
        """
        digests = list(map(question_digest, questions))
        found = self.questions.get(clip_digest(benchmark, video_id))
        return found == (sum(digests) % 2**64, len(digests))

    def without_failed(self) -> AnsweredClips:
        """The clips of which no answer failed."""
        return self.only(self.questions.keys() - self.failed)

    def only(self, clips: Set[bytes]) -> AnsweredClips:
        """Some of the clips."""
        kept = {clip: asked for clip, asked in self.questions.items() if clip in clips}
        return AnsweredClips(kept, self.failed & clips)


class Continued:
    """Answered clips of earlier attempts; records which of them are still valid.

    Args:
        done: The clips that have all their answers.
        asked: Their recorded questions from `read_asked`, the newest first.
    """

    def __init__(self, done: AnsweredClips | None = None, asked: Iterable[pa.Table] = ()) -> None:
        self._done = done or AnsweredClips()
        self._asked: dict[bytes, int] = {}
        self._standing: set[bytes] = set()
        for table in asked:
            columns = [table[name].to_pylist() for name in ("benchmark", "video_id", *_NOTED)]
            # From its last row: of a clip that is there twice the later row counts.
            for benchmark, video, *content in reversed([*zip(*columns, strict=True)]):
                self._asked.setdefault(clip_digest(benchmark, video), _content(*content))

    def __len__(self) -> int:
        """Number of clips that have all their answers."""
        return len(self._done)

    def keeps(self, clip: Clip, questions: Sequence[Question]) -> bool:
        """Whether the answers about a clip are still valid, so that it is not answered again.

        Args:
            clip: The clip as the benchmark lists it now.
            questions: Its current questions.
        """
        ids = (one.id for one in questions)
        if not self._done.has(*clip.name, ids) or not self.agrees(clip):
            return False
        self._standing.add(clip_digest(*clip.name))
        return True

    def agrees(self, clip: Clip) -> bool:
        """Whether a clip is unchanged; `True` if that is unknown.

        Args:
            clip: The clip; if it has failed, its file is not compared.
        """
        before = self._asked.get(clip_digest(*clip.name))
        words = clip.clip_key, clip.questions
        same = (_content(*words, subtitles_digest(clip.subtitles)), _content(*words, None))
        return before is None or clip.status != "ok" or before in same

    @property
    def standing(self) -> AnsweredClips:
        """The clips whose answers are still valid."""
        return self._done.only(self._standing)


_NOTED = ("clip_key", "questions", "subtitles_digest")


def _content(key: str, questions: str, subtitles: str | None) -> int:
    """64-bit digest of a clip's file, bounds, questions, and subtitles unless unknown."""
    return question_digest("\0".join(one for one in (key, questions, subtitles) if one is not None))
