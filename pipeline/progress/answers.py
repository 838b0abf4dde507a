"""Write the answers of a run, and find which of them are still valid when it is resumed.

`AnswerWriter` writes them as Parquet parts, atomically; `parts.py` reads them.

`clips/` in the run directory holds one row per clip with its file, cache key and questions, which
the answers do not contain. So a run can be read without its benchmark and model. Every attempt adds
a part with its clips; if a clip occurs twice, the later row is valid.

A clip is answered again if its file was replaced, or if its questions or subtitles were edited;
answers about clips that the benchmark no longer lists are dropped. Clips are compared many at a
time; the information about one takes about 60 bytes.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.clips import Clip
from pipeline.progress import parts
from pipeline.redaction import all_redacted
from pipeline.rows import ANSWER, CLIP, AnswerRow, are_failed, to_table
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.storage import Storage
from pipeline.storage.seal import read_sealed, write_sealed
from tango_core.types import Question, VideoItem

FOLDER = "clips"

_OF_CLIP = ("benchmark", "video_id", "path", "clip_start", "clip_end")
_NOTED = ("clip_key", "questions", "subtitles_digest")
ASKED = pa.schema(
    [CLIP.field(name) for name in (*_OF_CLIP, "clip_key", "source_fingerprint", "questions")]
).append(pa.field("subtitles_digest", pa.string()))
"""Columns of `clips/`; `subtitles_digest` is empty for prompts without subtitles."""

_PART = re.compile(r"part-(\d+)-[0-9a-f]{12}\.parquet")
# Strings of one Arrow array take 2 GiB at most, and a clip's questions some kilobytes.
_ROWS_PER_PART = 50_000
_FLUSH_ROWS = 5_000
_FLUSH_SECONDS = 10.0
_ITEMS_PER_LOOKUP = 10_000


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
        encoded_paths = part["path"].combine_chunks().dictionary_encode()
        shown_paths = pa.array(all_redacted(encoded_paths.dictionary.to_pylist()), pa.string())
        paths = shown_paths.take(encoded_paths.indices)
        shown = pa.array((subtitles_digest(one.as_py()) for one in part["subtitles"]), pa.string())
        part = part.set_column(CLIP.get_field_index("path"), ASKED.field("path"), paths)
        part = part.append_column("subtitles_digest", shown).select(ASKED.names)
        name = f"part-{number:05d}-{uuid.uuid4().hex[:12]}.parquet"
        write_sealed(part, folder, name, parts.run_of_folder(folder))


def subtitles_digest(packed: str | None) -> str:
    """16 hexadecimal digits that stand for a clip's subtitles (`rows.CLIP`); empty for none."""
    if packed is None:
        return ""
    return hashlib.blake2b(packed.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def read_asked(run: Path | Storage) -> Iterator[pa.Table]:
    """Yield the recorded clips and questions of a run, newest part first, as tables of `ASKED`.

    Runs of release 0.1 have none.

    Raises:
        DamagedFileError: If a part is damaged.
    """
    folder = Storage.at(run).child(FOLDER)
    found = {name: int(match[1]) for name in folder.names() if (match := _PART.fullmatch(name))}
    for name in sorted(found, key=lambda name: found[name], reverse=True):
        yield read_sealed(folder, name, must=True).table


@dataclass(frozen=True, eq=False)
class AnsweredClips:
    """Clips that have the same questions under every cell of a job, and no other cell.

    Attributes:
        digests: (n,) digests of the clips, sorted.
        answers: (n, 2) sum of the digests of a clip's answered questions over all cells, modulo
            2 ** 64, and the number of answers.
        failed: (n,) whether any answer about the clip failed.
        num_cells: Number of cells.
    """

    digests: parts.Digests
    answers: npt.NDArray[np.uint64]
    failed: npt.NDArray[np.bool_]
    num_cells: int

    @classmethod
    def of(
        cls,
        tables: Iterable[pa.Table] = (),
        cells: Sequence[str] = (),
        *,
        keep_damaged: bool = True,
    ) -> AnsweredClips:
        """Find the answered clips in tables of answers.

        Args:
            tables: Tables of whole clips, from `AnswerParts.whole_clips`.
            cells: Names of the job's cells.
            keep_damaged: Whether answers about damaged clips count as successful.
        """
        digests, answers = [np.empty(0, "S16")], [np.empty((0, 2), np.uint64)]
        failed = [np.empty(0, dtype=bool)]
        for table in tables:
            clips, names = parts.clips_of(table)
            codes, ids = parts.encoded(table["question_id"])
            columns = {
                "clip": clips,
                "question": np.array([*map(parts.question_digest, ids), 0], np.uint64)[codes],
                "wanted": pc.is_in(table["cell"], pa.array(cells, pa.string())),
                "failed": are_failed(table, keep_damaged=keep_damaged),
            }
            kinds = [("question", kind) for kind in ("sum", "count", "count_distinct")]
            by_clip = pa.table(columns).group_by("clip")
            found = by_clip.aggregate([*kinds, ("wanted", "all"), ("failed", "any")])
            column = {name: found[name].to_numpy() for name in found.column_names}
            # No answer is there twice, so this many are all questions under all cells.
            expected = column["question_count_distinct"] * len(cells)
            whole = column["wanted_all"] & (column["question_count"] == expected)
            digests.append(parts.digests_of([names[clip] for clip in column["clip"][whole]]))
            sums = [column[f"question_{kind}"][whole] for kind in ("sum", "count")]
            answers.append(np.stack(sums, axis=1, dtype=np.uint64, casting="unsafe"))
            failed.append(column["failed_any"][whole])
        every, known = np.concatenate(digests), np.concatenate(answers)
        order = np.argsort(every)
        return cls(every[order], known[order], np.concatenate(failed)[order], len(cells))

    def __len__(self) -> int:
        """Number of clips."""
        return len(self.digests)

    def has(
        self, clips: parts.Digests, questions: Iterable[Iterable[str]]
    ) -> npt.NDArray[np.bool_]:
        """Which clips are here with exactly these questions.

        Args:
            clips: (k,) digests of clips.
            questions: Of every clip the ids of the questions that are to be asked.
        """
        digests = (list(map(parts.question_digest, ids)) for ids in questions)
        times = self.num_cells
        asked = [(sum(one) * times % 2**64, len(one) * times) for one in digests]
        found = parts.is_in(clips, self.digests)
        at = np.searchsorted(self.digests, clips[found])
        expected = np.array(asked, np.uint64).reshape(-1, 2)[found]
        found[found] = (self.answers[at] == expected).all(axis=1)
        return found

    def without_failed(self) -> AnsweredClips:
        """The clips of which no answer failed."""
        return self.only(~self.failed)

    def only(self, chosen: npt.NDArray[np.bool_]) -> AnsweredClips:
        """The chosen clips."""
        kept = self.digests[chosen], self.answers[chosen], self.failed[chosen]
        return AnsweredClips(*kept, self.num_cells)


class Continued:
    """Answered clips of earlier attempts; records which of them are still valid.

    Args:
        done: The clips that have all their answers.
        asked: Their recorded questions from `read_asked`, the newest first.
    """

    def __init__(self, done: AnsweredClips | None = None, asked: Iterable[pa.Table] = ()) -> None:
        self._done = done or AnsweredClips.of((), ())
        self._standing = [np.empty(0, "S16")]
        clips, contents = [np.empty(0, "S16")], [np.empty(0, np.uint64)]
        for table in asked:
            columns = [table[name].to_pylist() for name in ("benchmark", "video_id", *_NOTED)]
            # From its last row: of a clip that is there twice the later row counts.
            clips.append(parts.digests_of([*zip(*columns[:2], strict=True)])[::-1])
            contents.append(_contents(zip(*columns[2:], strict=True))[::-1])
        self._clips, first = np.unique(np.concatenate(clips), return_index=True)
        self._contents = np.concatenate(contents)[first]

    def __len__(self) -> int:
        """Number of clips that have all their answers."""
        return len(self._done)

    def keep(
        self, clips: Sequence[Clip], questions: Iterable[Iterable[str]]
    ) -> npt.NDArray[np.bool_]:
        """Which clips have valid answers, so that they are not answered again.

        Args:
            clips: Clips as the benchmark lists them now.
            questions: Of every clip the ids of its current questions.
        """
        digests = parts.digests_of([clip.name for clip in clips])
        kept = self._done.has(digests, questions)
        kept[kept] = self.agree([*compress(clips, kept)])
        self._standing.append(digests[kept])
        return kept

    def agree(self, clips: Sequence[Clip]) -> npt.NDArray[np.bool_]:
        """Which clips are unchanged or not known; of a failed one the file is not compared."""
        digests = parts.digests_of([clip.name for clip in clips])
        known = np.array([clip.status == "ok" for clip in clips], dtype=bool)
        known &= parts.is_in(digests, self._clips)
        before = self._contents[np.searchsorted(self._clips, digests[known])]
        now = _contents(
            (one.clip_key, one.questions, subtitles_digest(one.subtitles))
            for one in compress(clips, known)
        )
        agree = np.ones(len(clips), dtype=bool)
        agree[known] = before == now
        return agree

    @property
    def standing(self) -> AnsweredClips:
        """The clips whose answers are still valid."""
        standing = np.sort(np.concatenate(self._standing))
        return self._done.only(parts.is_in(self._done.digests, standing))


def _contents(records: Iterable[tuple[str, ...]]) -> npt.NDArray[np.uint64]:
    """64-bit digests of clips' files and bounds, questions, and subtitles."""
    return np.array([parts.question_digest("\0".join(record)) for record in records], np.uint64)


class AnswerWriter:
    """Writes `answers/part-NNNNN-<random>.parquet`; a killed driver loses unflushed answers.

    All answers of a clip are in one part, so that a clip is either finished or not. File names are
    unique to a writer, and a writer deletes only parts that it has read.

    Args:
        folder: The run's `answers` directory; existing parts are kept, and numbering continues.
        clock: Clock for the flush interval.
        may_write: Called before every write; raises if this driver lost the run's lease.
    """

    def __init__(
        self,
        folder: Path | Storage,
        clock: Clock = SYSTEM_CLOCK,
        may_write: Callable[[], None] = lambda: None,
    ) -> None:
        self.storage = Storage.at(folder)
        self._clock = clock
        self._may_write = may_write
        self._run = parts.run_of_folder(self.storage)
        numbers = (found for name in self.storage.names() if (found := parts.PART.match(name)))
        self._next = 1 + max((int(found[1]) for found in numbers), default=-1)
        self._pending: list[AnswerRow] = []
        self._kept: parts.Digests | None = None
        self._read: parts.AnswerParts | None = None
        self._last_flush = self._clock.monotonic()

    def add(self, answers: Sequence[AnswerRow]) -> None:
        """Add one clip's answers; pending answers are written every few seconds."""
        self._pending += answers
        if (
            len(self._pending) >= _FLUSH_ROWS
            or self._clock.monotonic() - self._last_flush > _FLUSH_SECONDS
        ):
            self.flush()

    def flush(self) -> None:
        """Write pending answers as a new part; a run has at least one part, possibly empty."""
        if self._pending or not self.storage.names(".parquet"):
            new = self._pending
            self._write(to_table(new, ANSWER))
            self._pending = []
            if new:
                self.drop_the_others()
        self._last_flush = self._clock.monotonic()

    def _write(self, table: pa.Table) -> None:
        """Write one part atomically, if this driver still holds the lease."""
        self._may_write()
        name = f"part-{self._next:05d}-{uuid.uuid4().hex[:12]}.parquet"
        write_sealed(table, self.storage, name, self._run)
        self._next += 1

    def finished(self, cells: Sequence[str], *, keep_damaged: bool = True) -> AnsweredClips:
        """Clips finished by earlier attempts; damaged parts are renamed and not counted.

        Args:
            cells: Names of the job's cells; a clip is finished if it has answers to the same
                questions in every cell and no answer failed.
            keep_damaged: Whether answers about damaged clips are valid (`decode.damaged`).
        """
        self._read = parts.AnswerParts(self.storage, set_aside=True)
        self._run = self._read.overview.run
        clips = self._read.whole_clips()
        return AnsweredClips.of(clips, cells, keep_damaged=keep_damaged).without_failed()

    def keep(self, clips: AnsweredClips) -> None:
        """Keep only these clips: the others are dropped when the first new answers are written.

        Call `drop_the_others` to drop them immediately, because they are no longer valid.
        """
        self._kept = clips.digests

    def drop_the_others(self) -> None:
        """Rewrite the parts that contain clips which are not kept.

        Clips in several parts are merged. If the driver dies meanwhile, rows may exist twice;
        readers use the later one.
        """
        if self._kept is None or self._read is None:
            return
        kept, reader = self._kept, self._read
        overview = reader.overview
        for table in reader.whole_clips(only_split=True):
            self._write_kept(table, kept)
        for name, clips in zip(overview.names, overview.clips, strict=True):
            split = parts.is_in(clips, overview.split)
            stays = parts.is_in(clips, kept) & ~split
            if (len(clips) and stays.all()) or not self.storage.exists(name):
                continue
            if stays.any() and (table := reader.read(name)) is not None:
                self._write_kept(table, np.sort(clips[stays]))
            self._may_write()
            with suppress(FileNotFoundError):
                self.storage.delete(name)
        self._kept = self._read = None

    def missing(
        self, expected: Iterable[tuple[str, VideoItem]], cells: Sequence[str]
    ) -> list[tuple[str, VideoItem, str, Question]]:
        """Expected answers that are in no undamaged part; call this after the last flush.

        Args:
            expected: Benchmark and clip, whose questions are asked under every cell.
            cells: Names of the cells.

        Returns:
            Benchmark, clip, cell and question of every answer that is not there.
        """
        reader = parts.AnswerParts(self.storage, set_aside=True)
        answered = AnsweredClips.of(reader.whole_clips(), cells)
        lacking = []
        rest = iter(expected)
        while some := list(islice(rest, _ITEMS_PER_LOOKUP)):
            digests = parts.digests_of([(benchmark, item.video_id) for benchmark, item in some])
            found = answered.has(digests, ([q.id for q in item.questions] for _, item in some))
            lacking += [one for one, is_there in zip(some, found, strict=True) if not is_there]
        there = _names_of(reader, {(benchmark, item.video_id) for benchmark, item in lacking})
        return [
            (benchmark, item, cell, question)
            for benchmark, item in lacking
            for question in item.questions
            for cell in cells
            if (benchmark, item.video_id, cell, question.id) not in there
        ]

    def _write_kept(self, table: pa.Table, kept: parts.Digests) -> None:
        """Write the answers of clips with the given sorted digests as a new part."""
        codes, names = parts.clips_of(table)
        stays = parts.is_in(parts.digests_of(names), kept)[codes]
        if stays.any():
            table = parts.joined([ANSWER.empty_table(), table.filter(pa.array(stays))])
            self._write(table.select(ANSWER.names).cast(ANSWER))


def _names_of(reader: parts.AnswerParts, clips: set[tuple[str, str]]) -> set[parts.AnswerName]:
    """Names of the existing answers about some clips."""
    found: set[parts.AnswerName] = set()
    for table in reader.whole_clips() if clips else ():
        codes, names = parts.clips_of(table)
        asked = pa.array([name in clips for name in names], pa.bool_()).take(pa.array(codes))
        some = table.filter(asked)
        found.update(zip(*(some[key].to_pylist() for key in parts.ANSWER_KEY), strict=True))
    return found


def read_answers(folder: Path | Storage) -> pa.Table:
    """All answers of a run at once, no answer twice, for runs that fit into memory.

    Raises:
        DamagedFileError: If a part is damaged, or belongs to another run.
    """
    return parts.joined([ANSWER.empty_table(), *parts.AnswerParts(folder).whole_clips()])
