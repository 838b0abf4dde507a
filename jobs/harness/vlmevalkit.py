"""Write and read VLMEvalKit's prediction files.

A prediction file is the data set's table with a column `prediction`. VLMEvalKit names it
`<model>_<dataset>` and writes `.xlsx` unless PRED_FORMAT is `tsv` or `json` (`get_pred_file_format`
in `vlmeval/smp/file.py`); we write the latter two, so that no spreadsheet package is needed. Put a
file into its work directory under that name and `run.py --mode eval` rates it.

Columns: `prepare_dataset` of `vlmeval/dataset/{videomme,mvbench,longvideobench,mlvu}.py`. Lists are
written as Python text, which it reads with `eval`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import pandas as pd

from jobs.harness.predictions import answer_rows, plain, replies_of
from tango_core.benchmarks.annotations.benchmark import AnnotatedBenchmark, Record
from tango_core.benchmarks.annotations.tables import is_missing, read_rows
from tango_core.benchmarks.mlvu import TASKS as MLVU_TASKS
from tango_core.benchmarks.mvbench_tasks import TASK_OF
from tango_core.benchmarks.scoring.multiple_choice import letter_of, lettered
from tango_core.benchmarks.videomme import GROUPS

Columns = dict[str, Any]

SUFFIXES = (".tsv", ".json")


def dataset_name(benchmark: AnnotatedBenchmark) -> str:
    """Return VLMEvalKit's name of the data set, as it stands in file names."""
    if benchmark.name == "mvbench":
        is_cut = all(record.clip is None for record in benchmark.records())
        return "MVBench_MP4" if is_cut else "MVBench"
    names = {"videomme": "Video-MME", "longvideobench": "LongVideoBench", "mlvu": "MLVU_MCQ"}
    return names[benchmark.name]


def write_vlmevalkit(
    answers: pd.DataFrame, benchmark: AnnotatedBenchmark, path: Path, *, partial: bool = False
) -> None:
    """Write one cell of a run as a prediction file.

    Args:
        answers: Rows of `answers/*.parquet` of one cell.
        benchmark: What the questions are from.
        path: `.tsv` or `.json`; VLMEvalKit expects `<model>_<dataset_name>`.
        partial: The run was asked a part of the questions; the file holds only those.

    Raises:
        ValueError: If the suffix is another one, or the answers are not those of one cell.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: VLMEvalKit files must end in {' or '.join(SUFFIXES)}")
    replies = replies_of(answers, benchmark, partial=partial)
    describe = _COLUMNS[benchmark.name]
    is_cut = dataset_name(benchmark) == "MVBench_MP4"
    rows = [
        {
            **{k: v for k, v in describe(r).items() if not (is_cut and k in _BOUND_COLUMNS)},
            "prediction": replies[r.question.id],
        }
        for r in benchmark.records()
        if r.question.id in replies
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
        partial: Leave questions out that the file does not hold, instead of counting them failed.

    Raises:
        ValueError: If the file is damaged or no prediction file of this benchmark.
        ModuleNotFoundError: If it is `.xlsx` and openpyxl is not installed.
    """
    rows = _read_spreadsheet(path) if path.suffix == ".xlsx" else read_rows(path)
    by_index = {record.index: record for record in benchmark.records()}
    by_content: dict[tuple[str, str], list[Record]] = {}
    for record in benchmark.records():
        by_content.setdefault(_content(record), []).append(record)
    replies: dict[str, str | None] = {}
    for number, row in enumerate(rows, start=1):
        if "index" not in row or "prediction" not in row:
            raise ValueError(
                f"{path}, row {number}: no columns 'index' and 'prediction'; "
                "this is no prediction file of VLMEvalKit"
            )
        key = plain(row.get("question")), Path(str(row.get("video"))).stem
        found = by_index.get(int(float(row["index"])))
        if found is None or _content(found) != key:
            same = by_content.get(key, [])
            found = same[0] if len(same) == 1 else None
            if found is None:
                raise ValueError(
                    f"{path}, row {number}: index {row['index']} asks {key[0]!r} about {key[1]!r}, "
                    f"which is not a question of {benchmark.name} under {benchmark.root}"
                )
        # It writes every reply as text and failures as a sentence: an empty cell is an empty reply.
        reply = row["prediction"]
        missing = is_missing(reply) and reply != ""
        replies[found.question.id] = None if missing else str(reply)
    return answer_rows(replies, benchmark, path.stem, path, partial=partial)


