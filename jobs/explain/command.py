"""`tango explain`: load two results, and explain the score difference of each pair of cells."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from jobs.config.sections import BenchmarkSection
from jobs.explain.explanation import (
    PUBLISHED,
    Explanation,
    Side,
    against_published,
    explained,
    rounded_points,
)
from jobs.harness.exchange import Harness, ImportSettings, read_files
from jobs.report.formatting import DASH, Table, percent, shortened
from jobs.results.answer_columns import FAILED_BIT, AnswerColumns, metric_of, scores_of
from jobs.results.facts import FACTS_FILE, CellFacts, JobFacts, recipe_of
from jobs.results.published import caveats, published_scores
from jobs.results.summary import parts_of, reduce_runs, summarize_reduced
from pipeline.rows import ANSWER
from pipeline.storage.copies import local_copy
from pipeline.storage.urls import place
from tango_core.errors import InputError, MissingFileError
from tango_core.metrics import ACCURACY, Metric

WIDTH = 80
_MINUS = "\N{MINUS SIGN}"
_REPLY_SHOWN = 24
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
    rows: pd.DataFrame = columns.table.select([*_TEXTS, *_NUMBERS]).to_pandas()
    rows = rows.astype({**dict.fromkeys(_TEXTS, object), **dict.fromkeys(_NUMBERS, float)})
    return rows.assign(score=scores_of(columns, metric), failed=(columns.bits & FAILED_BIT) > 0)


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
        return Source(JobFacts.load(path), recipe_of(path), path)
    suffix = files[0].suffix.lower()
    if suffix not in (".tsv", ".xlsx", ".json", ".jsonl"):
        raise InputError(
            f"{path}: not a result file of a harness; VLMEvalKit writes .tsv, .json or .xlsx, "
            "lmms-eval .jsonl"
        )
    harness: Harness = "lmms_eval" if suffix == ".jsonl" else "vlmevalkit"
    sections = [
        one
        for recipe in (recipe_of(run) for run in results if not harness_files(run))
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


def render(explanation: Explanation) -> str:
    """Format an explanation: causes, missing records, differing settings, notes and examples."""
    lines = []
    for letter, result in (("A", explanation.first), ("B", explanation.second)):
        questions = "" if result.questions is None else f", {result.questions:,} questions"
        score = percent(float(result.score), 2)
        lines.append(f"{letter}  {shortened(result.name, WIDTH - 3)}")
        lines.append(f"   {shortened(result.cell, 40)}: {score} %{questions}")
    lines.append(
        f"both  {explanation.common:,} questions of {explanation.benchmark}, {explanation.metric}"
    )
    lines += ["", *_table(explanation)]
    if explanation.not_recorded:
        lines += ["", "not recorded:", *_bullets(explanation.not_recorded)]
    if explanation.settings:
        lines += ["", "settings that differ (A, B):"]
        lines += _bullets(f"{one.key}: {one.first}, {one.second}" for one in explanation.settings)
    for note in explanation.notes:
        lines += ["", *textwrap.wrap(note, WIDTH)]
    for share in explanation.shares:
        if share.examples:
            lines += ["", f"{share.cause} (first {len(share.examples)} of {share.questions:,}):"]
            lines += [line for example in share.examples for line in _example(example)]
    return "\n".join(lines)


def _table(explanation: Explanation) -> list[str]:
    """Table of the causes that have questions, with their points and the sum."""
    points = rounded_points([share.points for share in explanation.shares])
    rows = [
        [share.cause, _points(value), *map(str, (share.questions, share.better, share.worse))]
        for share, value in zip(explanation.shares, points, strict=True)
        if share.questions or share.points
    ]
    rows.append(["together", _points(sum(points)), "", "", ""])
    header = ["why B - A", "points", "questions", "better", "worse"]
    lines = Table(header, rows).plain(max_width=WIDTH, rule=True)
    return [line.rstrip() for line in [*lines[:-1], lines[1], lines[-1]]]


def _example(example: Mapping[str, Any]) -> Iterator[str]:
    """Two lines about a question: its name and scores, then replies and what differs."""
    known = [one for one in (example["score_a"], example["score_b"]) if one is not None]
    scores = " -> ".join(f"{one:.3g}" for one in known)
    yield f"  {shortened(example['question_id'], WIDTH - 4 - len(scores))}  {scores}"
    if len(known) < 2:
        return
    shown = (" ".join(example[name].split()) for name in ("reply_a", "reply_b"))
    replies = " | ".join(f'"{shortened(reply, _REPLY_SHOWN)}"' for reply in shown)
    yield from textwrap.wrap(
        f"{replies}  {example['detail']}".rstrip(),
        WIDTH,
        initial_indent="    ",
        subsequent_indent="      ",
    )


def _bullets(sentences: Iterable[str]) -> Iterator[str]:
    """Indented and wrapped lines."""
    for sentence in sentences:
        yield from textwrap.wrap(sentence, WIDTH, initial_indent="  ", subsequent_indent="    ")


def _points(hundredths: int) -> str:
    """Format hundredths of a point with a sign."""
    return f"{hundredths / 100:+.2f}".replace("-", _MINUS)


def overview(explanations: Sequence[Explanation]) -> str:
    """Format one line per pair of cells with the difference and its largest cause."""
    rows = []
    for one in explanations:
        cells = dict.fromkeys((one.first.cell, one.second.cell))
        scores = [percent(float(result.score), 2) for result in (one.first, one.second)]
        largest = max(one.shares, key=lambda share: abs(share.points))
        points = _points(round(10_000 * one.difference))
        rows.append([" | ".join(cells), *scores, points, largest.cause if largest.points else DASH])
    header = ["cell", "A %", "B %", "B - A", "largest cause"]
    lines = Table(header, rows).plain(max_width=WIDTH, rule=True)
    return "\n".join([*lines, "", "use --cell NAME to see the causes and examples of one cell"])


def _is_needed(name: str) -> bool:
    """Whether a file of a run in a store is read."""
    return not name.startswith(("plots/", "tracking/", "report"))


def explanations(
    first: str,
    second: str,
    *,
    cell: str | None = None,
    other_cell: str | None = None,
    benchmark: str | None = None,
    root: str | None = None,
    split: str | None = None,
    examples: int = 10,
) -> list[Explanation]:
    """Explain all pairs of cells of two results.

    Args:
        first: Result A: run directory, URL, harness file, or `published`.
        second: Result B, in the same forms.
        cell: Cell of both results, or only of A if `other_cell` is given.
        other_cell: Cell of B.
        benchmark: Benchmark of a harness file.
        root: Directory of that benchmark's files.
        split: Split of that benchmark.
        examples: Maximum number of examples per cause.

    Raises:
        FileNotFoundError: If there is no such result.
        InputError: If the two results cannot be compared.
    """
    texts = [first, second]
    if texts.count(PUBLISHED) == 2:
        raise InputError(f"{PUBLISHED} {PUBLISHED}: one of the two must be a run or a file")
    with ExitStack() as copies:
        paths = []
        for text in (text for text in texts if text != PUBLISHED):
            where = place(text)
            if isinstance(where, Path) and not where.exists():
                raise MissingFileError(
                    f"{text}: no such run or file; name a run directory, its URL, a file of "
                    "VLMEvalKit (.tsv, .json, .xlsx) or lmms-eval (.jsonl), or `published`"
                )
            paths.append(copies.enter_context(local_copy(where, _is_needed)))
        named = {"name": benchmark, "root": root, "split": split}
        sources = [source_of(path, named, paths) for path in paths]
        if len(sources) == 1:
            wanted = cell or other_cell
            return _against_published(sources[0], wanted, first == PUBLISHED, examples)
        pairs = chosen_cells(sources[0], sources[1], cell, other_cell)
        cells = zip(*pairs, strict=True)
        sides = [source.sides(own) for source, own in zip(sources, cells, strict=True)]
        return [explained(a, b, examples) for a, b in zip(*sides, strict=True)]


def _against_published(
    source: Source, wanted: str | None, published_first: bool, examples: int
) -> list[Explanation]:
    """Explain a run, or one of its cells, against published scores."""
    cells = [cell for cell in source.facts.cells if wanted in (None, cell.name)]
    if not cells:
        names = ", ".join(repr(cell.name) for cell in source.facts.cells)
        raise InputError(f"--cell {wanted!r}: {source.facts.run_id} has {names}")
    if source.folder is None:
        raise InputError(
            f"{source.facts.run_id}: a harness file does not record method and frames; convert it "
            f"to a run with `tango import`, and compare the run with {PUBLISHED}"
        )
    summary = summarize_reduced(reduce_runs([source.folder], source.facts.mode), source.facts)
    summaries = {(one.benchmark, one.name): one for one in summary.cells}
    found = []
    for side in source.sides(cells):
        own = summaries[side.cell.benchmark, side.cell.name]
        printed = published_scores(own).get(side.cell.benchmark, {}).get("overall")
        if printed is not None:
            found.append(against_published(side, own, printed, published_first, examples))
    if not found:
        own = summaries[cells[0].benchmark, cells[0].name]
        reasons = " ".join(caveats([own])) or "no row has its method, retention and options."
        raise InputError(
            f"{PUBLISHED}: nothing is printed for {own.name!r} of {own.model} on {own.benchmark}: "
            f"{reasons}"
        )
    return found
