"""`tango export` and `tango import`: whole runs to and from the evaluation harnesses' files."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow as pa

from jobs.config import overrides, recipe, sections
from jobs.harness import predictions
from jobs.report.compare import write_report
from jobs.results.answer_columns import AnswerColumns
from jobs.results.cell_summary import RunSummary
from jobs.results.facts import FAILURES_FILE, JOB_FILE, CellFacts, JobFacts
from jobs.results.summary import failed_rows, parts_of
from jobs.run.build import open_benchmark
from jobs.run.driver import FAILURE
from jobs.run.run_dirs import make_run_dir
from pipeline.rows import ANSWER
from pipeline.storage import Storage
from pipeline.storage.seal import write_sealed
from tango_core.benchmarks import benchmark_class
from tango_core.benchmarks.annotated import AnnotatedBenchmark
from tango_core.benchmarks.base import in_one_line
from tango_core.benchmarks.protocols.subtitles import SHOWN
from tango_core.errors import InputError, MissingFileError
from tango_core.local_files import parse_json, read_text

logger = logging.getLogger(__name__)

Harness = Literal["vlmevalkit", "lmms_eval"]

_COLUMNS = ("benchmark", "cell", "question_id", "status", "prompt_tokens", "text")
_TITLES = {"vlmevalkit": "VLMEvalKit", "lmms_eval": "lmms-eval"}


@dataclass(frozen=True)
class ImportSettings:
    """Information that a prediction file lacks.

    Attributes:
        benchmark: Benchmark of the questions, with the protocol by which replies are read.
        model: Model; `None` takes it from the name of the file (VLMEvalKit) or folder (lmms-eval).
        method: Method; `None` for the same name as the model. `full` makes the run the reference of
            other runs of the model.
        retention: Requested share of the visual tokens, in (0, 1]; `None` if unknown, which counts
            as 1.
        num_frames: Frames per clip; `None` if unknown.
        partial: Leave out questions that the files do not contain; otherwise they count as failed.
    """

    benchmark: sections.BenchmarkSection
    model: str | None = None
    method: str | None = None
    retention: float | None = None
    num_frames: int | None = None
    partial: bool = False


def export_run(run_dir: Path, harness: Harness, output: Path | None = None) -> list[Path]:
    """Write the answers of a run as result files of a harness.

    One folder per cell, named `<model>-<cell>`, which is the harness's name of the model. A run
    with `limit` or `shard` becomes a file with these questions only.

    Args:
        run_dir: A run of `tango evaluate` or `tango sweep`.
        harness: Harness whose format is written.
        output: Receives the folders; `None` for `export/<harness>` inside the run.

    Returns:
        The files.

    Raises:
        FileNotFoundError: If it is not a run, or the benchmark's annotations are missing.
        ValueError: If the harness has none of the run's benchmarks, or questions have no answer.
    """
    facts, job = JobFacts.load(run_dir), _job_of(run_dir)
    tables = [AnswerColumns(table).table for table in parts_of(run_dir).whole_clips()]
    parts = [one.select([n for n in _COLUMNS if n in one.column_names]) for one in tables]
    answers = pd.concat([one.to_pandas() for one in parts], ignore_index=True)
    folder = output or run_dir / "export" / harness
    date, partial = datetime.now(), job.limit is not None or job.shard is not None
    paths: list[Path] = []
    for section in job.all_benchmarks:
        benchmark = _opened(section, harness)
        if benchmark is None:
            logger.warning("%s: not in %s; skipped", section.name, _TITLES[harness])
            continue
        for cell in (cell for cell in facts.cells if cell.benchmark == section.name):
            rows = answers[(answers["benchmark"] == section.name) & (answers["cell"] == cell.name)]
            model = _slug(f"{facts.model}-{cell.name}")
            with in_one_line(section.name, type(benchmark)):
                if harness == "vlmevalkit":
                    paths.append(folder / model / f"{model}_{_dataset(benchmark)}.tsv")
                    predictions.write_vlmevalkit(rows, benchmark, paths[-1], partial=partial)
                else:
                    paths += predictions.write_lmms_eval(
                        rows, benchmark, folder / model, date, partial=partial
                    )
    if not paths:
        names = ", ".join(section.name for section in job.all_benchmarks)
        raise InputError(f"{run_dir}: {names} is not in {_TITLES[harness]}")
    return paths


def import_answers(
    paths: Sequence[Path], harness: Harness, about: ImportSettings, output: Path
) -> tuple[Path, RunSummary]:
    """Create a run from the answers of another program, for `tango report`.

    Replies are read again by our strict rules. The run has no tokens, latencies, cache or recipe,
    so it can be reported and compared, but not resumed or exported.

    Args:
        paths: One prediction file of VLMEvalKit, or the samples files of one lmms-eval run.
        harness: Harness that wrote them.
        about: Information that the files lack.
        output: Directory of all runs.

    Returns:
        The run directory and its summary.

    Raises:
        FileNotFoundError: If a file or the benchmark's annotations are missing.
        ValueError: If a file is not of this benchmark, or a setting is wrong.
    """
    rows, facts = read_files(paths, harness, about)
    run_dir = make_run_dir([about.benchmark.name, _slug(facts.run_id), "import"], output)
    assert isinstance(run_dir, Path)  # as `output` is
    table = pa.Table.from_pandas(rows, schema=ANSWER, preserve_index=False)
    storage = Storage.at(run_dir)
    write_sealed(table, storage.child("answers"), "part-00000.parquet", run_dir.name)
    failed = failed_rows(rows).reindex(columns=FAILURE.names)
    failures = pa.Table.from_pandas(failed, schema=FAILURE, preserve_index=False)
    write_sealed(failures, storage, FAILURES_FILE, run_dir.name)
    facts = replace(facts, run_id=run_dir.name)
    facts.save(run_dir)
    return run_dir, write_report(run_dir)


def read_files(
    paths: Sequence[Path], harness: Harness, about: ImportSettings, run_id: str | None = None
) -> tuple[pd.DataFrame, JobFacts]:
    """Read the answers of another program without writing anything.

    Args:
        paths: One prediction file of VLMEvalKit, or the samples files of one lmms-eval run.
        harness: Harness that wrote them.
        about: Information that the files lack.
        run_id: Name of the answers in the facts; `None` for the files' name of the model.

    Returns:
        Rows of `answers/*.parquet`, and facts with one cell.

    Raises:
        FileNotFoundError: If a file or the benchmark's annotations are missing.
        ValueError: If a file is not of this benchmark, or a setting is wrong.
    """
    benchmark = _opened(about.benchmark, harness)
    if benchmark is None:
        raise InputError(f"benchmark {about.benchmark.name!r} is not in {_TITLES[harness]}")
    for path in paths:
        if not path.is_file():
            raise MissingFileError(f"{path}: no such file; name the files {_TITLES[harness]} wrote")
    if harness == "vlmevalkit" and len(paths) != 1:
        raise InputError(
            f"VLMEvalKit writes one file per benchmark, got {len(paths)}; import them one by one"
        )
    about_run: Mapping[str, Any] = {}
    with in_one_line(benchmark.name, type(benchmark)):
        if harness == "lmms_eval":
            about_run = _results_beside(paths[0])
            rows = predictions.read_lmms_eval(paths, benchmark, partial=about.partial)
            given_name = paths[0].absolute().parent.name
        else:
            rows = predictions.read_vlmevalkit(paths[0], benchmark, partial=about.partial)
            given_name = paths[0].stem.removesuffix(f"_{_dataset(benchmark)}")
    method = about.method or given_name
    retention = {} if about.retention is None else {"retention": about.retention}
    cell = CellFacts(
        name=recipe.cell_name({"name": method, **retention}),
        benchmark=about.benchmark.name,
        method=method,
        retention=retention.get("retention", 1.0),
        protocol=about.benchmark.protocol + (SHOWN if about.benchmark.subtitles else ""),
    )
    program = f"{_TITLES[harness]} {about_run.get('lmms_eval_version', '')}".strip()
    rows = rows.assign(cell=cell.name, method=method, retention=cell.retention)
    facts = JobFacts(
        run_id=run_id or given_name,
        kind="import",
        model=about.model or given_name,
        cells=(cell,),
        num_frames=about.num_frames or _num_frames(about_run),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        note=f"Answers of {cell.name} were read from {paths[0].name} of {program}.",
    )
    return rows, facts


# Names of the number of frames in the model arguments of lmms-eval's models.
_FRAMES = ("max_frames_num", "max_num_frames", "num_frames", "nframes")


def _results_beside(samples: Path) -> Mapping[str, Any]:
    """lmms-eval's summary of the run that logged some samples; empty if it is not beside them."""
    path = samples.with_name(f"{samples.name.partition('_samples_')[0]}_results.json")
    content = parse_json(read_text(path), str(path)) if path.is_file() else {}
    return content if isinstance(content, dict) else {}


