"""Facts of a finished run besides its answers: `facts.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from jobs.config.overrides import read_recipe
from jobs.results.quantities import Counts, Json, fields_to_plain, from_plain
from pipeline.storage import Storage
from pipeline.storage.copies import home_of
from tango_core.errors import InputError, MissingFileError
from tango_core.local_files import parse_json, read_text
from tango_core.models.base import LLMShape

FACTS_FILE = "facts.json"
FAILURES_FILE = "failures.parquet"
JOB_FILE = "job.yaml"


@dataclass(frozen=True)
class CellFacts:
    """One (benchmark, method, retention, options) combination of a job.

    Attributes:
        name: The value of the answers' column `cell`; unique within its benchmark.
        benchmark: Entry of `BENCHMARKS`.
        method: Entry of `METHODS`.
        retention: Share of the visual tokens asked for, in (0, 1]; 1 for `full`.
        options: All options of the method except its retention, resolved.
        layer_shares: For every layer of the language model the share of the prompt's visual tokens
            that enters it, in (0, 1]; `None` when nothing is dropped inside the language model.
        protocol: Whose prompts and answer rules were used; "" if unknown.
        cache: Directory of the token cache that it read; "" if unknown.
        reads_question: Whether it prunes a clip once per question.
    """

    name: str
    benchmark: str
    method: str
    retention: float
    options: Mapping[str, Any] = field(default_factory=dict)
    layer_shares: tuple[float, ...] | None = None
    protocol: str = ""
    cache: str = ""
    reads_question: bool = False

    @property
    def mean_layer_share(self) -> float:
        """Share of the prompt's visual tokens that enters a layer, averaged over the layers."""
        if not self.layer_shares:
            return 1.0
        return math.fsum(self.layer_shares) / len(self.layer_shares)


@dataclass(frozen=True)
class SkippedMethod:
    """A method of the recipe that was skipped because the model cannot run it.

    Attributes:
        name: Name that its cell would have.
        method: Entry of `METHODS`.
        retention: Share of the visual tokens asked for, in (0, 1].
        reason: Why the model cannot run it, in one line.
    """

    name: str
    method: str
    retention: float
    reason: str


@dataclass(frozen=True)
class ShardSize:
    """What one shard of a job holds, over all its benchmarks.

    Attributes:
        clips: Clips.
        questions: Questions about them, each counted once however many methods answer it.
    """

    clips: int
    questions: int


@dataclass(frozen=True)
class WorkCounts(Counts):
    """What a job really did; what caches held is not in it.

    Attributes:
        decoded: Clips that were decoded.
        encoded: Clips that the vision encoder was asked about.
        compressed: Token sets that were computed, one per clip and compressor.
        answered: Answers that the language model gave.
    """

    decoded: int = 0
    encoded: int = 0
    compressed: int = 0
    answered: int = 0


