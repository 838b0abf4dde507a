"""Numbers printed in papers, from `published.yaml` and `published_lmms_eval.yaml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files

import yaml

from jobs.results.cell_summary import CellSummary
from jobs.results.quantities import Json
from tango_core.benchmarks.protocols.protocol import harness_of
from tango_core.compressors import METHODS, build_method
from tango_core.compressors.options import option_names

# Benchmark -> column -> accuracy in [0, 1].
Scores = Mapping[str, Mapping[str, float]]

# Benchmark and column of every figure in a row of the file.
_COLUMNS = (
    ("videomme", "short"),
    ("videomme", "medium"),
    ("videomme", "long"),
    ("videomme", "overall"),
    ("mvbench", "overall"),
    ("longvideobench", "overall"),
    ("mlvu", "overall"),
)


# The release merges tokens into misplaced slots; its printed numbers may be with or without.
_FREE_OPTIONS = ("inner", "legacy_writeback")


_FILES = ("published.yaml", "published_lmms_eval.yaml")


def source() -> str:
    """Where the numbers are printed."""
    first, *others = _published()
    return "; ".join([first["source"], *(f"under {o['protocol']}: {o['source']}" for o in others)])


@lru_cache(maxsize=1)
def _published() -> list[Json]:
    """The files: `source`, `protocol`, `questions`, `decoder_shape` and `rows` of each."""
    texts = ((files("jobs.results") / name).read_text(encoding="utf-8") for name in _FILES)
    return [yaml.safe_load(text) for text in texts]


def _rows_for(cell: CellSummary) -> list[Json]:
    """Rows for a cell's model under its protocol and of its size, as far as these are known."""
    return [
        row
        for published in _published()
        if harness_of(cell.protocol) in ("", published["protocol"])
        and cell.llm_shape in (None, tuple(published["decoder_shape"]))
        for row in published["rows"]
        if row["model"] == cell.model
    ]


def published_scores(cell: CellSummary) -> Scores:
    """Published accuracies for the setting of a cell; empty if there are none.

    A cell matches if its input is of the published size, and if model, size, frames, method,
    retention and protocol are equal (size, frames and protocol may be unknown), all options are
    those of the published row, else the defaults, and a step inside the language model is the
    published one.
    """
    for row in _rows_for(cell):
        if (
            cell.num_frames in (None, row["num_frames"])
            and not cell.input_size
            and cell.method == row["method"]
            and abs(cell.retention_requested - row.get("retention", 1.0)) < 1e-9
            and (cell.options.get("inner") or {}).get("name") == row.get("inner")
            and _has_options(cell, row.get("options") or {})
        ):
            scores: dict[str, dict[str, float]] = {}
            for (benchmark, column), score in zip(_COLUMNS, row["scores"], strict=True):
                if score is not None:
                    scores.setdefault(benchmark, {})[column] = round(score / 100, 6)
            return scores
    return {}


def caveats(cells: Sequence[CellSummary]) -> list[str]:
    """Why the cells cannot be compared with published numbers, one sentence each."""
    sentences = []
    complete = _published()[0]["questions"]
    fewest: dict[str, int] = {}
    for cell in cells:
        frames = {row["num_frames"] for row in _rows_for(cell)}
        if not frames or cell.num_frames not in (None, *frames):
            size = " of {} layers of width {}".format(*cell.llm_shape) if cell.llm_shape else ""
            given = f" with {cell.num_frames} frames" if cell.num_frames else ""
            protocol = f" under {cell.protocol}" if cell.protocol else ""
            sentences.append(f"Nothing is published for {cell.model}{size}{given}{protocol}.")
        name, asked = cell.benchmark, cell.counts.num_questions
        if asked < complete.get(name, 0) and published_scores(cell):
            fewest[name] = min(fewest.get(name, asked), asked)
    if fewest:
        partial = [f"{n} {asked:,} of {complete[n]:,} questions" for n, asked in fewest.items()]
        sentences.append(
            "Ours and the published numbers are not comparable, which are of complete benchmarks: "
            f"{', '.join(partial)}."
        )
    return list(dict.fromkeys(sentences))


def _has_options(cell: CellSummary, options: Mapping[str, object]) -> bool:
    """Whether every option is the given one, else the method's own; an ablation is another row."""
    if cell.method not in METHODS:
        return False
    takes_retention = "retention" in option_names(METHODS[cell.method])
    given: Json = {"retention": cell.retention_requested} if takes_retention else {}
    wanted = {**build_method(cell.method, model=cell.model, **given).options, **options}
    own = {name: value for name, value in cell.options.items() if name not in _FREE_OPTIONS}
    return own == {name: wanted.get(name) for name in own} and options.keys() <= cell.options.keys()
