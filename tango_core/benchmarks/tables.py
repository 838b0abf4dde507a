"""Read annotation files (JSON, JSON lines, CSV, TSV, Parquet) and the values of their rows."""

from __future__ import annotations

import ast
import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from tango_core.benchmarks.scoring.multiple_choice import LETTERS
from tango_core.errors import InputError
from tango_core.local_files import parse_json, read_text

Row = Mapping[str, Any]

SUFFIXES = (".json", ".jsonl", ".csv", ".tsv", ".parquet")

# A field of a TSV may hold the subtitles of an episode; csv's own limit is 128 KiB.
_MAX_FIELD = 2**27


def read_json(path: Path) -> Any:
    """Read one JSON document.

    Raises:
        ValueError: If it is not UTF-8 or not JSON.
    """
    text = read_text(path)
    try:
        return parse_json(text, str(path))
    except ValueError as error:
        raise InputError(f"{error}; download the file again") from error


def read_rows(path: Path, rows_of: Callable[[Any], Any] | None = None) -> list[Row]:
    """Read a table, one mapping per row, in the order of the file.

    Fields of CSV and TSV files are strings; use the functions below to read numbers and lists.

    Args:
        path: `.json`, `.jsonl`, `.csv`, `.tsv` or `.parquet`.
        rows_of: Makes rows of the content, which is a JSON document or a list of rows; `None` if
            the content is the rows.

    Raises:
        ValueError: If the file is of no such kind or is not a table.
        ModuleNotFoundError: If it is Parquet and pandas is not installed.
    """
    suffix = path.suffix.lower()
    if suffix == ".json":
        rows = read_json(path)
    elif suffix in (".jsonl", ".csv", ".tsv"):
        rows = [row for _, row in numbered_rows(path)]
    elif suffix == ".parquet":
        rows = _read_parquet(path)
    else:
        raise InputError(f"{path}: not a table; known kinds are {', '.join(SUFFIXES)}")
    try:
        rows = rows if rows_of is None else rows_of(rows)
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise InputError(
            f"{path}: must hold questions in the form of the release; download the file again"
        ) from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: must be a list of objects, one per question")
    return cast("list[Row]", rows)


