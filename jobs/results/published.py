"""Numbers printed in papers, from `published.yaml` and `published_lmms_eval.yaml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from itertools import chain
from typing import Annotated

import yaml
from pydantic import Field, TypeAdapter

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


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """What is printed for one setting.

    Attributes:
        model: Entry of `MODELS`.
        num_frames: Frames per clip.
        method: Entry of `METHODS`.
        scores: Accuracy in percent for each of `_COLUMNS`; `None` where nothing is printed.
        retention: Share of the visual tokens, in (0, 1].
        inner: Name of the step inside the language model.
        options: Options of the method that differ from its defaults.
    """

    model: str
    num_frames: int
    method: str
    scores: tuple[float | None, ...]
    retention: float = 1.0
    inner: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Published:
    """One of the files: numbers made under one protocol.

    Attributes:
        source: Where the numbers are printed.
        protocol: Protocol under which they were made.
        questions: Benchmark -> number of its questions.
        llm_shape: Layers and width of the language model. Key `decoder_shape`.
        rows: One per setting.
    """

    source: str
    protocol: str
    questions: Mapping[str, int]
    llm_shape: Annotated[tuple[int, int], Field(validation_alias="decoder_shape")]
    rows: tuple[PublishedRow, ...]


# The release merges tokens into misplaced slots; its printed numbers may be with or without.
_FREE_OPTIONS = ("inner", "legacy_writeback")


_FILES = ("published.yaml", "published_lmms_eval.yaml")


def source() -> str:
    """Where the numbers are printed."""
    first, *others = _published()
    return "; ".join([first.source, *(f"under {o.protocol}: {o.source}" for o in others)])


def published_scores(cell: CellSummary) -> Scores:
    """Published accuracies for the setting of a cell; empty if there are none.

    A cell matches if its input is of the published size, and if model, size, frames, method,
    retention and protocol are equal (size, frames and protocol may be unknown), all options are
    those of the published row, else the defaults, and a step inside the language model is the
    published one.
    """
    fitting = (p for p in _published() if _same_protocol(cell, p) and _same_size(cell, p))
    for row in chain.from_iterable(published.rows for published in fitting):
        if (
            cell.model == row.model
            and cell.num_frames in (None, row.num_frames)
            and not cell.input_size
            and cell.method == row.method
            and abs(cell.retention_requested - row.retention) < 1e-9
            and (cell.options.get("inner") or {}).get("name") == row.inner
            and _has_options(cell, row.options)
        ):
            scores: dict[str, dict[str, float]] = {}
            for (benchmark, column), score in zip(_COLUMNS, row.scores, strict=True):
                if score is not None:
                    scores.setdefault(benchmark, {})[column] = round(score / 100, 6)
            return scores
    return {}


def caveats(cells: Sequence[CellSummary]) -> list[str]:
    """What keeps the cells from being compared with published numbers, one sentence each."""
    sentences = [sentence for cell in cells if (sentence := _mismatch(cell))]
    complete = _published()[0].questions
    fewest: dict[str, int] = {}
    for cell in cells:
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


def _mismatch(cell: CellSummary) -> str:
    """Why no published number can stand beside a cell, or ""."""
    model = cell.model
    known = [p for p in _published() if any(row.model == model for row in p.rows)]
    if not known:
        return f"Nothing is published for model {model}."
    # What is printed for the method decides; without any, what is printed for the model.
    own = [p for p in known if any((r.model, r.method) == (model, cell.method) for r in p.rows)]
    first = next((p for p in own or known if _same_protocol(cell, p)), None)
    nothing = f"Nothing published stands beside {model}"
    if first is None:
        protocols = ", ".join(published.protocol for published in own or known)
        return f"{nothing} under {cell.protocol}: the published numbers are made under {protocols}."
    if cell.llm_shape and not _same_size(cell, first):
        size = "{} layers of width {}".format
        return f"{nothing} of {size(*cell.llm_shape)}: the published has {size(*first.llm_shape)}."
    frames = sorted({row.num_frames for row in first.rows if row.model == model})
    if cell.num_frames not in (None, *frames):
        listed = ", ".join(map(str, frames))
        return f"{nothing} with {cell.num_frames} frames: the published has {listed}."
    return ""


def _same_protocol(cell: CellSummary, published: Published) -> bool:
    """Whether a cell was asked as the published ones were, as far as is known."""
    return harness_of(cell.protocol) in ("", published.protocol)


def _same_size(cell: CellSummary, published: Published) -> bool:
    """Whether a cell's language model has the published size, as far as is known."""
    return cell.llm_shape in (None, published.llm_shape)


@lru_cache(maxsize=1)
def _published() -> tuple[Published, ...]:
    """The files, read once."""
    return tuple(
        TypeAdapter(Published).validate_python(
            yaml.safe_load((files("jobs.results") / name).read_text(encoding="utf-8"))
        )
        for name in _FILES
    )


def _has_options(cell: CellSummary, options: Mapping[str, object]) -> bool:
    """Whether every option is the given one, else the method's own; an ablation is another row."""
    if cell.method not in METHODS:
        return False
    takes_retention = "retention" in option_names(METHODS[cell.method])
    given: Json = {"retention": cell.retention_requested} if takes_retention else {}
    wanted = {**build_method(cell.method, model=cell.model, **given).options, **options}
    return all(
        name in _FREE_OPTIONS or wanted.get(name) == value for name, value in cell.options.items()
    ) and all(cell.options.get(name) == value for name, value in options.items())
