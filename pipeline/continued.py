"""Which answers of a run still stand when it goes on.

An answer is to certain words about a certain file. A clip whose file was replaced, or whose
questions or subtitles were edited, is asked again; one that the benchmark no longer lists has no
place in the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.asked import subtitles_digest
from pipeline.clip_digests import Digests, clip_digest, question_digest
from pipeline.finished import NOTHING_DONE, AnsweredClips
from tango_core.types import Question


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
