"""`tango export --format hub`: a data set repository of a run, and scores for models."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from huggingface_hub import (
    DatasetCardData,
    EvalResultEntry,
    constants,
    eval_result_entries_to_yaml,
)

from jobs.config.overrides import read_recipe
from jobs.config.recipe import Job, parse_job
from jobs.report.formatting import Table, markdown_notes, percent
from jobs.report.tables.cells import cells_table
from jobs.results.cell_summary import CellSummary, RunSummary, parse_summary
from jobs.results.facts import JOB_FILE, JobFacts
from jobs.results.quantities import unread_notes
from jobs.results.summary import SUMMARY_FILE
from pipeline.redaction import redacted_inside
from tango_core.benchmarks import facts_of
from tango_core.errors import InputError, MissingFileError
from tango_core.hub_errors import page_of
from tango_core.models import MODELS

logger = logging.getLogger(__name__)

# Folders of an absolute path that is no part of a URL; they are left out of texts.
_FOLDERS = re.compile(r"(?<![\w./:])/(?:[^\s/:'\"]+/)+")
_TAGS = ["evaluation", "video", "video-token-pruning", "tango-video"]


def export_to_hub(run_dir: Path, output: Path | None, repository: str | None) -> list[Path]:
    """Write `dataset/`, a data set repository, and `model/`, files for the model's repository.

    `dataset/` holds a card with the results and their provenance, the answers, the summary and the
    recipe; errors name files without their folders. `model/.eval_results/` holds a file per cell of
    every public benchmark that was answered completely by a checkpoint of the hub.

    Args:
        run_dir: A run of `tango evaluate` or `tango sweep`.
        output: Directory to write to; `None` for `export/hub` inside the run.
        repository: Id that `dataset/` will have on the hub, which the scores name as their source.

    Raises:
        FileNotFoundError: If it is not a run.
        InputError: If the id is invalid, or the run has no recipe.
    """
    if repository is not None and not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise InputError(f"--repository {repository!r} is not an id of the form owner/name")
    facts = JobFacts.load(run_dir)
    if not (run_dir / SUMMARY_FILE).is_file():
        raise MissingFileError(f"{run_dir} has no {SUMMARY_FILE}; name a run of `tango sweep`")
    recipe = read_recipe(run_dir / JOB_FILE)
    job = parse_job(recipe, str(run_dir / JOB_FILE))
    summary = parse_summary((run_dir / SUMMARY_FILE).read_bytes(), run_dir)
    folder = output or run_dir / "export" / "hub"
    dataset, results = folder / "dataset", folder / "model" / constants.EVAL_RESULTS_FOLDER
    (dataset / "answers").mkdir(parents=True, exist_ok=True)
    for part in sorted((run_dir / "answers").glob("*.parquet")):
        _write_answers(part, dataset / "answers" / part.name)
    for section in (recipe.get("benchmark") or {}, *recipe.get("benchmarks", ())):
        section.pop("root", None)
    for key in ("path", "saliency_from", "sinks"):
        named = Path(recipe["model"].get(key) or "")
        if named.is_absolute() or (named.name and named.exists()):
            del recipe["model"][key]
    texts = {
        dataset / "README.md": _card(facts, summary, job),
        dataset / "recipe.yaml": _yaml(recipe),
        dataset / SUMMARY_FILE: _FOLDERS.sub("", (run_dir / SUMMARY_FILE).read_text("utf-8")),
    }
    for cell in summary.cells:
        if entry := _entry(cell, job, facts, repository):
            name = cell.benchmark if cell.is_baseline else f"{cell.benchmark}_{cell.name}"
            path = results / f"{re.sub(r'[^A-Za-z0-9.]+', '_', name)}.yaml"
            texts[path] = _yaml(eval_result_entries_to_yaml([entry]))
    if len(texts) == 3:
        logger.info(
            "no scores for a model repository: these need a whole public benchmark and a "
            "checkpoint of the hub"
        )
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(texts)


def _write_answers(part: Path, copy: Path) -> None:
    """Copy a part of the answers without folders in its errors, nor the checksum of the part."""
    table = pq.read_table(part)
    at, field = table.column_names.index("error"), table.schema.field("error")
    errors = [error and _FOLDERS.sub("", error) for error in table["error"].to_pylist()]
    table = table.set_column(at, field, pa.array(errors, field.type))
    pq.write_table(table.replace_schema_metadata(), copy)


def _yaml(content: object) -> str:
    return yaml.safe_dump(redacted_inside(content), sort_keys=False, allow_unicode=True)


def _card(facts: JobFacts, summary: RunSummary, job: Job) -> str:
    """The card: metadata, table of the cells, and where the numbers are from."""
    names = list(dict.fromkeys(cell.benchmark for cell in facts.cells))
    releases = [release for name in names for release in facts_of(name).releases[:1]]
    title = f"{facts.model} on {', '.join(names)}"
    data = DatasetCardData(
        pretty_name=f"tango-video: {title}",
        tags=_TAGS,
        source_datasets=[release.repository for release in releases] or None,
        configs=[{"config_name": "answers", "data_files": "answers/*.parquet"}],
    )
    provenance = {
        "model": facts.model,
        "checkpoint": facts.checkpoint,
        "frames per clip": facts.num_frames,
        "protocol": ", ".join(dict.fromkeys(cell.protocol for cell in facts.cells)),
        "limit of clips": job.limit,
        "shard": job.shard,
        "dtype": facts.dtype,
        "device": facts.device,
        "date": facts.started_at[:10],
        "commit of tango-video": facts.git_commit,
        **facts.versions,
    }
    rows = [(name, str(value)) for name, value in provenance.items() if value]
    lines = [
        f"# {title}",
        "Scores of pruning methods, each from one decode and one vision-encoder pass per clip, "
        "and all answers (`answers/`, one row per question and method).",
        cells_table(summary.cells, brief=True).markdown(),
        *markdown_notes([*([facts.note] if facts.note else []), *unread_notes(summary.cells)]),
        "## Provenance",
        Table(["", ""], rows, text_columns=2).markdown(),
        "`tango sweep recipe.yaml` repeats the run, with `benchmark.root` set to the benchmark's "
        "files.",
        *(f"Questions and options: {r.repository}, licence: {r.licence}." for r in releases),
    ]
    return f"---\n{data}\n---\n\n" + "\n\n".join(lines) + "\n"


def _entry(
    cell: CellSummary, job: Job, facts: JobFacts, repository: str | None
) -> EvalResultEntry | None:
    """The result of a cell; `None` if it is not one of a hub checkpoint on a whole benchmark."""
    benchmark, entry = facts_of(cell.benchmark), MODELS.get(job.model.name)
    checkpoint = job.model.path or (entry.path if entry else None)
    (split,) = (one.split for one in job.all_benchmarks if one.name == cell.benchmark)
    whole = benchmark.releases and benchmark.splits.get(split) == cell.counts.num_questions
    if not (whole and cell.headline and checkpoint) or Path(checkpoint).exists():
        return None
    notes = [
        f"{cell.name}, {percent(cell.equivalent_retention)} % of the visual tokens",
        f"{facts.num_frames} frames" if facts.num_frames else "",
        f"protocol {cell.protocol}" if cell.protocol else "",
        f"{cell.metric} in %, tango-video {facts.versions.get('tango-video', 'unknown')}",
        f"{cell.counts.num_failed} questions failed" if cell.counts.num_failed else "",
    ]
    return EvalResultEntry(
        dataset_id=benchmark.releases[0].repository,
        task_id="default",
        value=round(100 * cell.headline.value, 2),
        date=facts.started_at[:10] or None,
        source_url=page_of(repository, "dataset") if repository else None,
        source_name="tango-video: answers" if repository else None,
        notes=", ".join(filter(None, notes)),
    )