def _content(record: Record) -> tuple[str, str]:
    """Question and stem of the video."""
    return plain(record.question.text), Path(record.path).stem


def _read_spreadsheet(path: Path) -> list[dict[str, Any]]:
    """Read an `.xlsx` file."""
    try:
        frame = pd.read_excel(path, keep_default_na=False)
    except ImportError:
        raise ModuleNotFoundError(
            f"{path} is a spreadsheet, which needs openpyxl; pip install openpyxl, "
            "or run VLMEvalKit with PRED_FORMAT=tsv"
        ) from None
    except (ValueError, KeyError, BadZipFile) as error:
        raise ValueError(f"{path} is no spreadsheet of VLMEvalKit: {error}") from error
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def _videomme(record: Record) -> Columns:
    """Columns of `Video-MME.tsv`."""
    question, video = record.question, record.video_id
    assert question.answer is not None
    groups = question.groups
    return {
        "index": record.index,
        "video": video,
        "video_path": f"./video/{video}.mp4",
        "duration": groups["duration"],
        "domain": groups["domain"],
        "candidates": str(lettered(question.choices)),
        **{name: groups[name] for name in GROUPS[2:]},
        "subtitle_path": f"./subtitle/{video}.srt",
        "question": question.text,
        "answer": letter_of(question.answer),
    }


_BOUND_COLUMNS = ("data_type", "bound", "start", "end")


def _mvbench(record: Record) -> Columns:
    """Columns of `MVBench.tsv`."""
    task = TASK_OF[record.question.groups["task"]]
    start, end = record.clip if record.clip is not None else ("", "")
    is_cut = task.bounded and record.clip is None
    return {
        "task_type": task.name,
        "prefix": record.row.get("prefix") or (task.cut if is_cut else f"video/{task.source}/"),
        "data_type": "frame" if task.frames else "video",
        "bound": task.bounded,
        "start": start,
        "end": end,
        **_question(record),
    }


def _mlvu(record: Record) -> Columns:
    """Columns of `MLVU_MCQ.tsv`."""
    task = record.question.groups["task"]
    return {
        "task_type": task,
        "prefix": f"./MLVU/video/{MLVU_TASKS[task]}",
        "duration": record.row.get("duration", ""),
        **_question(record),
    }


def _question(record: Record) -> Columns:
    """Columns that MVBench and MLVU share; the answer is a text."""
    question = record.question
    known = question.answer is not None
    return {
        "video": record.row.get("video") or record.row.get("video_name"),
        "question": question.text,
        "answer": question.choices[question.answer or 0] if known else record.row["answer"],
        "candidates": str(list(question.choices)),
        "index": record.index,
    }


def _longvideobench(record: Record) -> Columns:
    """Columns of `LongVideoBench.tsv`: those of `lvb_val.json`, and three more."""
    options = {f"option{number}" for number in range(5)}
    return {
        **{k: v for k, v in record.row.items() if k not in options},
        "candidates": str(list(record.question.choices)),
        "correct_choice": record.question.answer,
        "duration_group": int(record.question.groups["duration"]),
        "index": record.index,
        "video": record.row.get("video_id", record.video_id),
        "video_path": f"./videos/{Path(record.path).name}",
    }


_COLUMNS: Mapping[str, Callable[[Record], Columns]] = {
    "videomme": _videomme,
    "mvbench": _mvbench,
    "longvideobench": _longvideobench,
    "mlvu": _mlvu,
}