def _num_frames(about_run: Mapping[str, Any]) -> int | None:
    """Frames per clip, from the model arguments of a summary; `None` if they do not say."""
    given = (about_run.get("config") or {}).get("model_args") or {}
    if isinstance(given, str):
        given = dict(one.split("=", 1) for one in given.split(",") if "=" in one)
    stated = (str(given[name]) for name in _FRAMES if name in given)
    return next((int(one) for one in stated if one.isdecimal()), None)


def _job_of(run_dir: Path) -> recipe.Job:
    """The resolved recipe of a run."""
    path = run_dir / JOB_FILE
    if not path.is_file():
        raise MissingFileError(
            f"{run_dir} holds no {JOB_FILE}; only runs of `tango evaluate` and `tango sweep` "
            "can be exported"
        )
    return recipe.parse_job(overrides.read_recipe(path), str(path))


def _dataset(benchmark: AnnotatedBenchmark) -> str:
    """VLMEvalKit's name of a benchmark that it has."""
    assert benchmark.vlmevalkit_table is not None
    return benchmark.vlmevalkit_table.of(benchmark.records()).dataset


def _opened(section: sections.BenchmarkSection, harness: Harness) -> AnnotatedBenchmark | None:
    """The benchmark's annotations; `None` if the harness does not have it."""
    facts = "vlmevalkit_table" if harness == "vlmevalkit" else "lmms_eval_samples"
    if getattr(benchmark_class(section.name), facts, None) is None:
        return None
    benchmark, _ = open_benchmark(section, sections.DecodeSection().video_cache)
    assert isinstance(benchmark, AnnotatedBenchmark)
    return benchmark


def _slug(name: str) -> str:
    """A name with only characters that are safe in file names."""
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.") or "answers"
