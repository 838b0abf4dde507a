"""Sections of a recipe: one frozen dataclass per top-level key that has keys of its own."""

from __future__ import annotations

import os
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic.dataclasses import dataclass

from pipeline.storage.urls import raise_if_secret
from tango_core.errors import InputError
from tango_core.video.sampling import Sampling

STRICT = ConfigDict(extra="forbid")
"""Unknown keys are errors."""
ELSEWHERE = "elsewhere"
"""Context of a recipe that another machine runs: its paths are that machine's."""


def _expanded(place: str, info: ValidationInfo) -> str:
    """A path with a leading `~` replaced, if the job runs here; a URL as it is."""
    return place if "://" in place or info.context == ELSEWHERE else os.path.expanduser(place)


Place = Annotated[str, AfterValidator(_expanded)]
"""A path, in which a leading `~` is the home directory, or a URL."""


def _number_of(what: str) -> BeforeValidator:
    """Refuse what is neither, in the words of the setting instead of those of its two types."""

    def checked(value: object) -> object:
        if value == "auto" or (type(value) is int and value >= 1):
            return value
        raise InputError(f"must be auto, or a number of {what} from 1 on")

    return BeforeValidator(checked)


EncodeBatch = Annotated[int | Literal["auto"], _number_of("frames")]
"""Frames that go through the vision tower together."""
BatchTokens = Annotated[int | Literal["auto"], _number_of("tokens")]
"""Tokens that the language model works on together."""


@dataclass(frozen=True, config=STRICT)
class BenchmarkSection:
    """The clips and questions.

    Attributes:
        name: Entry of `BENCHMARKS`, or a class elsewhere: `my_package.my_module:MyBenchmark`.
        root: Directory (or table) of the benchmark's files, or a URL of a store; `null` for its own
            default.
        split: Split of the benchmark.
        seed: Random seed of a generated benchmark.
        protocol: The harness whose prompts and answer rules are used: `vlmevalkit` or `lmms_eval`,
            or a version of it, whose own score is recorded: `vlmevalkit@2026-05`.
        subtitles: Whether questions are put with the subtitles of their videos, in the words of the
            protocol, which must have some for the model.
    """

    name: str
    root: Place | None = None
    split: str = "test"
    seed: int = 0
    protocol: str = "vlmevalkit"
    subtitles: bool = False

    def __post_init__(self) -> None:
        """Refuse a URL with a password in it: recipes are copied and logged."""
        raise_if_secret(self.root or "")


@dataclass(frozen=True, config=STRICT)
class ModelSection:
    """Which Video LLM.

    Attributes:
        name: Entry of `MODELS`.
        path: Hub id or directory of a checkpoint; `null` for the entry's own.
        num_frames: Frames per clip; `null` for the entry's own. A list in a recipe for `tango
            sweep` stands for one run per number, as it does for `max_pixels` and `pooling_step`.
        dtype: `auto | float32 | float16 | bfloat16`.
        device: `auto | cpu | cuda`.
        revision: Branch, tag or commit of a hub checkpoint.
        saliency_from: SigLIP checkpoint with a pooling head, for towers that come without one.
        options: What only the family of the model can be told (`pooling`, `max_pixels`, ...). A
            recipe writes them directly under `model`; `null` is the family's own.
        sinks: File that `tango analyze sinks` wrote; `null` for the model's own sinks.
        sampling: Which frames of a clip, a rule of `tango_core.video.sampling`; `null` for the rule
            that the benchmarks' protocol has for the model.
        encode_batch: Frames that go through the vision tower together, which bounds its memory;
            `auto` is what fits into the free memory of the device. One cache serves all values.
        compile: Whether `torch.compile` is used for the blocks of the tower and for the prefill.
            One cache serves both values; a run is of one of them, as it is of one device.
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
    encode_batch: EncodeBatch = "auto"
    compile: bool = False


@dataclass(frozen=True, config=STRICT)
class DecodeSection:
    """How clips are decoded.

    Attributes:
        decoder: `auto | decord | pyav | torchcodec`; `auto` is PyAV. decord fills damaged parts of
            a stream with pictures of its own, which nothing can notice.
        timeout_s: Seconds after which decoding of a clip is stopped.
        memory_gib: Memory one decoder may use, in GiB.
        damaged: What to do with a clip whose stream is damaged where the clip is: `fail`, or `keep`
            to answer it under the status `decode_damaged`, which is no failure and is not cached.
        video_cache: Directory of each node that keeps videos fetched from a store.
        video_cache_gib: Bound of what it keeps, in GiB.
    """

    decoder: Literal["auto", "decord", "pyav", "torchcodec"] = "auto"
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 120
    memory_gib: Annotated[float, Field(ge=0.5, le=1_048_576)] = 4
    damaged: Literal["fail", "keep"] = "fail"
    video_cache: str = "~/.cache/tango-video"
    video_cache_gib: Annotated[float, Field(gt=0)] = 50


@dataclass(frozen=True, config=STRICT)
class AnswerSection:
    """How questions are put to the language model.

    Attributes:
        batch_tokens: Tokens of prompts and replies that an actor works on at once, over clips and
            methods; `auto` chooses by the model and its device, 1 answers one clip and method after
            the other.
    """

    batch_tokens: BatchTokens = "auto"


@dataclass(frozen=True, config=STRICT)
class CacheSection:
    """What is stored beside the token sets.

    Attributes:
        features: What the encoder gave: `none`, `tokens`, or `all` with every signal that the model
            provides. A method that is new to the cache then needs no decoding and no encoding.
        feature_dtype: How its tokens are stored: `auto` as the encoder gave them, or `int8`, in
            half the bytes of bfloat16; token sets that come from those have caches of their own.
    """

    features: Literal["none", "tokens", "all"] = "none"
    feature_dtype: Literal["auto", "int8"] = "auto"

    def __post_init__(self) -> None:
        """Refuse a dtype of what is not stored."""
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
    """How long Ray is waited for.

    Attributes:
        start_timeout_s: Seconds that Ray may take to start, or a cluster to let the job in.
        lost_timeout_s: Seconds that a cluster may lack the room for the pools, because a node was
            lost and none has come in its place, before the job ends.
    """

    start_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 120
    lost_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 300
