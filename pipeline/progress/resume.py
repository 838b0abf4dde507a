"""Resume a run: which of its answers are still valid.

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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.clips import Clip
from pipeline.progress import parts
from pipeline.redaction import all_redacted
from pipeline.rows import CLIP, are_failed
from pipeline.storage import Storage
from pipeline.storage.seal import read_sealed, write_sealed

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
        questions: (n, 2) sum of the digests of a clip's questions modulo 2 ** 64, and their number.
        failed: (n,) whether any answer about the clip failed.
    """

    digests: parts.Digests
    questions: npt.NDArray[np.uint64]
    failed: npt.NDArray[np.bool_]

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
        digests, questions = [np.empty(0, "S16")], [np.empty((0, 2), np.uint64)]
        failed = [np.empty(0, dtype=bool)]
        for table in tables:
            clips, names = parts.clips_of(table)
            codes, ids = parts.encoded(table["question_id"])
            known = np.array([*map(parts.question_digest, ids), 0], np.uint64)
            per_cell = pa.table(
                {
                    "clip": clips,
                    "cell": parts.encoded(table["cell"])[0],
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
            column = {name: found[name].to_numpy() for name in found.column_names}
            whole = column["wanted_all_all"] & (column["cell_count"] == len(cells))
            for name in sums:
                whole &= column[f"{name}_min"] == column[f"{name}_max"]
            asked = [column[f"{name}_min"][whole].astype(np.uint64) for name in sums]
            digests.append(parts.digests_of([names[clip] for clip in column["clip"][whole]]))
            questions.append(np.stack(asked, axis=1))
            failed.append(column["failed_any_any"][whole])
        every = np.concatenate(digests)
        order = np.argsort(every)
        return cls(every[order], np.concatenate(questions)[order], np.concatenate(failed)[order])

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
        asked = np.array([(sum(one) % 2**64, len(one)) for one in digests], np.uint64)
        found = parts.is_in(clips, self.digests)
        at = np.searchsorted(self.digests, clips[found])
        found[found] = (self.questions[at] == asked.reshape(-1, 2)[found]).all(axis=1)
        return found

    def without_failed(self) -> AnsweredClips:
        """The clips of which no answer failed."""
        return self.only(~self.failed)

    def only(self, chosen: npt.NDArray[np.bool_]) -> AnsweredClips:
        """The chosen clips."""
        return AnsweredClips(self.digests[chosen], self.questions[chosen], self.failed[chosen])


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
