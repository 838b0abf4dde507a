"""Recipes: what is computed (benchmark, model, methods) and where it runs (pools, executor).

A recipe is a YAML file with the structure of these frozen dataclasses. Unknown keys and values of
the wrong type are errors whose message says what is allowed. `--set a.b=c` changes single fields
with the same dotted keys (`jobs.config.overrides`).
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field, fields, replace
from decimal import Decimal
from itertools import product
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from jobs.config import sections
from jobs.config.overrides import RecipeError as RecipeError
from jobs.config.overrides import (
    computed_part,
    dotted,
    load_yaml,
    raise_if_secret_in,
    read_recipe,
    with_overrides,
)
from jobs.units import clip_limit
from pipeline.clips import Pools
from tango_core.errors import InputError, UserError
from tango_core.extensions import short_name
from tango_core.models.options import EngineName

if TYPE_CHECKING:
    from tango_core.benchmarks import Benchmark


@dataclass(frozen=True, config=sections.STRICT)
class Job:
    """A whole recipe.

    Attributes:
        benchmark: A single benchmark; alternative to `benchmarks`.
        benchmarks: The benchmarks of a sweep.
        model: The Video LLM.
        method: A single method with its options; alternative to `methods`.
        methods: The methods of a sweep; an option with a list of values expands to one method per
            value.
        decode: How clips are decoded.
        answer: How the language model answers questions.
        cache: What is cached besides the token sets.
        pools: Workers of each stage; `auto` sizes them from the cluster and the timings of earlier
            runs.
        cluster: Timeouts for Ray.
        tracking: How the job is shown in MLflow while it runs.
        executor: `ray`, `local` for a loop in this process, or `auto`: `local` for jobs too small
            to justify starting Ray, `ray` otherwise.
        engine: What generates replies: `native`, or `vllm`, which must be installed in the
            environment of the answer workers. A run cannot be continued with another engine.
        mode: `throughput`, or `profile` to measure latencies: serial, one question at a time,
            after a warm-up.
        max_failures: Number of clips that may fail; if more fail, the exit code is 1.
        limit: Use only the first clips of every benchmark: a number, or a share such as 0.1.
        shard: `i/n`: use only every n-th clip, starting at the i-th (0-based); for arrays of
            independent jobs.
        hash_content: Identify files by their bytes instead of size and modification time.
        infeasible: What to do if the model has too few layers for a method to reach its
            retention: `error`, or `skip` the method and list it in a warning, the summary and the
            report.
        controls: Add the controls at every retention of the methods (`tango sweep --controls`).
    """

    benchmark: sections.BenchmarkSection | None = None
    benchmarks: tuple[sections.BenchmarkSection, ...] = ()
    model: sections.ModelSection = field(default_factory=sections.ModelSection)
    method: dict[str, Any] | None = None
    methods: tuple[dict[str, Any], ...] = ()
    decode: sections.DecodeSection = field(default_factory=sections.DecodeSection)
    answer: sections.AnswerSection = field(default_factory=sections.AnswerSection)
    cache: sections.CacheSection = field(default_factory=sections.CacheSection)
    pools: Pools | Literal["auto"] = field(default_factory=Pools)
    cluster: sections.ClusterSection = field(default_factory=sections.ClusterSection)
    tracking: sections.TrackingSection = field(default_factory=sections.TrackingSection)
    executor: Literal["auto", "ray", "local"] = "auto"
    engine: EngineName = "native"
    mode: Literal["throughput", "profile"] = "throughput"
    max_failures: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int | float | None, BeforeValidator(clip_limit)] = None
    shard: str | None = None
    hash_content: bool = False
    infeasible: Literal["error", "skip"] = "error"
    controls: bool = False

    def __post_init__(self) -> None:
        """Check rules about several keys, and the shard."""
        for one, many in (("benchmark", "benchmarks"), ("method", "methods")):
            if (getattr(self, one) is None) == (not getattr(self, many)):
                raise InputError(f"give either {one!r} or {many!r}")
        if len({section.name for section in self.benchmarks}) < len(self.benchmarks):
            raise InputError("benchmarks: a name is listed twice; remove one")
        if self.mode == "profile" and self.cache.features != "none":
            raise InputError(
                f"cache.features {self.cache.features} cannot be used with mode profile, which "
                "encodes every clip for every method; set cache.features to none"
            )
        index, _, number = (self.shard or "0/1").partition("/")
        if not (index.isdecimal() and number.isdecimal() and int(index) < int(number)):
            raise InputError(f"shard must be i/n with 0 <= i < n, got {self.shard!r}")

    @property
    def all_benchmarks(self) -> tuple[sections.BenchmarkSection, ...]:
        """The benchmarks of `benchmark` or `benchmarks`."""
        return self.benchmarks or ((self.benchmark,) if self.benchmark else ())

    def clips_of(self, benchmark: Benchmark) -> int | None:
        """Maximum number of clips of a benchmark; a share is rounded up, as harnesses do."""
        if not isinstance(self.limit, float):
            return self.limit
        return ceil(Decimal(str(self.limit)) * sum(1 for _ in benchmark.expected_items()))

    @property
    def all_methods(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        """Pairs (cell name, options with `name`) of all methods, with lists of values expanded.

        Raises:
            RecipeError: If a method has no name, or two methods would have the same display name.
        """
        entries = self.methods or ((self.method,) if self.method else ())
        methods = [options for entry in entries for options in expand_method(entry)]
        if self.controls:
            methods += control_methods(methods)
        cells = {cell_name(options): options for options in methods}
        if len(cells) < len(methods):
            names = [cell_name(options) for options in methods]
            twice = next(name for name in cells if names.count(name) > 1)
            raise RecipeError(f"methods: {twice!r} is listed twice; remove or rename one")
        return tuple(cells.items())

    def to_yaml(self) -> str:
        """The resolved recipe as YAML that `load_job` can read."""
        plain = {key: value for key, value in asdict(self).items() if value not in (None, (), [])}
        plain["model"] = sections.flat_model(plain["model"])
        # Omit defaults of keys that older runs, which may be resumed, do not have.
        newer = {"engine": "native", "controls": False, "answer": sections.AnswerSection()}
        for key, default in {**newer, "cache": sections.CacheSection()}.items():
            if getattr(self, key) == default:
                del plain[key]
        for section in (plain.get("benchmark"), *plain.get("benchmarks", ())):
            if section is not None and not section["subtitles"]:
                del section["subtitles"]
        return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def load_job(path: Path, overrides: Sequence[str] = ()) -> Job:
    """Read a recipe of one job, apply `--set` overrides, and validate it.

    Raises:
        RecipeError: If the file is missing, is not a recipe, or describes several jobs; the message
            names file, key, value and what is allowed.
    """
    jobs = load_jobs(path, overrides)
    if len(jobs) != 1:
        key = " and model.".join(listed_inputs(jobs))
        raise RecipeError(
            f"{path}: model.{key} lists several values; run it with `tango sweep`, "
            f"or choose one with --set model.{key}=N"
        )
    return jobs[0]


def load_jobs(path: Path, overrides: Sequence[str] = ()) -> tuple[Job, ...]:
    """Read a recipe, apply `--set` overrides, and validate it.

    A list in `model.num_frames`, `model.max_pixels` or `model.pooling_step` expands to one job per
    value, because differently sampled or encoded clips share no features.

    Args:
        path: The recipe.
        overrides: The values of `--set`.

    Raises:
        RecipeError: If the file is missing or is not a recipe.
    """
    content = with_overrides(read_recipe(path), overrides)
    if "model" not in content:
        raise RecipeError(
            f"{path}: model is missing; name one, such as model: {{name: llava-onevision-7b}}, or "
            "{name: tiny} for the built-in one"
        )
    model = content["model"]
    settings = model if isinstance(model, dict) else {}
    listed = {key: settings[key] for key in _INPUTS if isinstance(settings.get(key), list)}
    lists = {key: values for key, values in listed.items() if values}
    variants = [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]
    return tuple(
        parse_job({**content, "model": {**model, **variant}} if variant else content, str(path))
        for variant in variants
    )


def listed_inputs(jobs: Sequence[Job]) -> dict[str, list[Any]]:
    """Model settings in which the jobs of one recipe differ, with the listed values."""
    settings = [{"num_frames": job.model.num_frames, **job.model.options} for job in jobs]
    found = {key: list(dict.fromkeys(one.get(key) for one in settings)) for key in _INPUTS}
    return {key: values for key, values in found.items() if len(values) > 1}


def parse_job(content: Mapping[str, Any], source: str) -> Job:
    """Validate the parsed content of a recipe.

    Raises:
        RecipeError: If it is not a valid recipe; the one-line message names `source`.
    """
    raise_if_secret_in(content, source)
    try:
        job = TypeAdapter(Job).validate_python(sections.with_model_options(content, _COMMON_KEYS))
        job.all_methods  # noqa: B018  (raises if a method has no name or is listed twice)
    except ValidationError as error:
        raise RecipeError(f"{source}: {explain(error, _known_keys())}") from error
    except UserError as error:
        raise RecipeError(f"{source}: {error}") from error
    return job


def _known_keys() -> list[str]:
    """All dotted keys of a recipe."""
    example = asdict(Job(benchmark=sections.BenchmarkSection("shapes"), method={"name": "full"}))
    return [key for key, _ in dotted({**example, "model": sections.flat_model(example["model"])})]


def single_job(job: Job) -> Job:
    """The job that `tango evaluate` runs for a recipe.

    Raises:
        RecipeError: If the recipe names several methods or benchmarks.
    """
    methods = [options for _, options in job.all_methods]
    if job.mode == "profile":
        methods = [options for options in methods if options["name"] != _BASELINE] or methods[:1]
    for what, number in (("methods", len(methods)), ("benchmarks", len(job.all_benchmarks))):
        if number != 1:
            raise RecipeError(
                f"`tango evaluate` measures one method on one benchmark, and this recipe names "
                f"{number} {what}; run it with `tango sweep`"
            )
    if job.mode == "profile" and methods[0]["name"] != _BASELINE:
        job = replace(job, method=None, methods=({"name": _BASELINE}, methods[0]))
    return job


# The unpruned baseline, which a profile measures together with the chosen method.
_BASELINE = "full"
# Keys under `model` that may be lists: the amount of visual input per clip.
_INPUTS = ("num_frames", "max_pixels", "pooling_step")
# Parts that pydantic adds to an error's location: class names and members of unions.
_TYPE = re.compile(r"[A-Z]|int$|tuple\[|literal\[")
_UNKNOWN = {"unexpected_keyword_argument", "extra_forbidden"}
# Keys under `model` that every model accepts.
_COMMON_KEYS = tuple(f.name for f in fields(sections.ModelSection) if f.name != "options")


def explain(error: ValidationError, keys: Iterable[str]) -> str:
    """Describe the first error that pydantic found, in one line with what is allowed.

    An unknown key, which may be a misspelled one, comes before a missing one.

    Args:
        error: From checking a recipe.
        keys: All dotted keys of a recipe.
    """
    first: Any = min(error.errors(), key=lambda one: one["type"] not in _UNKNOWN)
    *above, last = map(str, first["loc"] or ("",))
    location = [part for part in above if not _TYPE.match(part)]
    if first["type"] in _UNKNOWN:
        section = re.sub(r"s\.\d+", "", "".join(f"{part}." for part in location))
        inside = [key.removeprefix(section) for key in keys if key.startswith(section)]
        allowed = list(dict.fromkeys(key.partition(".")[0] for key in inside))
        close = difflib.get_close_matches(last, allowed, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"allowed here: {', '.join(allowed)}"
        return f"unknown key {'.'.join([*location, last])!r}; {hint}"
    key = ".".join(location if _TYPE.match(last) else [*location, last])
    if first["type"] in ("missing", "missing_argument"):
        return f"key {key!r} is missing"
    message = first["msg"].removeprefix("Value error, ").split(" or an instance of ")[0]
    message = message[:1].lower() + message[1:]
    message = message.replace("tuple", "list").replace("dictionary", "mapping")
    given = "" if isinstance(first["input"], dict | list) else f", got {first['input']!r}"
    return f"{key}: {message}{given}" if key else message


def cell_name(options: Mapping[str, Any]) -> str:
    """Readable name of one method with its options: `tango r=0.1 alpha=2`."""
    parts = [short_name(str(options["name"]))]
    if "retention" in options:
        parts.append(f"r={options['retention']}")
    parts += [f"{k}={_text(v)}" for k, v in options.items() if k not in ("name", "retention")]
    return " ".join(parts)


def _text(value: Any) -> str:
    """Format an option's value for the name of a cell."""
    return "+".join(str(v) for v in value.values()) if isinstance(value, dict) else str(value)