def is_missing(value: Any) -> bool:
    """Whether a value is empty: absent, null, NaN, or an empty string."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def text_of(row: Row, *names: str) -> str:
    """Return the first of the named fields that is not empty, unchanged.

    Raises:
        ValueError: If all are empty.
    """
    for name in names:
        if not is_missing(row.get(name)):
            return str(row[name])
    raise InputError(f"no {' or '.join(names)}")


def answer_text_of(row: Row) -> str:
    """Return the field `answer` unchanged; it may be an empty string, as an option may be.

    Raises:
        ValueError: If there is none.
    """
    return "" if row.get("answer") == "" else text_of(row, "answer")


def number_of(row: Row, name: str) -> float:
    """Return a field as a finite number.

    Raises:
        ValueError: If it is empty or not a number.
    """
    value = row.get(name)
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{name} must be a number, got {value!r}")
    return number


def length_of(row: Row, name: str) -> float | None:
    """Return a field as a length in seconds, above 0; `None` if it states none."""
    try:
        seconds = number_of(row, name)
    except ValueError:
        return None
    return seconds if seconds > 0 else None


def list_of(row: Row, name: str) -> tuple[str, ...]:
    """Return a field that holds a list of strings, which CSV and TSV files write as Python does.

    Raises:
        ValueError: If it is empty or not a list of strings or numbers.
    """
    value = row.get(name)
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise InputError(f"{name} is not a list: {value!r}") from None
    texts = value if isinstance(value, (list, tuple)) else ()
    if not texts or not all(isinstance(entry, (str, int, float)) for entry in texts):
        raise InputError(f"{name} must be a list of texts, got {value!r}")
    return tuple(map(str, texts))


def numbered_of(row: Row, name: str) -> tuple[str, ...]:
    """Return the fields `name.format(0)`, `name.format(1)` and so on, up to an empty one or "N/A".

    Args:
        row: The row.
        name: E.g. `"option{}"`.
    """
    values: list[str] = []
    while not is_missing(value := row.get(name.format(len(values)))) and value != "N/A":
        values.append(str(value))
    return tuple(values)


def without_letters(options: Sequence[str]) -> tuple[str, ...]:
    """Remove the letters in front of options: "A. red", "(A) red", "A: red"."""
    return tuple(
        re.sub(rf"^\(?{letter}[.):]\)?\s*", "", option)
        for letter, option in zip(LETTERS, options, strict=False)
    )


def of_videos(rows: Sequence[Row], *names: str) -> list[Row]:
    """One row per question, where a row per video holds its questions in `qa`.

    Args:
        rows: Rows of a file; one without `qa` is a question already.
        names: Fields of the video that its questions get.
    """
    return [
        {**({name: row.get(name) for name in names} if "qa" in row else {}), **one}
        for row in rows
        for one in row.get("qa", [row])
    ]


def bounds_of(row: Row) -> tuple[float, float]:
    """Return `start` and `end` of a clip in seconds.

    Raises:
        ValueError: If one is missing, or they do not satisfy 0 <= start <= end.
    """
    if is_missing(row.get("start")) or is_missing(row.get("end")):
        raise InputError("no start and end, which this task needs")
    start, end = number_of(row, "start"), number_of(row, "end")
    if not 0 <= start <= end:
        raise InputError(f"bounds must satisfy 0 <= start <= end, got {start:g} and {end:g}")
    return start, end


def index_of_letter(letter: str, choices: Sequence[str]) -> int:
    """Index of the option named by a release's letter.

    Raises:
        ValueError: If it names none.
    """
    index = LETTERS.find(letter) if len(letter) == 1 else -1
    if not 0 <= index < len(choices):
        raise InputError(f"answer {letter!r} is not a letter of its {len(choices)} options")
    return index


def index_of_text(text: str, choices: Sequence[str]) -> int | None:
    """Index of the last option with this text, as in VLMEvalKit; `None` for none."""
    return max((index for index, choice in enumerate(choices) if choice == text), default=None)


def split_options(text: str, mark: str) -> list[str]:
    """Split a text into what stands before its options, and the options without their letters.

    A line inside an option may begin like an option: only the next letter begins one.

    Args:
        text: The text.
        mark: Pattern of what stands before an option's text; `{}` stands for its letter.
    """
    found = []
    for letter in LETTERS:
        part, *behind = re.split(mark.format(letter), text, maxsplit=1, flags=re.MULTILINE)
        found.append(part)
        if not behind:
            break
        text = behind[0]
    return found


def options_in(text: str) -> tuple[str, tuple[str, ...]] | None:
    """Split a text into question and options, lines "(A) .."; `None` if there are no such lines."""
    question, *options = split_options(text, r"\n\({}\) ?")
    return (question, tuple(one.removesuffix("\n") for one in options)) if options else None


def numbered_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read a `.jsonl`, `.csv` or `.tsv` file; empty lines are skipped.

    Rows are numbered as an editor or a spreadsheet shows them: a CSV's header is row 1, a JSON line
    is its own number. Every row of a CSV has a field for every column.

    Raises:
        ValueError: In one line with the file and the row.
    """
    is_json = path.suffix.lower() == ".jsonl"
    # Not splitlines: a JSON string may hold other line separators than a line feed. Line by line,
    # as a table may have millions.
    pattern = r"[^\n]*\n|[^\n]+" if is_json else r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+"
    lines = (found[0] for found in re.finditer(pattern, read_text(path)))
    if is_json:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, parse_json(line, f"{path}, row {number}")
        return
    csv.field_size_limit(_MAX_FIELD)
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    reader = csv.reader(lines, delimiter=separator, strict=True)
    header: list[str] = []
    number = 0
    try:
        for number, fields in enumerate(reader, start=1):
            if not "".join(fields).strip():
                continue
            if not header:
                header = [name.strip() for name in fields]
                if len(set(header)) < len(header):
                    raise InputError(f"the header names a column twice: {', '.join(header)}")
            elif len(fields) != len(header):
                raise InputError(
                    f"{len(fields)} fields under {len(header)} columns; "
                    "put fields that hold a comma into double quotes"
                )
            else:
                yield number, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise InputError(f"{path}, row {number + 1}: {error}") from error
    except ValueError as error:
        raise InputError(f"{path}, row {number}: {error}") from error


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    """Read a Parquet file through pandas, the one format here that needs a package.

    Imported by name when such a file is met: this package runs without pandas.
    """
    try:
        pandas = import_module("pandas")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"{path} is Parquet, which needs pandas and pyarrow; pip install pandas pyarrow, "
            "or convert the file to JSON lines beside it"
        ) from None
    try:
        rows: list[dict[str, Any]] = pandas.read_parquet(path).to_dict("records")
    except (ImportError, OSError, MemoryError):
        raise
    except Exception as error:  # damage makes Arrow and pandas raise anything
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: damaged ({type(error).__name__}: {reason})") from error
    return [{name: _plain(value) for name, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:
    """Turn NumPy arrays and scalars into lists and numbers."""
    return value.tolist() if hasattr(value, "tolist") else value
