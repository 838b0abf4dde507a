"""Recipes: what is computed (benchmark, model, methods) and where it runs (pools, executor).

A recipe is a YAML file that mirrors these frozen dataclasses. It is strict: an unknown key or a
value of the wrong kind ends in one line that says what is allowed. `--set a.b=c` changes single
fields with the same dotted keys (`jobs.config.overrides`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from jobs.config.methods import cell_name, spelled_out
from jobs.config.overrides import RecipeError as RecipeError
from jobs.config.overrides import read_recipe, with_overrides
from pipeline.pools import Pools
from tango_core.extensions import short_name
from tango_core.video.sampling import Sampling

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=_STRICT)
class BenchmarkSection:
    """Which clips and questions.

    Attributes:
        name: Entry of `BENCHMARKS`.
        root: Directory (or table) of the benchmark's files; `null` for its own default.
        split: Split of the benchmark.
        seed: Draw of a generated benchmark.
        protocol: Whose prompts and answer rules: `vlmevalkit` or `lmms_eval`.
    """

    name: str
    root: str | None = None
    split: str = "test"
    seed: int = 0
    protocol: str = "vlmevalkit"


@dataclass(frozen=True, config=_STRICT)
class ModelSection:
    """Which Video LLM.

    Attributes:
        name: Entry of `MODELS`.
        path: Hub id or directory of a checkpoint; `null` for the entry's own.
        num_frames: Frames per clip; `null` for the entry's own. A list in a recipe for `tango
            sweep` stands for one run per number.
        dtype: `auto | float32 | float16 | bfloat16`.
        device: `auto | cpu | cuda`.
        revision: Branch, tag or commit of a hub checkpoint.
        saliency_from: SigLIP checkpoint with a pooling head, for towers that come without one.
        pooling: `average | bilinear`, for models that offer a choice; `null` for the model's own.
        time_instruction: `none | correct | vlmevalkit | lmms_eval`: whose sentence about the
            clip's length precedes the question; `null` for the model's own.
        max_pixels: Largest area of a frame, for models that keep its shape; `null` for the model's.
        position_rule: `hf450 | hf5`: whose positions Qwen2.5-VL has behind a clip.
        seconds_per_grid: Time between two pairs of frames, as Qwen2.5-VL is told.
        sinks: File that `tango analyze sinks` wrote; `null` for the model's own sinks.
        sampling: Which frames of a clip, a rule of `tango_core.video.sampling`; `null` for the rule
            that the benchmarks' protocol has for the model.
    """

    name: str = "tiny"
    path: str | None = None
    num_frames: Annotated[int, Field(ge=1)] | None = None
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    revision: str | None = None
    saliency_from: str | None = None
    pooling: Literal["average", "bilinear"] | None = None
    time_instruction: Literal["none", "correct", "vlmevalkit", "lmms_eval"] | None = None
    max_pixels: Annotated[int, Field(ge=1)] | None = None
    position_rule: Literal["hf450", "hf5"] | None = None
    seconds_per_grid: Annotated[float, Field(gt=0)] | None = None
    sinks: str | None = None
    sampling: Sampling | None = None


@dataclass(frozen=True, config=_STRICT)
class DecodeSection:
    """How clips are decoded.

    Attributes:
        decoder: `auto | decord | pyav | torchcodec`.
        timeout_s: Seconds after which a clip is given up.
        memory_gib: Memory one decoder may use, in GiB.
    """

    decoder: Literal["auto", "decord", "pyav", "torchcodec"] = "auto"
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 120
    memory_gib: Annotated[float, Field(ge=0.5)] = 4


@dataclass(frozen=True, config=_STRICT)
class Job:
    """A whole recipe.

    Attributes:
        benchmark: One benchmark; or give `benchmarks`.
        benchmarks: Several, for a sweep.
        model: The Video LLM.
        method: One method with its options; or give `methods`.
        methods: Several, for a sweep; an option with a list of values stands for one method per
            value.
        decode: How clips are decoded.
        pools: Workers of each stage.
        executor: `ray`, or `local` for a plain loop.
        mode: `throughput`, or `profile` for honest latencies: serial, one question at a time,
            warmed up.
        max_failures: Clips that may fail before the exit code is not zero.
        limit: Only the first clips of every benchmark.
        shard: `i/n`: only every n-th clip, starting at the i-th (0-based); for arrays of
            independent jobs.
        hash_content: Identify files by their bytes and not by size and modification time.
        infeasible: What becomes of a method that cannot have its retention in the layers of this
            model: `error`, or `skip` to leave it out, which a warning, the summary and the report
            then say.
    """

    benchmark: BenchmarkSection | None = None
    benchmarks: tuple[BenchmarkSection, ...] = ()
    model: ModelSection = field(default_factory=ModelSection)
    method: dict[str, Any] | None = None
    methods: tuple[dict[str, Any], ...] = ()
    decode: DecodeSection = field(default_factory=DecodeSection)
    pools: Pools = field(default_factory=Pools)
    executor: Literal["ray", "local"] = "ray"
    mode: Literal["throughput", "profile"] = "throughput"
    max_failures: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1)] | None = None
    shard: Annotated[str, Field(pattern=r"^\d+/[1-9]\d*$")] | None = None
    hash_content: bool = False
    infeasible: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        """Exactly one of each pair of keys."""
        for one, many in (("benchmark", "benchmarks"), ("method", "methods")):
            if (getattr(self, one) is None) == (not getattr(self, many)):
                raise ValueError(f"give either {one!r} or {many!r}")
        if self.shard is not None and int(self.shard.split("/")[0]) >= int(
            self.shard.split("/")[1]
        ):
            raise ValueError(f"shard must be i/n with 0 <= i < n, got {self.shard!r}")

    @property
    def all_benchmarks(self) -> tuple[BenchmarkSection, ...]:
        """The benchmarks, however they were given."""
        return self.benchmarks or ((self.benchmark,) if self.benchmark else ())

    @property
    def all_methods(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        """(cell name, options with `name`) of every method, lists of values spelled out.

        Raises:
            RecipeError: If a method has no name, or two are the same or would be shown as one.
        """
        cells: dict[str, dict[str, Any]] = {}
        shown: dict[str, str] = {}
        for entry in self.methods or ((self.method,) if self.method else ()):
            for options in spelled_out(entry):
                name = cell_name(options)
                own = options["name"]
                other = shown.setdefault(short_name(own), own)
                if other != own:
                    raise RecipeError(
                        f"methods: {other} and {own} would both be shown as {short_name(own)!r}; "
                        "rename one of the classes, or measure them in two runs"
                    )
                if name in cells:
                    raise RecipeError(f"methods: {name!r} is listed twice; remove one")
                cells[name] = options
        return tuple(cells.items())

    def to_yaml(self) -> str:
        """The resolved recipe, ready to be run again."""
        plain = {key: value for key, value in asdict(self).items() if value not in (None, (), [])}
        return yaml.safe_dump(_plain(plain), sort_keys=False, allow_unicode=True)


def load_job(path: Path, overrides: Sequence[str] = ()) -> Job:
    """Read a recipe of one job, apply `--set` overrides, and check everything.

    Raises:
        RecipeError: If the file is missing, not a recipe, or stands for several jobs; the message
            names file, key, value and what is allowed.
    """
    jobs = load_jobs(path, overrides)
    if len(jobs) != 1:
        raise RecipeError(
            f"{path}: model.num_frames lists several values; run it with `tango sweep`, "
            "or choose one with --set model.num_frames=N"
        )
    return jobs[0]


def load_jobs(path: Path, overrides: Sequence[str] = ()) -> tuple[Job, ...]:
    """Read a recipe, apply `--set` overrides, and check everything.

    Where `model.num_frames` is a list, the recipe stands for one job per number: other frames are
    other features, so nothing could be shared between them.

    Raises:
        RecipeError: As `load_job`, but several jobs are none.
    """
    content = with_overrides(read_recipe(path), overrides)
    model = content.get("model")
    counts = model.get("num_frames") if isinstance(model, dict) else None
    if not isinstance(model, dict) or not isinstance(counts, list) or not counts:
        return (parse_job(content, str(path)),)
    return tuple(
        parse_job({**content, "model": {**model, "num_frames": count}}, str(path))
        for count in counts
    )


def parse_job(content: Mapping[str, Any], source: str) -> Job:
    """Check a recipe given as nested mappings; `source` is named in errors.

    Raises:
        RecipeError: In one line.
    """
    try:
        job = TypeAdapter(Job).validate_python(content)
    except ValidationError as error:
        raise RecipeError(f"{source}: {_explain(error)}") from error
    job.all_methods  # noqa: B018  (raises on a nameless or doubled method)
    return job


def _explain(error: ValidationError) -> str:
    """The first complaint of pydantic, in one line with what is allowed."""
    first = error.errors()[0]
    location = [str(part) for part in first["loc"] if not str(part)[:1].isupper()]
    key = ".".join(location)
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        allowed = _keys_at(location[:-1])
        close = difflib.get_close_matches(location[-1], allowed, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"allowed here: {', '.join(allowed)}"
        return f"unknown key {key!r}; {hint}"
    if first["type"] in ("missing", "missing_argument"):
        return f"key {key!r} is missing"
    message = first["msg"].removeprefix("Value error, ").split(" or an instance of ")[0]
    message = message[:1].lower() + message[1:]
    if isinstance(first.get("input"), (dict, list)) or not key:
        return f"{key}: {message}" if key else message
    return f"{key}: {message}, got {first['input']!r}"


def _keys_at(location: Sequence[str]) -> list[str]:
    """Keys that are allowed in the section at `location`."""
    section: Any = Job
    for name in location:
        if name.isdigit():
            continue
        section = _SECTIONS.get(name, section)
    return [f.name for f in fields(section)] if is_dataclass(section) else []


_SECTIONS: dict[str, Any] = {
    "benchmark": BenchmarkSection,
    "benchmarks": BenchmarkSection,
    "model": ModelSection,
    "decode": DecodeSection,
    "pools": Pools,
    **{f.name: f.default_factory for f in fields(Pools)},
}


def _plain(value: Any) -> Any:
    """Tuples as lists, for YAML."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
