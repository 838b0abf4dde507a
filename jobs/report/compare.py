"""Several runs side by side: one table, one page, paired tests across runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from jobs.report.notes import few_clips_notes, left_out_notes
from jobs.report.page import REPORT_FILE, render_html, write_report
from jobs.report.plots import save_plots
from jobs.report.tables.cells import labels
from jobs.report.tables.files import write_confusion, write_tables
from jobs.results.baselines import comparable, same_protocol, unpaired_notes, with_baselines
from jobs.results.facts import JOB_FILE, JobFacts
from jobs.results.measurements import normalize
from jobs.results.summary import (
    BASELINE,
    Summary,
    compare_rows,
    failed_rows,
    read_answers,
    save_summary,
    summarize,
)

_COUNTS = (
    "num_questions",
    "num_scored",
    "num_answered",
    "num_unparsed",
    "num_failed",
    "num_clips",
    "num_failed_clips",
)


@dataclass(frozen=True)
class LoadedRun:
    """One run with everything a comparison reads of it."""

    folder: Path
    facts: JobFacts
    answers: pd.DataFrame
    summary: Summary


def report_runs(
    run_dirs: Sequence[Path],
    output: Path | None = None,
    *,
    published: bool = False,
    baselines: Sequence[str] = (),
    confusion: str | None = None,
) -> Path:
    """Write tables (Markdown, CSV, LaTeX), plots and a page for one run or for several.

    Args:
        run_dirs: Finished runs.
        output: Where to write; `None` writes into the run itself, which must then be the only one.
        published: Set the numbers of the Tango paper beside ours in `paper_table.*`.
        baselines: What every cell is compared with besides `full`; see `with_baselines`.
        confusion: Group of the questions for `confusion.*`; `None` writes none.

    Returns:
        Path of the page.

    Raises:
        FileNotFoundError: If a directory is not a run or holds no answers.
        ValueError: If there is no run, or several and no place to write to, or a baseline or group
            that the runs do not have.
    """
    if not run_dirs or (len(run_dirs) > 1 and output is None):
        raise ValueError(
            f"report of {len(run_dirs)} runs: name at least one run, and a directory to write to "
            "with --output when there are several"
        )
    runs = [_load(folder) for folder in run_dirs]
    pairs = [(run, cell) for run in runs for cell in run.summary["cells"]]
    cells, reference = [_named(cell, run.facts) for run, cell in pairs], BASELINE
    if output is not None:
        cells, reference = _paired_cells(pairs)
    cells = with_baselines(cells, baselines, lambda one, other: _compare(pairs[one], pairs[other]))
    folder = output or run_dirs[0]
    folder.mkdir(parents=True, exist_ok=True)
    if confusion is not None:
        write_confusion(cells, [_rows(*pair) for pair in pairs], confusion, folder)
    notes = [
        *left_out_notes(run.facts for run in runs),
        *unpaired_notes(cells),
        *few_clips_notes(cells),
    ]
    write_tables(cells, folder, published=published, notes=notes)
    if output is None:
        save_summary(runs[0].summary, folder)
        return write_report(folder, {**runs[0].summary, "cells": cells})
    return _write_comparison(runs, cells, output, reference, notes)


def _write_comparison(
    runs: Sequence[LoadedRun],
    cells: Sequence[Summary],
    output: Path,
    reference: str,
    notes: Sequence[str],
) -> Path:
    """Write summary, plots and page of all cells together; returns the page's path."""
    facts = _facts(runs)
    summary = {**_totals(runs, facts), "cells": list(cells)}
    save_summary(summary, output)
    save_plots(cells, output / "plots")
    failures = pd.concat([failed_rows(run.answers) for run in runs], ignore_index=True)
    jobs = {
        f"{run.facts.run_id}/{JOB_FILE}": (run.folder / JOB_FILE).read_text()
        for run in runs
        if (run.folder / JOB_FILE).is_file()
    }
    page = render_html(
        summary, facts, failures=failures, jobs=jobs, baseline=reference, notes=notes
    )
    (output / REPORT_FILE).write_text(page, encoding="utf-8")
    return output / REPORT_FILE


def _load(folder: Path) -> LoadedRun:
    """Read and summarise one run."""
    facts = JobFacts.load(folder)
    answers = normalize(read_answers(folder))
    return LoadedRun(folder, facts, answers, summarize(answers, facts))


