"""Load the two results to compare: their settings and answers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from jobs.config.overrides import read_recipe
from jobs.config.sections import BenchmarkSection
from jobs.harness.exchange import Harness, ImportSettings, read_files
from jobs.results.answer_columns import FAILED_BIT, AnswerColumns, metric_of, scores_of
from jobs.results.facts import FACTS_FILE, JOB_FILE, CellFacts, JobFacts
from jobs.results.summary import parts_of
from pipeline.rows import ANSWER
from pipeline.storage.copies import local_copy
from pipeline.storage.urls import place
from tango_core.errors import InputError, MissingFileError
from tango_core.metrics import ACCURACY, Metric

KEY = ["video_id", "question_id"]

_TEXTS = [
    *("video_id", "question_id", "error", "text", "answer_text", "choice_text"),
    *("prompt_digest", "frames_digest", "kept_digest"),
]
_NUMBERS = [
    *("choice", "answer", "harness_score", "tokens_total", "tokens_kept"),
    *("tokens_with_newlines", "prompt_tokens"),
]


def table_answers(table: pa.Table, metric: Metric = ACCURACY) -> pd.DataFrame:
    """Convert rows of `answers/*.parquet` of one cell to the columns that explanations need.

    Args:
        table: The rows.
        metric: Metric with a value per question.

    Returns:
        Strings and digests (missing if not recorded), numbers (NaN if not recorded), `score` in
        [0, 1] (NaN if the right answer is unknown), and `failed`, which marks questions that were
        never answered and have the score 0.
    """
    columns = AnswerColumns(table)
    rows: pd.DataFrame = columns.table.to_pandas().reindex(columns=[*_TEXTS, *_NUMBERS])
    rows = rows.astype({**dict.fromkeys(_TEXTS, object), **dict.fromkeys(_NUMBERS, float)})
    return rows.assign(score=scores_of(columns, metric), failed=(columns.bits & FAILED_BIT) > 0)


@dataclass(frozen=True)
class Side:
    """One cell of a run or of a harness file, to be compared.

    Attributes:
        facts: Facts of the run.
        cell: The cell.
        job: The resolved recipe; empty if there is none.
        answers: One row per question, see `table_answers`.
    """

    facts: JobFacts
    cell: CellFacts
    job: Mapping[str, Any]
    answers: pd.DataFrame

    @property
    def is_import(self) -> bool:
        """Whether the answers were imported from another program, so its inputs are unknown."""
        return self.facts.kind == "import"


@dataclass(frozen=True)
class Source:
    """A result from which cells are chosen.

    Attributes:
        facts: Facts of the run.
        job: The resolved recipe; empty if there is none.
        folder: Run directory; `None` for a harness file.
        rows: Rows of `answers/*.parquet` of a harness file; `None` for a run.
    """

    facts: JobFacts
    job: Mapping[str, Any]
    folder: Path | None = None
    rows: Any = None

    def sides(self, cells: Sequence[CellFacts]) -> list[Side]:
        """Load the answers of several cells in one pass.

        Raises:
            DamagedFileError: If a file is damaged.
            FileNotFoundError: If there are no answers.
            InputError: If a cell has no answer with a score.
        """
        parts: list[list[pd.DataFrame]] = [[] for _ in cells]
        for table in parts_of(self.folder).whole_clips() if self.folder else [self.rows]:
            for cell, frames in zip(cells, parts, strict=True):
                own = (pc.field("benchmark") == cell.benchmark) & (pc.field("cell") == cell.name)
                frames.append(table_answers(table.filter(own), metric_of(cell.benchmark)))
        found = []
        for cell, frames in zip(cells, parts, strict=True):
            rows = pd.concat([one for one in frames if len(one)] or frames[:1], ignore_index=True)
            if not rows["score"].notna().any():
                raise InputError(
                    f"{self.facts.run_id}: {cell.name!r} on {cell.benchmark} has no answer with a "
                    "score, so there is no difference to explain; choose another cell with --cell"
                )
            found.append(Side(self.facts, cell, self.job, rows))
        return found


def recipe_in(folder: Path) -> Mapping[str, Any]:
    """The resolved recipe of a run; empty if it has none."""
    path = folder / JOB_FILE
    return read_recipe(path) if path.is_file() else {}


def chosen_cells(
    first: Source, second: Source, cell: str | None = None, other: str | None = None
) -> list[tuple[CellFacts, CellFacts]]:
    """Choose the pairs of cells to compare.

    Args:
        first: Result A.
        second: Result B.
        cell: Name of the cell in both results, or only in A if `other` is given; `None` for all
            cells with equal names. If both results have only one cell, these are the pair.
        other: Name of the cell in B.

    Raises:
        InputError: If no pair matches; the message lists the available cells.
    """
    ours, theirs = first.facts.cells, second.facts.cells
    named = [one for one in ours if (cell or other) in (None, one.name)]
    named_other = [one for one in theirs if (other or cell) in (None, one.name)]
    if other is None:  # a harness file has one cell, under any name
        named = named or list(ours if len(ours) == 1 else [])
        named_other = named_other or list(theirs if len(theirs) == 1 else [])
    any_name = cell or other or len(named) == len(named_other) == 1
    pairs = [
        (one, two)
        for one in named
        for two in named_other
        if one.benchmark == two.benchmark and (any_name or one.name == two.name)
    ]
    if pairs:
        return pairs
    what = "no such pair of cells" if cell or other else "no cell of A and B has the same name"
    has_a, has_b = (
        ", ".join(f"{one.name!r} on {one.benchmark}" for one in cells) for cells in (ours, theirs)
    )
    raise InputError(f"{what}; choose with --cell and --other-cell: A has {has_a}; B has {has_b}")


@contextmanager
def opened(text: str) -> Iterator[Path]:
    """Local path of a result; one in an object store is downloaded for the block.

    Raises:
        MissingFileError: If the result does not exist.
    """
    where = place(text)
    if isinstance(where, Path) and not where.exists():
        raise MissingFileError(
            f"{text}: no such run or file; name a run directory, its URL, a file of VLMEvalKit "
            "(.tsv, .json, .xlsx) or lmms-eval (.jsonl), or `published`"
        )
    unused = ("plots/", "tracking/", "report")
    with local_copy(where, lambda name: not name.startswith(unused)) as folder:
        yield folder


def harness_files(path: Path) -> list[Path]:
    """Files of a harness's result: a file, or a folder with lmms-eval's samples; else empty."""
    if path.is_file() or (path / FACTS_FILE).is_file():
        return [path] if path.is_file() else []
    return sorted(path.glob("*_samples_*.jsonl"))


def source_of(path: Path, benchmark: Mapping[str, str | None], results: Collection[Path]) -> Source:
    """Load one result.

    Args:
        path: Run directory, harness file, or folder with lmms-eval's samples.
        benchmark: `name`, `root` and `split` of a harness file's benchmark; `None` to take them
            from the recipe of the other result.
        results: Both results.

    Raises:
        FileNotFoundError: If it is not a finished run, or a file or its annotations are missing.
        InputError: If a file is not a result file of a harness for this benchmark.
    """
    files = harness_files(path)
    if not files:
        return Source(JobFacts.load(path), recipe_in(path), path)
    suffix = files[0].suffix.lower()
    if suffix not in (".tsv", ".xlsx", ".json", ".jsonl"):
        raise InputError(
            f"{path}: not a result file of a harness; VLMEvalKit writes .tsv, .json or .xlsx, "
            "lmms-eval .jsonl"
        )
    harness: Harness = "lmms_eval" if suffix == ".jsonl" else "vlmevalkit"
    sections = [
        one
        for recipe in (recipe_in(run) for run in results if not harness_files(run))
        for one in (recipe.get("benchmark"), *(recipe.get("benchmarks") or []))
        if one and benchmark["name"] in (None, one.get("name"))
    ]
    found = {**(sections[0] if len(sections) == 1 else {})}
    found |= {name: value for name, value in benchmark.items() if value}
    if not found.get("name"):
        raise InputError(
            f"{path}: the benchmark is unknown; set it with --benchmark, and the directory of its "
            "files with --root"
        )
    section = BenchmarkSection(
        found["name"], found.get("root"), found.get("split") or "test", protocol=harness
    )
    settings = ImportSettings(section, partial=True)
    rows, facts = read_files(files, harness, settings, run_id=path.name)
    table = pa.Table.from_pandas(rows, schema=ANSWER, preserve_index=False)
    return Source(facts, {}, rows=table)
