"""Which clips a run has answered, in about 30 bytes per clip: what a resume is planned from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.clip_digests import (
    Digests,
    clip_digest,
    clips_of,
    digests_of,
    encoded,
    question_digest,
)
from pipeline.stages.declarations import are_failed


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
