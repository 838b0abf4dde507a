"""Write and read VLMEvalKit's prediction files.

A prediction file is the data set's table with a column `prediction`. VLMEvalKit names it
`<model>_<dataset>` and writes `.xlsx` unless PRED_FORMAT is `tsv` or `json` (`get_pred_file_format`
in `vlmeval/smp/file.py`); we write the latter two, so that no spreadsheet package is needed. Put a
file into its work directory under that name and `run.py --mode eval` rates it.

Each benchmark states its columns (`VLMEvalKitTable`), as `prepare_dataset` of its module in
`vlmeval/dataset` makes them. Lists are written as Python text, which it reads with `eval`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import pandas as pd

from jobs.harness.predictions import Logged, answer_rows, match_replies, replies_of
from tango_core.benchmarks.annotated import AnnotatedBenchmark, VLMEvalKitTable, plain
from tango_core.benchmarks.protocols.protocol import NO_REPLY
from tango_core.benchmarks.tables import is_missing, read_rows
from tango_core.errors import InputError

SUFFIXES = (".tsv", ".json")

# Those that a video's name may end in; an id may hold full stops of its own.
_VIDEO_SUFFIXES = (".mp4", ".webm", ".mkv", ".avi", ".mov", ".gif")


def table_of(benchmark: AnnotatedBenchmark) -> VLMEvalKitTable:
    """Return what the benchmark states about its data set.

    Raises:
        ValueError: If VLMEvalKit has no such data set.
    """
    if benchmark.vlmevalkit_table is None:
        raise InputError(f"benchmark {benchmark.name!r} is not in VLMEvalKit")
    return benchmark.vlmevalkit_table.of(benchmark.records())


def write_vlmevalkit(
    answers: pd.DataFrame, benchmark: AnnotatedBenchmark, path: Path, *, partial: bool = False
) -> None:
    """Write one cell of a run as a prediction file.

    Args:
        answers: Rows of `answers/*.parquet` of one cell.
        benchmark: What the questions are from.
        path: `.tsv` or `.json`; VLMEvalKit expects `<model>_<dataset>`.
        partial: The run was asked a part of the questions; the file holds only those.

    Raises:
        ValueError: If the suffix is another one, or the answers are not those of one cell.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: VLMEvalKit files must end in {' or '.join(SUFFIXES)}")
    replies = replies_of(answers, benchmark, NO_REPLY, partial=partial)
    columns = table_of(benchmark).columns
    rows = [
        {**columns(record), "prediction": replies[record.question.id]}
        for record in benchmark.records()
        if record.question.id in replies
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=4, ensure_ascii=False), encoding="utf-8")
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t", quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(rows)


def read_vlmevalkit(
    path: Path, benchmark: AnnotatedBenchmark, *, partial: bool = False
) -> pd.DataFrame:
    """Read a prediction file as rows of `answers/*.parquet`; the cell is the file's stem.

    Rows are matched by `index`, and by question and video where another copy of the release counts
    differently.

    Args:
        path: `.tsv`, `.json` or `.xlsx` (the last needs openpyxl).
        benchmark: What the questions are from, with the protocol to read replies by.
        partial: Skip questions that the file does not hold, instead of counting them failed.

    Raises:
        InputError: If the file is damaged or no prediction file of this benchmark, or it is `.xlsx`
            and openpyxl is not installed.
    """
    rows = _read_spreadsheet(path) if path.suffix == ".xlsx" else read_rows(path)
    columns = table_of(benchmark).columns
    logged = []
    for number, row in enumerate(rows, start=1):
        where = f"{path}, row {number}"
        if "index" not in row or "prediction" not in row:
            raise InputError(
                f"{where}: no columns 'index' and 'prediction'; "
                "this is no prediction file of VLMEvalKit"
            )
        try:
            index = int(float(str(row["index"])))  # spreadsheets may have made a decimal of it
        except (ValueError, OverflowError) as error:
            written = str(row["index"])[:60]
            raise InputError(f"{where}: index must be a whole number, got {written!r}") from error
        key = _content(row)
        asks = f"{where}: index {index}, which asks {key[0]!r} about {key[1]!r},"
        # It writes every reply as text, failures as a sentence: an empty field is an empty reply.
        reply = row["prediction"]
        missing = is_missing(reply) and reply != ""
        logged.append(Logged(asks, index, key, None if missing else str(reply)))
    questions = ((r, r.index, _content(columns(r))) for r in benchmark.records())
    replies = match_replies(logged, questions, benchmark, by_row_alone=False)
    return answer_rows(replies, benchmark, path.stem, path, partial=partial)


def _content(columns: Mapping[str, Any]) -> tuple[str, str]:
    """Question and video as a table of this data set names them.

    The video is a file in most tables, whose suffix differs between copies, and an id in others.
    """
    video = str(columns.get("video"))
    path = Path(video)
    name = path.stem if path.suffix.lower() in _VIDEO_SUFFIXES else path.name
    return plain(columns.get("question")), name


def _read_spreadsheet(path: Path) -> list[dict[str, Any]]:
    """Read an `.xlsx` file."""
    try:
        frame = pd.read_excel(path, keep_default_na=False)
    except ImportError:
        raise InputError(
            f"{path} is a spreadsheet, which needs openpyxl; pip install openpyxl, "
            "or run VLMEvalKit with PRED_FORMAT=tsv"
        ) from None
    except (ValueError, KeyError, BadZipFile) as error:
        raise InputError(f"{path} is no spreadsheet of VLMEvalKit: {error}") from error
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