def expand_method(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Expand an entry of a recipe into the options of its methods.

    An option with a list of values gives one method per value; several lists give one method per
    combination.

    Raises:
        RecipeError: If the entry has no name, or an option is an empty list.
    """
    if not isinstance(entry.get("name"), str):
        raise RecipeError(
            f"every method needs a name, e.g. {{name: tango, retention: 0.1}}; got {dict(entry)}"
        )
    for option, value in entry.items():
        if value == []:
            raise RecipeError(
                f"method {entry['name']!r}: {option} is an empty list; give one value or several"
            )
    values = [value if isinstance(value, list) else [value] for value in entry.values()]
    return [dict(zip(entry, one, strict=True)) for one in product(*values)]


# Controls that accept a retention; a test checks that these and `block` are all controls.
AT_A_RETENTION: tuple[Mapping[str, Any], ...] = (
    {"name": "random"},
    {"name": "uniform"},
    {"name": "fewer_frames"},
    {"name": "pool_time"},
    {"name": "pool_space", "budget": "exact"},
)
# `block` keeps 1 / factor^2 of the tokens; larger factors match no usual retention better.
_FACTORS = (2, 3, 4)
_NEAR = 0.005


def control_methods(methods: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The control methods at every retention of the given methods.

    Args:
        methods: Options of every method, with `name`; lists of values expanded.

    Returns:
        Options of the controls that are not among `methods`, ordered by retention.
    """
    given = [dict(options) for options in methods]
    retentions = {
        float(options["retention"])
        for options in given
        if isinstance(options.get("retention"), int | float) and options["retention"] < 1
    }
    added: list[dict[str, Any]] = []
    for retention in sorted(retentions):
        added += [{**control, "retention": retention} for control in AT_A_RETENTION]
        added += [
            {"name": "block", "factor": factor}
            for factor in _FACTORS
            if abs(1 / factor**2 - retention) < _NEAR
        ]
    return [options for options in added if options not in given]


def job_digest(job: Job) -> str:
    """Digest (16 hexadecimal digits) of the part of a job that determines its answers.

    It includes `shard` and `limit`, which select the clips, but not pools and executor.
    """
    return _digest(computed_part(load_yaml(job.to_yaml())))


def jobs_digest(jobs: Sequence[Job]) -> str:
    """Digest of all jobs of one recipe; for a single job it equals `job_digest`."""
    return job_digest(jobs[0]) if len(jobs) == 1 else _digest([job_digest(job) for job in jobs])


def _digest(plain: Any) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