@dataclass(frozen=True)
class JobFacts:
    """What a run says about itself; everything in it is plain data.

    Attributes:
        run_id: Name of the run directory.
        kind: The command; `"comparison"` for several runs side by side, `"import"` for answers that
            another program gave.
        model: Entry of `MODELS`.
        num_frames: Frames per clip; `None` if unknown.
        cells: What was compared, in the order in which it is shown.
        mode: `"throughput"` or `"profile"`; decides which latencies may be compared.
        llm: Shape of the language model, for its cost; `None` if unknown. JSON key `decoder`.
        wall_s: Wall-clock time of the whole job in seconds.
        started_at: ISO 8601 with time zone.
        note: A sentence shown with every result, e.g. that the weights are untrained.
        git_commit: Commit of the code, or "".
        caches: Names of the cache directories used.
        cache_root: Directory or URL that holds them; "" if unknown.
        device: The processor in words, e.g. `"NVIDIA A100-SXM4-80GB"` or `"cpu"`.
        peak_gib: Largest device memory any actor allocated, in GiB.
        versions: Library -> version.
        float32_products: Operation -> how precisely the models multiply float32 on a GPU, `"ieee"`
            or `"tf32"`, as set in the driver and not asked of its workers; what chooses tokens is
            `"ieee"` in any case. Empty if unknown.
        skipped: Methods of the recipe that the model cannot run (`infeasible: skip`). JSON key
            `left_out`.
        shards: Sizes of all shards of a job of which this run is one, in order; empty for a job
            without shards.
        input_size: The setting that gives the model another number of tokens than published, e.g.
            `"pooling_step=4"`; "" for the published number, or if unknown.
        num_answers: Answers that its files hold, one per question and cell, failed ones included;
            `None` if it answered nothing, or was written before this was noted.
        features: Name of the feature cache; "" for a job without one.
        checkpoint: Digest of the weights, or commit of the hub's checkpoint; with `saliency_from`
            a plus and the same of that one; "" if unknown.
        dtype: Of the language model, e.g. `"bfloat16"`; "" if unknown.
        work: What the job did; of a run that was continued, its last part. `None` if unknown.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"llm": "decoder", "skipped": "left_out"}

    run_id: str
    kind: Literal["evaluate", "sweep", "precompute", "ask", "import", "comparison"]
    model: str
    cells: tuple[CellFacts, ...]
    mode: Literal["throughput", "profile"] = "throughput"
    llm: LLMShape | None = None
    wall_s: float | None = None
    started_at: str = ""
    note: str = ""
    git_commit: str = ""
    caches: tuple[str, ...] = ()
    cache_root: str = ""
    device: str = ""
    peak_gib: float | None = None
    num_frames: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    float32_products: Mapping[str, str] = field(default_factory=dict)
    skipped: tuple[SkippedMethod, ...] = ()
    shards: tuple[ShardSize, ...] = ()
    input_size: str = ""
    num_answers: int | None = None
    features: str = ""
    checkpoint: str = ""
    dtype: str = ""
    work: WorkCounts | None = None

    def save(self, run_dir: Path | Storage) -> None:
        """Write `facts.json` into the run directory, whole or not at all."""
        text = json.dumps(self.to_json(), indent=2, default=str) + "\n"
        Storage.at(run_dir).write(FACTS_FILE, text.encode())

    def to_json(self) -> Json:
        """Plain data for `facts.json`."""
        return fields_to_plain(self)

    @classmethod
    def load(cls, run_dir: Path) -> JobFacts:
        """Read `facts.json` of a run directory.

        Raises:
            FileNotFoundError: If the directory is not a run.
            ValueError: If the file is damaged.
        """
        path = run_dir / FACTS_FILE
        if not run_dir.is_dir():
            raise MissingFileError(
                f"{home_of(run_dir)} is not a finished run: no such directory; name a run directory"
            )
        if not path.is_file():
            raise MissingFileError(
                f"{home_of(run_dir)} is not a finished run: it holds no {FACTS_FILE}; name a "
                f"directory in it, or continue the run with --resume {resumed_as(run_dir)}"
            )
        try:
            return cls.from_json(parse_json(read_text(path), path.name))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise InputError(
                f"{home_of(run_dir)}/{path.name} is damaged ({type(error).__name__}: {error}); "
                f"continue the run with --resume {resumed_as(run_dir)} to write it again"
            ) from error

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> JobFacts:
        """Rebuild the facts from what `to_json` and JSON made of them; unknown keys are ignored."""
        return from_plain(cls, facts)


def recipe_of(run_dir: Path) -> dict[str, Any]:
    """The resolved recipe of a run; empty if it has none."""
    path = run_dir / JOB_FILE
    return read_recipe(path) if path.is_file() else {}


def resumed_as(run_dir: Path) -> str:
    """What `--resume` takes for a run: its name, or its URL where this is a copy of it."""
    home = home_of(run_dir)
    return run_dir.name if isinstance(home, Path) else str(home)
