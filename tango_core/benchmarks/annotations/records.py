"""Rows of a release, as they are understood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tango_core.benchmarks.annotations.tables import Row
from tango_core.benchmarks.scoring.multiple_choice import LETTERS
from tango_core.types import Question


@dataclass(frozen=True)
class Record:
    """One question of a release, with where it came from.

    Attributes:
        index: Row number over the whole release in the order of its files, from 0; what the
            harnesses call `index` (VLMEvalKit) and, where they read one table, `doc_id`
            (lmms-eval).
        row: The row as the release has it.
        video_id: Names the clip.
        path: The video file or folder of frames, whether it exists or not.
        clip: (start, end) in seconds, or `None` for the whole file.
        question: What is asked.
        notes: What a careful reader should know about this row.
        length_s: How long the file is in seconds, as the row states it; `None` if it does not.
        number: Row number in its own table, from 0; for releases of several tables.
    """

    index: int
    row: Row
    video_id: str
    path: str
    clip: tuple[float, float] | None
    question: Question
    notes: tuple[str, ...] = ()
    length_s: float | None = None
    number: int = 0


class BlankRowError(ValueError):
    """A row in which question and options are empty."""


@dataclass(frozen=True)
class Table:
    """One annotation file.

    Attributes:
        path: The file.
        rows: Its rows.
        task: The task all its rows belong to; "" where the rows say it.
        folder: The folder its videos are in, if the release says so.
    """

    path: Path
    rows: Sequence[Row]
    task: str = ""
    folder: str = ""


def clip_id(name: str, clip: tuple[float, float] | None) -> str:
    """Name a clip: its file's name, and the bounds if it has any."""
    return name if clip is None else f"{name}#{clip[0]!r}-{clip[1]!r}"


def index_of_letter(letter: str, choices: Sequence[str]) -> int:
    """Which option a release's letter names.

    Raises:
        ValueError: If it names none.
    """
    index = LETTERS.find(letter) if len(letter) == 1 else -1
    if not 0 <= index < len(choices):
        raise ValueError(f"answer {letter!r} is not a letter of its {len(choices)} options")
    return index


def option_notes(choices: Sequence[str], answer: int | None, answer_text: str = "") -> list[str]:
    """Say what is odd about the options of a question."""
    notes = []
    if answer is None:
        notes.append(f"the answer {answer_text!r} is none of the options; not scored")
    elif not choices[answer].strip():
        notes.append("the right option is empty")
    elif choices.count(choices[answer]) > 1:
        notes.append(f"the right option {choices[answer]!r} occurs twice")
    elif len(set(choices)) < len(choices):
        notes.append("two options are equal")
    if len(choices) < 2:
        notes.append("there is only one option")
    return notes
