"""What a user names into the two results: directories, URLs, files of a harness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from jobs.config.sections import BenchmarkSection
from jobs.explain.answers import table_answers
from jobs.explain.sides import Source, recipe_in, source_of_run
from jobs.harness.exchange import Harness, ImportSettings, read_files
from jobs.results.answer_columns import metric_of
from jobs.results.facts import FACTS_FILE
from pipeline.rows import ANSWER
from pipeline.storage.copies import local_copy
from pipeline.storage.urls import Place, place

# Ending of a harness's file -> whose it is.
_FILES: Mapping[str, Harness] = {
    ".tsv": "vlmevalkit",
    ".xlsx": "vlmevalkit",
    ".json": "vlmevalkit",
    ".jsonl": "lmms_eval",
}


@dataclass(frozen=True)
class BenchmarkOptions:
    """What the command line says about a harness's file; `None` takes it from the other result.

    Attributes:
        name: Benchmark.
        root: Directory of its annotations.
        split: Split.
    """

    name: str | None = None
    root: str | None = None
    split: str | None = None


@contextmanager
def opened(text: str) -> Iterator[Path]:
    """A result as a path on this machine; one in a store is fetched for the time of the block.

    Raises:
        FileNotFoundError: If there is nothing.
    """
    where: Place = place(text)
    if isinstance(where, Path) and not where.exists():
        raise FileNotFoundError(
            f"{text}: no such run or file; name a run directory, its URL, a file of VLMEvalKit "
            "(.tsv, .json, .xlsx) or lmms-eval (.jsonl), or `published`"
        )
    with local_copy(where, _is_needed) as folder:
        yield folder


def is_harness_file(path: Path) -> bool:
    """Whether a path is a harness's result: a file, or a folder of lmms-eval's samples."""
    return path.is_file() or (
        path.is_dir() and not (path / FACTS_FILE).is_file() and bool(_samples(path))
    )


def source_of(path: Path, benchmark: BenchmarkOptions, other: Path | None) -> Source:
    """One result.

    Args:
        path: Run directory, harness file, or folder of lmms-eval's samples.
        benchmark: For a harness's file.
        other: The other result, whose recipe names the benchmark if the options do not.

    Raises:
        FileNotFoundError: If it is no finished run, or a file or its annotations are not there.
        ValueError: If a file is not of a harness or of this benchmark.
    """
    if not is_harness_file(path):
        return source_of_run(path)
    files = [path] if path.is_file() else _samples(path)
    harness = _FILES.get(files[0].suffix.lower())
    if harness is None:
        raise ValueError(
            f"{path}: not a file of a harness; VLMEvalKit writes .tsv, .json or .xlsx, lmms-eval "
            ".jsonl"
        )
    section = _section(path, harness, benchmark, other)
    about = ImportSettings(section, partial=True)
    rows, facts = read_files(files, harness, about, run_id=path.name)
    table = pa.Table.from_pandas(rows, schema=ANSWER, preserve_index=False)
    return Source(facts, {}, rows=table_answers(table, metric_of(section.name)))


def _section(
    path: Path, harness: Harness, options: BenchmarkOptions, other: Path | None
) -> BenchmarkSection:
    """The benchmark of a harness's file."""
    known: list[dict[str, Any]] = []
    if other is not None and not is_harness_file(other):
        recipe = recipe_in(other)
        known = [recipe.get("benchmark") or {}, *(recipe.get("benchmarks") or [])]
    named = [one for one in known if one and options.name in (None, one.get("name"))]
    found = named[0] if len(named) == 1 else {}
    name, root = options.name or found.get("name"), options.root or found.get("root")
    if name is None:
        raise ValueError(
            f"{path}: whose questions? name the benchmark with --benchmark and its files with "
            "--root"
        )
    split = options.split or found.get("split") or "test"
    return BenchmarkSection(name, root, split, protocol=harness)


def _samples(folder: Path) -> list[Path]:
    """lmms-eval's samples files in a folder."""
    return sorted(folder.glob("*_samples_*.jsonl"))


def _is_needed(name: str) -> bool:
    """Files of a run in a store that an explanation reads."""
    return not name.startswith(("plots/", "tracking/", "report"))