def _paired_cells(pairs: Sequence[tuple[LoadedRun, Summary]]) -> tuple[list[Summary], str]:
    """All cells, each with its comparison, and what most of them are compared with.

    A cell is compared with `full` of the same benchmark, model and frames, of its own run or else
    of the first run that has it, always under the same protocol; where nobody ran `full`, with the
    first cell of the first run that has the benchmark under it. Questions that only one of the two
    was asked do not count.
    """
    cells = [_named(cell, run.facts) for run, cell in pairs]
    names = set()
    for index, (run, cell) in enumerate(pairs):
        if cell["versus_full"] is not None or cell["method"] == BASELINE:
            continue
        other = _baseline_of(index, cells)
        if other is None:
            continue
        cells[index]["versus_full"] = _compare((run, cell), pairs[other])
        reference = cells[other]
        same_model = reference["model"] == run.facts.model
        usual = reference["method"] == BASELINE and same_model
        names.add(BASELINE if usual else labels(cells)[other])
    return cells, " or ".join(sorted(names)) or BASELINE


def _named(cell: Summary, facts: JobFacts) -> Summary:
    """A cell that says which run and model it is of."""
    shape = facts.decoder and (facts.decoder.num_layers, facts.decoder.hidden_size)
    own = {"run_id": facts.run_id, "model": facts.model, "num_frames": facts.num_frames}
    return {**cell, **own, "decoder_shape": shape}


def _baseline_of(index: int, cells: Sequence[dict[str, Any]]) -> int | None:
    """Which cell a cell is compared with; `None` if it would be itself."""
    own = cells[index]
    alike = sorted(enumerate(cells), key=lambda entry: entry[1]["protocol"] != own["protocol"])
    for other, cell in alike:
        if cell["method"] == BASELINE and comparable(cell, own):
            return other
    first = next(
        other
        for other, cell in enumerate(cells)
        if cell["benchmark"] == own["benchmark"] and same_protocol(cell, own)
    )
    return first if first != index else None


def _compare(pair: tuple[LoadedRun, Summary], other: tuple[LoadedRun, Summary]) -> Summary | None:
    """The paired comparison of two cells."""
    return compare_rows(_rows(*pair), _rows(*other), _shared_mode(pair[0], other[0]))


def _rows(run: LoadedRun, cell: Summary) -> pd.DataFrame:
    """Answers of one cell."""
    answers: pd.DataFrame = run.answers
    own = (answers["cell"] == str(cell["cell"])) & (answers["benchmark"] == str(cell["benchmark"]))
    return answers.loc[own]


def _shared_mode(run: LoadedRun, other: LoadedRun) -> str:
    """Latencies may be compared only if both runs measured in profile mode on equal devices."""
    alike = (run.facts.mode, run.facts.device) == (other.facts.mode, other.facts.device)
    return run.facts.mode if alike else "throughput"


def _facts(runs: Sequence[LoadedRun]) -> JobFacts:
    """What can be said of all runs together."""
    first = runs[0].facts
    everyone = [run.facts for run in runs]
    return replace(
        first,
        run_id=f"comparison of {len(runs)} runs",
        kind="comparison",
        model=", ".join(dict.fromkeys(facts.model for facts in everyone)),
        cells=tuple(cell for facts in everyone for cell in facts.cells),
        mode=first.mode if len({facts.mode for facts in everyone}) == 1 else "throughput",
        wall_s=None,
        started_at="",
        note=" ".join(dict.fromkeys(facts.note for facts in everyone if facts.note)),
        git_commit=", ".join(dict.fromkeys(facts.git_commit for facts in everyone)),
        left_out=tuple(dict.fromkeys(entry for facts in everyone for entry in facts.left_out)),
        caches=tuple(dict.fromkeys(cache for facts in everyone for cache in facts.caches)),
        device=", ".join(dict.fromkeys(facts.device for facts in everyone)),
        peak_gib=None,
    )


def _totals(runs: Sequence[LoadedRun], facts: JobFacts) -> Summary:
    """Sums over the runs."""
    return {
        "run_id": facts.run_id,
        "kind": facts.kind,
        "runs": [run.facts.run_id for run in runs],
        "note": facts.note,
        "left_out": [asdict(entry) for entry in facts.left_out],
        **{name: sum(run.summary[name] for run in runs) for name in _COUNTS},
        "cache": {
            name: sum(run.summary["cache"][name] for run in runs) for name in ("hits", "misses")
        },
        "throughput": dict.fromkeys(
            ("wall_s", "clips_per_s", "questions_per_s", "decode_tokens_per_s")
        ),
        "latency_ms": {},
    }
