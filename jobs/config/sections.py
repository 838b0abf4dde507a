"""Sections of a recipe: one frozen dataclass per top-level key that has keys of its own."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from tango_core.errors import InputError
from tango_core.models import MODELS, model_options, names_of_options
from tango_core.video import DecoderName
from tango_core.video.sampling import Sampling

STRICT = ConfigDict(extra="forbid")
"""Unknown keys are errors."""


def _expanded(place: str) -> str:
    return place if "://" in place else os.path.expanduser(place)


Place = Annotated[str, AfterValidator(_expanded)]
"""A URL, or a path in which a leading `~` is expanded."""


def _at_least_one(value: object) -> object:
    """Accept "auto" or a positive number; the errors of a union type name no limits."""
    if value == "auto" or (type(value) is int and value >= 1):
        return value
    raise InputError("must be auto, or a number of at least 1")


AutoOrNumber = Annotated[int | Literal["auto"], BeforeValidator(_at_least_one)]


@dataclass(frozen=True, config=STRICT)
class BenchmarkSection:
    """The clips and questions.

    Attributes:
        name: Entry of `BENCHMARKS`, or a class elsewhere: `my_package.my_module:MyBenchmark`.
        root: Directory (or table) of the benchmark's files, or a URL in an object store; `null` for
            the benchmark's default.
        split: Split of the benchmark.
        seed: Random seed of a generated benchmark.
        protocol: Harness whose prompts and scoring rules are used: `vlmevalkit` or `lmms_eval`, or
            a version of it such as `vlmevalkit@2026-05`; its own score is recorded as well.
        subtitles: Whether prompts contain the videos' subtitles; the protocol must define a
            subtitle prompt for the model.
    """

    name: str
    root: Place | None = None
    split: str = "test"
    seed: int = 0
    protocol: str = "vlmevalkit"
    subtitles: bool = False


@dataclass(frozen=True, config=STRICT)
class ModelSection:
    """The Video LLM.

    Attributes:
        name: Entry of `MODELS`.
        path: Hub id or directory of a checkpoint; `null` for the entry's default.
        num_frames: Frames per clip; `null` for the entry's default. In a recipe for `tango sweep`,
            a list gives one run per number; likewise for `max_pixels` and `pooling_step`.
        dtype: `auto | float32 | float16 | bfloat16`.
        device: `auto | cpu | cuda`.
        revision: Branch, tag or commit of a hub checkpoint.
        saliency_from: SigLIP checkpoint with a pooling head, for towers without one.
        options: Options of the model's family (`pooling`, `max_pixels`, ...). Recipes write them
            directly under `model`; `null` is the family's default.
        sinks: File written by `tango analyze sinks`; `null` for the model's default sinks.
        sampling: Rule that selects the frames of a clip (`tango_core.video.sampling`); `null` for
            the rule of the benchmarks' protocol.
        encode_batch: Number of frames per batch of the vision tower, which limits its memory;
            `auto` adapts it to the free memory of the device. All values share one cache.
    """

    name: str = "tiny"
    path: Place | None = None
    num_frames: Annotated[int, Field(ge=1)] | None = None
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    revision: str | None = None
    saliency_from: Place | None = None
    options: dict[str, Any] = field(default_factory=dict)
    sinks: Place | None = None
    sampling: Sampling | None = None
    encode_batch: AutoOrNumber = "auto"


@dataclass(frozen=True, config=STRICT)
class DecodeSection:
    """How clips are decoded.

    Attributes:
        decoder: `auto | decord | pyav | torchcodec | torchcodec_cuda`; `auto` is PyAV. decord
            silently replaces damaged parts of a stream by other frames.
        timeout_s: Timeout of decoding one clip in seconds.
        memory_gib: Memory limit of one decoder in GiB.
        damaged: How to handle a clip in a damaged part of a stream: `fail`, or `keep` to answer it
            with the status `decode_damaged`, which is not a failure and is not cached.
        video_cache: Local directory on each node for videos downloaded from an object store, and
            for indices of long videos.
        video_cache_gib: Maximum size of this directory in GiB.
    """

    decoder: DecoderName = "auto"
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 120
    memory_gib: Annotated[float, Field(ge=0.5, le=1_048_576)] = 4
    damaged: Literal["fail", "keep"] = "fail"
    video_cache: str = "~/.cache/tango-video"
    video_cache_gib: Annotated[float, Field(gt=0)] = 50


@dataclass(frozen=True, config=STRICT)
class AnswerSection:
    """How the language model answers questions.

    Attributes:
        batch_tokens: Maximum number of prompt and reply tokens in one batch, over clips and
            methods; `auto` depends on the model and its device, 1 answers one clip and method after
            the other.
    """

    batch_tokens: AutoOrNumber = "auto"


@dataclass(frozen=True, config=STRICT)
class CacheSection:
    """What is cached besides the token sets.

    Attributes:
        features: Encoder outputs to store: `none`, `tokens`, or `all` (also all signals of the
            model). With stored features a new method needs no decoding and no encoding.
        feature_dtype: Type of the stored tokens: `auto` for the encoder's type, or `int8`, which
            halves the size of bfloat16; token sets computed from int8 have separate caches.
    """

    features: Literal["none", "tokens", "all"] = "none"
    feature_dtype: Literal["auto", "int8"] = "auto"

    def __post_init__(self) -> None:
        """Refuse a feature dtype if no features are stored."""
        if self.features == "none" and self.feature_dtype != "auto":
            raise InputError(
                f"cache.feature_dtype {self.feature_dtype} needs a feature store; "
                "set cache.features to tokens or all"
            )


@dataclass(frozen=True, config=STRICT)
class TrackingSection:
    """How a job is shown in MLflow while it runs.

    Attributes:
        every_s: Seconds between two points of its metrics.
    """

    every_s: Annotated[float, Field(ge=0.1, le=3600)] = 10


@dataclass(frozen=True, config=STRICT)
class ClusterSection:
    """Timeouts for Ray.

    Attributes:
        start_timeout_s: Seconds to wait for Ray to start, or for a cluster to accept the job.
        lost_timeout_s: Seconds to wait for a replacement if a lost node leaves too few resources
            for the pools; then the job ends.
    """

    start_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 120
    lost_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 300


def with_model_options(content: Mapping[str, Any], common: Collection[str]) -> Mapping[str, Any]:
    """Move the options of the model's family to `model.options`.

    Unknown keys are not moved; the schema refuses them later. For a model from another package,
    all keys outside of `common` are options, which its family checks when the model is described.

    Args:
        content: The recipe parsed from YAML.
        common: Keys that every model has.

    Raises:
        InputError: If the model's family does not have the option, or a value is wrong.
    """
    model = content.get("model")
    if not isinstance(model, Mapping):
        return content
    if "options" in model:
        raise InputError("unknown key 'model.options'; write its keys directly under model")
    name = model.get("name", "tiny")
    ours = isinstance(name, str) and name in MODELS
    known = names_of_options() if ours else set(model) - set(common)
    options = {key: value for key, value in model.items() if key in known and value is not None}
    if ours:
        model_options(name, options)
    rest = {key: value for key, value in model.items() if key not in known}
    return {**content, "model": {**rest, "options": options}}


def flat_model(section: Mapping[str, Any]) -> dict[str, Any]:
    """The section `model` in recipe form, without nesting; unset options are `None`."""
    common = {key: value for key, value in section.items() if key != "options"}
    return {**common, **dict.fromkeys(names_of_options()), **section["options"]}
