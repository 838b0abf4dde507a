"""Custom: people's own videos, from a folder or from a table of questions.

Whether a video exists and can be decoded is not checked here: a video that cannot be decoded
becomes a failed row of the results. A malformed table raises at once, with file and row. The
columns are described in `README.md`.
"""

from __future__ import annotations

import logging
import os
import pickle
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

from tango_core.benchmarks.annotated import Clip, clip_id
from tango_core.benchmarks.base import Benchmark, check_limit, check_name
from tango_core.benchmarks.protocols.protocol import PLAIN, under_each_harness
from tango_core.benchmarks.scoring.judge import MATCHES, words
from tango_core.benchmarks.scoring.multiple_choice import LETTERS, read_letter
from tango_core.benchmarks.tables import is_missing, number_of, numbered_rows, without_letters
from tango_core.errors import InputError, MissingFileError
from tango_core.local_files import parse_json
from tango_core.types import Question, VideoItem
from tango_core.video.reader import list_images

Fields = Mapping[str, Any]
_Key = tuple[str, Clip]

logger = logging.getLogger(__name__)

VIDEO_SUFFIXES = frozenset(
    {".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".flv", ".wmv", ".mpg", ".mpeg", ".ts"}
    | {".mts", ".3gp", ".ogv", ".gif"}
)
TABLE_SUFFIXES = (".csv", ".jsonl")
_ITEMS_PER_CHUNK = 200
PROTOCOL = replace(PLAIN, name="custom")
COLUMNS = ("video", "question", "options", "answer", "match", "start", "end", "id")
"""Columns with a meaning; every other column is a group that results are broken down by."""


class CustomBenchmark(Benchmark):
    """A user's own videos.

    Args:
        root: A folder of videos (also in sub-folders; a folder of images is one video), a folder
            with a `questions.csv` or `questions.jsonl`, such a table anywhere, or one video file.
        split: Only `"test"`.
        seed: Ignored.
        protocol: Any of the known names; there is one prompt and one reading rule.

    Raises:
        ValueError: If `root` is missing or of no such kind, or a row is malformed.
        FileNotFoundError: If `root` does not exist.
    """

    name = "custom"
    protocols: ClassVar = under_each_harness(PROTOCOL)
    root: Path
    _items: Iterable[VideoItem]

    def _open(self, root: str | None) -> None:
        """Find the videos, or read the table."""
        if not root:
            raise InputError(
                "benchmark.root is missing; for custom set it to a folder of videos, "
                "or to a .csv or .jsonl table of questions"
            )
        if not self.root.exists():
            raise MissingFileError(f"benchmark.root {root!r} does not exist; check the path")
        table = _table_of(self.root)
        self._items = _clips_of_folder(self.root) if table is None else _TableClips(table)

    def items(self, limit: int | None = None) -> Iterator[VideoItem]:
        """Yield the clips in the order of the table, or by name for a folder.

        Raises:
            ValueError: If `limit` is negative.
        """
        check_limit(limit)
        return islice(iter(self._items), limit)


def _table_of(root: Path) -> Path | None:
    """The table that `root` is or holds; `None` for none."""
    if root.is_file():
        return root if root.suffix.lower() in TABLE_SUFFIXES else None
    tables = [root / f"questions{suffix}" for suffix in TABLE_SUFFIXES]
    found = [table for table in tables if table.is_file()]
    if len(found) > 1:
        raise InputError(
            f"{root}: both {found[0].name} and {found[1].name} are here; "
            "remove one, or set benchmark.root to the one you mean"
        )
    return found[0] if found else None


class _TableClips:
    """Clips of a table, in the order in which they first occur.

    They take a tenth of the memory of `VideoItem` objects, as a table may have millions of rows.

    Args:
        table: The file.

    Raises:
        ValueError: In one line with the file and the row. Rows are numbered as a spreadsheet or an
            editor shows them: a CSV's header is row 1, a JSON line is its own number.
    """

    def __init__(self, table: Path) -> None:
        self._table = table
        self._columns: dict[str, Any] = {}
        self._unscored = 0
        # Questions in rows that do not follow on other rows of their clip.
        self._further: dict[_Key, list[Question]] = defaultdict(list)
        items = self._read()
        chunks = iter(lambda: list(islice(items, _ITEMS_PER_CHUNK)), [])
        self._chunks = [zlib.compress(pickle.dumps(chunk), 1) for chunk in chunks]
        self._warn()

    def __iter__(self) -> Iterator[VideoItem]:
        """The clips in their order, each with all its questions."""
        for chunk in self._chunks:
            for item in pickle.loads(zlib.decompress(chunk)):
                further = self._further.get((item.video_id, item.clip), ())
                yield replace(item, questions=(*item.questions, *further)) if further else item

    def _read(self) -> Iterator[VideoItem]:
        """Yield the clips with the questions of adjacent rows."""
        folder, seen = str(self._table.parent), set[str]()
        for (video, clip), rows in groupby(self._rows(), key=itemgetter(0)):
            questions = [question for _, question in rows if question is not None]
            name = clip_id(video, clip)
            if (key := f"{name}{clip is None}") in seen:
                self._further[name, clip] += questions
                continue
            seen.add(key)
            path = video if "://" in video else os.path.join(folder, video)
            yield VideoItem(name, path, clip, tuple(questions))
        if not seen:
            raise InputError(f"{self._table}: no rows; give at least one with a video")

    def _rows(self) -> Iterator[tuple[_Key, Question | None]]:
        """Yield the clip and the question of every row."""
        row_of_id: dict[str, int] = {}
        for number, row in numbered_rows(self._table):
            try:
                fields = _given(row)
                clip, question = (_video(fields), _clip(fields)), _question(fields, number)
                self._columns.update(row)
                if question is not None:
                    first = row_of_id.setdefault(question.id, number)
                    if first != number:
                        raise InputError(f"id {question.id!r} is already used in row {first}")
                    has_rule = bool(question.choices or question.accepted)
                    self._unscored += "answer" in fields and not has_rule
            except ValueError as error:
                raise InputError(f"{self._table}, row {number}: {error}") from error
            yield clip, question

    def _warn(self) -> None:
        """Warn about answers that are not scored and about columns that look misspelt."""
        if self._unscored:
            logger.warning(
                "%s: %d free-form %s not scored; a column match (exact or contains) scores",
                self._table,
                self._unscored,
                "answer is" if self._unscored == 1 else "answers are",
            )
        # Not "match": "batch" and "patch" differ by a letter, and unscored answers are reported.
        lacking = [column for column in COLUMNS if column not in (*self._columns, "match")]
        for name in sorted({*self._columns} - {*COLUMNS}):
            for meant in get_close_matches(name.lower(), lacking, 1, 0.8):
                logger.warning(
                    "%s: column %r is taken for a group; did you mean %r?", self._table, name, meant
                )


def _clips_of_folder(root: Path) -> list[VideoItem]:
    """One clip without questions for every video below a folder."""
    if root.is_dir():
        found = sorted(path.relative_to(root).as_posix() for path in _videos_below(root))
        if found:
            return [VideoItem(name, str(root / name)) for name in found]
        is_video = bool(list_images(root))
    else:
        is_video = root.is_file() and root.suffix.lower() in VIDEO_SUFFIXES
    if not is_video:
        raise InputError(
            f"benchmark.root {str(root)!r} is neither a folder with videos "
            f"({', '.join(sorted(VIDEO_SUFFIXES))}), folders of images or a table of questions "
            f"({', '.join(TABLE_SUFFIXES)}), nor such a table, nor a video file"
        )
    return [VideoItem(root.name, str(root))]


def _videos_below(root: Path) -> Iterator[Path]:
    """Yield video files, and folders that hold images and no video; hidden ones are skipped."""
    visited: set[str] = set()
    for name, folders, files in os.walk(root, followlinks=True):
        folder = Path(name)
        is_known = os.path.realpath(folder) in visited  # a link to a folder above
        visited.add(os.path.realpath(folder))
        paths = [folder / file for file in files if not file.startswith(".")]
        videos = [path for path in paths if path.suffix.lower() in VIDEO_SUFFIXES]
        is_video = not videos and folder != root and bool(list_images(folder))
        if not is_known:
            yield from [folder] if is_video else videos
        inner = [] if is_known or is_video else folders
        folders[:] = [other for other in inner if not other.startswith(".")]


def _given(row: Any) -> Fields:
    """The fields of a row that are not empty, without white space around them."""
    if not isinstance(row, dict):
        raise InputError(f"must be a JSON object, got {type(row).__name__}")
    stripped = ((name, own.strip() if isinstance(own, str) else own) for name, own in row.items())
    return {name: own for name, own in stripped if not is_missing(own)}


def _video(fields: Fields) -> str:
    video = _text(fields, "video")
    if not video:
        raise InputError("no video; name a file, or leave the whole row out")
    if video.lower().startswith(("http://", "https://")):
        raise InputError(f"video {video!r}: videos are not read from http and https; download it")
    return video


def _question(fields: Fields, number: int) -> Question | None:
    """The question of a row; `None` if it only names a video."""
    text, choices, answer = _text(fields, "question"), _choices(fields), fields.get("answer")
    if not text:
        if choices or answer is not None:
            raise InputError("options or an answer without a question")
        return None
    match = _text(fields, "match")
    if match:
        check_name("match", match, MATCHES)
        if choices:
            raise InputError(f"match {match!r} beside options; it is for free-form questions")
        if answer is None:
            raise InputError(f"match {match!r} without an answer to compare replies with")
    return Question(
        id=str(fields.get("id", number)),
        text=text,
        choices=choices,
        answer=_index(answer, choices) if choices and answer is not None else None,
        groups={name: str(own) for name, own in fields.items() if name not in COLUMNS},
        accepted=_accepted(answer) if match else (),
        match="contains" if match == "contains" else "exact",
    )


def _text(fields: Fields, name: str) -> str:
    """A field that must be a string; "" if it is missing."""
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise InputError(f"{name} must be text, got {value!r}")
    return value


def _clip(fields: Fields) -> Clip:
    """The clip's bounds in seconds."""
    start, end = (_seconds(fields, name) for name in ("start", "end"))
    if end is None and start is not None:
        raise InputError(f"start {start:g} without an end; give both in seconds")
    if end is not None and (start or 0.0) >= end:
        raise InputError(f"start {start or 0.0:g} must lie before end {end:g}")
    return None if end is None else (start or 0.0, end)


def _seconds(fields: Fields, name: str) -> float | None:
    if name not in fields:
        return None
    try:
        seconds = number_of(fields, name)
    except (ValueError, OverflowError):
        seconds = -1.0
    if seconds < 0:
        raise InputError(f"{name} must be seconds, 0 or more, got {fields[name]!r}")
    return seconds


def _choices(fields: Fields) -> tuple[str, ...]:
    """Read options; letters in front of all of them are removed."""
    if "options" not in fields:
        return ()
    texts = _texts(fields["options"], "options")
    if not 2 <= len(texts) <= len(LETTERS):
        raise InputError(f"give 2 to {len(LETTERS)} options, got {len(texts)}")
    if not all(texts):
        raise InputError(f"option {LETTERS[texts.index('')]} is empty")
    stripped = without_letters(texts)
    has_letters = all(own and own != text for own, text in zip(stripped, texts, strict=True))
    return stripped if has_letters else tuple(texts)


def _accepted(value: Any) -> tuple[str, ...]:
    """Read the right answers to a free-form question."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    texts = _texts(str(value) if is_number else value, "answer")
    if not texts or not all(map(words, texts)):
        raise InputError(f"answer {value!r}: every part needs a word that a reply could match")
    return tuple(texts)


def _texts(value: Any, name: str) -> list[str]:
    """Read a list, a JSON list, or a string of parts separated by `|`."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = parse_json(value, f"{name} {value[:200]!r}")
    parts = value.split("|") if isinstance(value, str) else value
    if not isinstance(parts, list):
        raise InputError(f"{name} must be a list or texts parted by '|', got {value!r}")
    if any(isinstance(part, (bool, dict, list)) or part is None for part in parts):
        raise InputError(f"{name} must be texts or numbers, got {parts!r}")
    return [str(part).strip() for part in parts]


def _index(value: Any, choices: tuple[str, ...]) -> int:
    """Read the right option: its text, its letter, or its index from 0, in this order."""
    text = "" if isinstance(value, bool) else str(value).strip()
    same = [index for index, choice in enumerate(choices) if choice == text]
    if len(same) > 1:
        raise InputError(f"answer {text!r} is the text of {len(same)} options; give its letter")
    if same:
        return same[0]
    letter = read_letter(text, len(choices))
    if letter is not None:
        return letter
    if text.isdecimal() and int(text) < len(choices):
        return int(text)
    last = LETTERS[len(choices) - 1]
    raise InputError(
        f"answer {value!r} is none of the {len(choices)} options; give a letter from A to {last}, "
        f"an index from 0 to {len(choices) - 1}, or an option's text"
    )
