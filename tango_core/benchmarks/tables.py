"""Read the annotation files of public releases: JSON, JSON lines, CSV, TSV and Parquet."""

from __future__ import annotations

import ast
import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

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


def read_rows(path: Path) -> list[Row]:
    """Read a table, one mapping per row, in the order of the file.

    Fields of CSV and TSV files are text; use the functions below to read numbers and lists.

    Args:
        path: `.json` (a list of objects), `.jsonl`, `.csv`, `.tsv` or `.parquet`.

    Raises:
        ValueError: If the file is of no such kind or is not a table.
        ModuleNotFoundError: If it is Parquet and pandas is not installed.
    """
    suffix = path.suffix.lower()
    if suffix == ".json":
        rows = read_json(path)
    elif suffix == ".jsonl":
        rows = _read_json_lines(path)
    elif suffix in (".csv", ".tsv"):
        rows = _read_separated(path, "\t" if suffix == ".tsv" else ",")
    elif suffix == ".parquet":
        rows = _read_parquet(path)
    else:
        raise InputError(f"{path}: not a table; known kinds are {', '.join(SUFFIXES)}")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: must be a list of objects, one per question")
    return rows


def is_missing(value: Any) -> bool:
    """Whether a value is empty: absent, null, NaN, or no text at all."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def text_of(row: Row, *names: str) -> str:
    """Return the first of the named fields that is not empty, as it is written.

    Raises:
        ValueError: If all are empty.
    """
    for name in names:
        if not is_missing(row.get(name)):
            return str(row[name])
    raise InputError(f"no {' or '.join(names)}")


def answer_text_of(row: Row) -> str:
    """Return the field `answer` as it is written; it may be an empty text, as an option may be.

    Raises:
        ValueError: If there is none.
    """
    value = row.get("answer")
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise InputError("no answer")
    return str(value)


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
    """Return a field that holds a list of texts; CSV and TSV files hold it as Python or JSON text.

    Raises:
        ValueError: If it is empty or not a list of texts or numbers.
    """
    value = row.get(name)
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                raise InputError(f"{name} is not a list: {row[name]!r}") from None
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise InputError(f"{name} must be a list of texts, got {value!r}")
    if not all(isinstance(entry, (str, int, float)) for entry in value):
        raise InputError(f"{name} must hold texts, got {value!r}")
    return tuple(str(entry) for entry in value)


def _read_json_lines(path: Path) -> list[Any]:
    """Read one JSON document per line; empty lines are skipped."""
    # Not splitlines: a JSON string may hold other line separators than a line feed.
    lines = read_text(path).split("\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            rows.append(parse_json(line, f"{path}, line {number}"))
    return rows


def _read_separated(path: Path, separator: str) -> list[dict[str, Any]]:
    """Read a CSV or TSV file as pandas writes it, with line breaks inside quotes."""
    csv.field_size_limit(_MAX_FIELD)
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), delimiter=separator)
    try:
        rows = [dict(row) for row in reader]
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}") from error
    hint = parted_by(list(reader.fieldnames or ()))
    if hint:
        raise InputError(f"{path}: this is one column, {reader.fieldnames!r}{hint}")
    return [{k: v for k, v in row.items() if k is not None} for row in rows]


def parted_by(header: Sequence[str]) -> str:
    """A hint, as the end of a sentence, for a CSV whose columns are parted by something else."""
    for separator, name in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and separator in header[0]:
            return f"; its columns are parted by {name}: save it with commas"
    return ""


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
