"""What a run was asked, and which of its answers still stand when it goes on.

`clips/` in the run directory holds one row per clip: its file, its key in every cache, and its
questions. The answers hold replies and neither the questions' words nor the clip's file; who looks
at a run later needs neither the benchmark nor the model. A run that goes on adds a part for the
clips of that attempt; of a clip that is there twice the later row counts.

An answer is to certain words about a certain file. A clip whose file was replaced, or whose
questions or subtitles were edited, is asked again; one that the benchmark no longer lists has no
place in the run. What is known of a clip takes some 50 bytes.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.progress.parts import (
    Digests,
    clip_digest,
    clips_of,
    digests_of,
    encoded,
    question_digest,
    run_of_folder,
)
from pipeline.redaction import redacted
from pipeline.rows import CLIP
from pipeline.statuses import are_failed
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


@dataclass(frozen=True)
class AnsweredClips:
    """Clips that have the same questions under every cell of a job, and no other cell.

    Attributes:
        digests: (n,) digests of the clips, sorted.
        questions: (n,) sum of the digests of their questions, modulo 2 ** 64.
        counts: (n,) number of their questions.
        failed: (n,) whether any of their answers failed.
    """

    digests: Digests
    questions: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.int64]
    failed: npt.NDArray[np.bool_]

    @classmethod
    def of(
        cls, tables: Iterable[pa.Table], cells: Sequence[str], *, keep_damaged: bool = True
    ) -> AnsweredClips:
        """Look through answers.

        Args:
            tables: Of whole clips, as `AnswerParts.whole_clips` yields them.
            cells: Names of the job's cells.
            keep_damaged: Whether an answer about a damaged clip is none that failed.
        """
        parts = [_answered(table, cells, keep_damaged) for table in tables if len(table)]
        if not parts:
            return NOTHING_DONE
        digests = np.concatenate([part.digests for part in parts])
        order = np.argsort(digests)
        return cls(
            digests[order],
            np.concatenate([part.questions for part in parts])[order],
            np.concatenate([part.counts for part in parts])[order],
            np.concatenate([part.failed for part in parts])[order],
        )

    def __len__(self) -> int:
        """Number of clips."""
        return len(self.digests)

    def has(self, benchmark: str, video_id: str, questions: Iterable[str]) -> bool:
        """Whether a clip is here with exactly these questions; see `find`."""
        return self.find(benchmark, video_id, questions) is not None

    def find(self, benchmark: str, video_id: str, questions: Iterable[str]) -> int | None:
        """Place of a clip that is here with exactly these questions; `None` if it is not.

        Args:
            benchmark: Name of its benchmark.
            video_id: Its id.
            questions: Ids of the questions that are to be asked.
        """
        digest = clip_digest(benchmark, video_id)
        at = int(np.searchsorted(self.digests, np.bytes_(digest)))
        if at == len(self) or self.digests[at : at + 1].tobytes() != digest:
            return None
        ids = list(questions)
        total = sum(map(question_digest, ids)) % 2**64
        return at if self.counts[at] == len(ids) and int(self.questions[at]) == total else None

    def without_failed(self) -> AnsweredClips:
        """The clips of which no answer failed."""
        return self.where(~self.failed)

    def where(self, chosen: npt.NDArray[np.bool_]) -> AnsweredClips:
        """The chosen clips."""
        return replace(self, **{name: values[chosen] for name, values in vars(self).items()})


NOTHING_DONE = AnsweredClips(
    np.empty(0, "S16"), np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, bool)
)


def _answered(table: pa.Table, cells: Sequence[str], keep_damaged: bool) -> AnsweredClips:
    """The clips of one table that have all their answers."""
    clips, names = clips_of(table)
    cell_codes, found = encoded(table["cell"])
    order = {cell: index for index, cell in enumerate(cells)}
    own_cells = np.array([order.get(name, -1) for name in found] + [-1])[cell_codes]
    question_codes, ids = encoded(table["question_id"])
    known = np.array([question_digest(one) for one in ids] + [0], np.uint64)[question_codes]
    strange = np.bincount(clips[own_cells < 0], minlength=len(names)) > 0
    bad = are_failed(table, keep_damaged=keep_damaged)
    failed = np.bincount(clips[bad], minlength=len(names)) > 0
    # One row per clip and one column per cell: the sum and the number of the questions there.
    slots = (clips * len(cells) + own_cells)[own_cells >= 0]
    shape = (len(names), len(cells))
    added = np.zeros(shape[0] * shape[1], np.uint64)
    np.add.at(added, slots, known[own_cells >= 0])
    sums, counts = added.reshape(shape), np.bincount(slots, minlength=added.size).reshape(shape)
    alike = (sums == sums[:, :1]).all(axis=1) & (counts == counts[:, :1]).all(axis=1)
    there = AnsweredClips(digests_of(names), sums[:, 0], counts[:, 0], failed)
    return there.where(alike & ~strange & (counts[:, 0] > 0))


@dataclass(frozen=True)
class AskedBefore:
    """What a run was asked, in 24 bytes per clip.

    Attributes:
        digests: (n,) digests of the clips, sorted.
        contents: (n,) digests of their files, bounds, questions and subtitles.
    """

    digests: Digests
    contents: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, tables: Iterable[pa.Table]) -> AskedBefore:
        """Look through what was asked.

        Args:
            tables: As `read_asked` yields them, the newest first.
        """
        found: dict[bytes, int] = {}
        for table in tables:
            columns = [table[name].to_pylist() for name in ("benchmark", "video_id", *_NOTED)]
            # From its last row: of a clip that is there twice the later row counts.
            for benchmark, video, *content in reversed([*zip(*columns, strict=True)]):
                found.setdefault(clip_digest(benchmark, video), _content(*content))
        digests = np.array(list(found), dtype="S16")
        order = np.argsort(digests)
        return cls(digests[order], np.array(list(found.values()), dtype=np.uint64)[order])

    def agrees(self, row: Mapping[str, Any]) -> bool:
        """Whether a clip is what it was; `True` where nobody can tell.

        Args:
            row: Of `rows.CLIP`. The file of one that has failed cannot be compared.
        """
        digest = clip_digest(row["benchmark"], row["video_id"])
        at = int(np.searchsorted(self.digests, np.bytes_(digest)))
        if at == len(self.digests) or self.digests[at : at + 1].tobytes() != digest:
            return True
        if row["status"] != "ok":
            return True
        words = row["clip_key"], row["questions"]
        shown = subtitles_digest(row["subtitles"])
        return int(self.contents[at]) in (_content(*words, shown), _content(*words, None))


class Continued:
    """What an attempt finds of earlier ones, and which of it stands.

    Args:
        done: The clips that have all their answers.
        asked: What they were asked.
    """

    def __init__(
        self,
        done: AnsweredClips = NOTHING_DONE,
        asked: AskedBefore | None = None,
    ) -> None:
        self._done = done
        self._asked = asked or AskedBefore.of(())
        self._stands = np.zeros(len(done), dtype=bool)

    def __len__(self) -> int:
        """Number of clips that have all their answers."""
        return len(self._done)

    def keeps(self, row: Mapping[str, Any], questions: Sequence[Question]) -> bool:
        """Whether the answers about a clip stand; it is then not asked again.

        Args:
            row: The clip as the benchmark lists it now, a row of `rows.CLIP`.
            questions: Those it lists.
        """
        ids = (question.id for question in questions)
        at = self._done.find(row["benchmark"], row["video_id"], ids)
        if at is None or not self._asked.agrees(row):
            return False
        self._stands[at] = True
        return True

    @property
    def standing(self) -> AnsweredClips:
        """The clips that were kept."""
        return self._done.where(self._stands)


_NOTED = ("clip_key", "questions", "subtitles_digest")


def _content(key: str, questions: str, subtitles: str | None) -> int:
    """64 bits that stand for a clip's file, bounds, questions, and subtitles unless unknown."""
    return question_digest("\0".join(one for one in (key, questions, subtitles) if one is not None))
