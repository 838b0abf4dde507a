"""The table of models; describe an entry, load its encoder, load its language model.

A model is two halves that load separately; a description needs neither of them. Adding a model is
one line in `MODELS` and, if its architecture is new, one module with the functions `describe`,
`load_encoder` and `load_language_model`, and `LMMS_EVAL`: what lmms-eval sets otherwise.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from inspect import signature
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from tango_core.models.base import (
    DecoderShape,
    LLMShape,
    LanguageModel,
    ModelRequest,
    ModelSpec,
    VisionEncoder,
)
from tango_core.models.llava.time_instruction import TIME_INSTRUCTIONS, TimeInstruction
from tango_core.models.sinks import SinkList, read_sinks
from tango_core.video import DecoderName
from tango_core.video.sampling import SAMPLINGS, Sampling

if TYPE_CHECKING:
    from types import ModuleType

    from tango_core.models.qwen2_5_vl.positions import PositionRule
    from tango_core.ops.saliency import Pooling

logger = logging.getLogger(__name__)

__all__ = [
    "MODELS",
    "DecoderShape",
    "LLMShape",
    "LanguageModel",
    "ModelEntry",
    "ModelSpec",
    "VisionEncoder",
    "describe_model",
    "harness_settings",
    "load_encoder",
    "load_language_model",
]

Dtype = Literal["auto", "float32", "float16", "bfloat16"]
Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class ModelEntry:
    """One line of `MODELS`.

    Attributes:
        family: Module below `tango_core.models` that knows the architecture.
        path: Hub id used when the caller gives no path; `None` for the embedded model, whose
            checkpoint `tango_core.models.tiny.embedded_checkpoint` finds or builds.
        num_frames: Frames per clip when the caller does not say: the setting of the publications.
    """

    family: str
    path: str | None
    num_frames: int


MODELS: Mapping[str, ModelEntry] = MappingProxyType(
    {
        "tiny": ModelEntry("llava.onevision", None, 8),
        "llava-onevision-7b": ModelEntry(
            "llava.onevision", "llava-hf/llava-onevision-qwen2-7b-ov-hf", 32
        ),
        "llava-video-7b": ModelEntry("llava.video", "lmms-lab/LLaVA-Video-7B-Qwen2", 64),
        "qwen2.5-vl-7b": ModelEntry("qwen2_5_vl.family", "Qwen/Qwen2.5-VL-7B-Instruct", 32),
    }
)


def describe_model(
    name: str,
    path: str | None = None,
    *,
    num_frames: int | None = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    decoder: DecoderName = "auto",
    revision: str | None = None,
    saliency_from: str | None = None,
    pooling: Pooling | None = None,
    time_instruction: TimeInstruction | None = None,
    max_pixels: int | None = None,
    position_rule: PositionRule | None = None,
    seconds_per_grid: float | None = None,
    sinks: str | None = None,
    sampling: Sampling | None = None,
) -> ModelSpec:
    """Describe a model from its configuration files; no weights are loaded.

    Args:
        name: Entry of `MODELS`.
        path: Local directory or hub id of a checkpoint of the same architecture, of any size;
            `None` for the entry's own.
        num_frames: Frames per clip; `None` for the entry's own.
        dtype: `"auto"` is the checkpoint's dtype where CUDA is available to this process and
            float32 elsewhere. It is resolved here, because cached tokens are stored in it.
        device: `"auto"` is decided in the process that loads the model.
        decoder: Video decoder, see `FrameSpec`.
        revision: Branch, tag or commit of a hub checkpoint; `None` for its main branch.
        saliency_from: SigLIP checkpoint (hub id or directory) whose pooling head ranks tokens, for
            towers that were published without one.
        pooling: How the tower's grid shrinks, `"average" | "bilinear"`; `None` for the family's
            own. Only for families that offer a choice (LLaVA-Video).
        time_instruction: Whose sentence about a clip's length and frames precedes the question,
            `"none" | "correct" | "vlmevalkit" | "lmms_eval"`; `None` for the family's own. Only for
            families that were trained with one (LLaVA-Video).
        max_pixels: Largest area of a frame in pixels, for families that keep a clip's shape
            (Qwen2.5-VL); `None` for the publications' 448 x 448.
        position_rule: Where text goes on behind a clip, `"hf450" | "hf5"`: as transformers up to
            4.5x or from 5 on; `None` for `"hf450"`, the publications'. Only for Qwen2.5-VL.
        seconds_per_grid: Seconds from one pair of frames to the next, as Qwen2.5-VL is told; `None`
            for 1.0, which the publications tell it of every clip.
        sinks: File of attention sinks that `tango analyze sinks` wrote; `None` for the checkpoint's
            own, or the published ones on their grid.
        sampling: Which frames of a clip, one of the rules of `sampling.frame_indices`; `None` for
            the rule of VLMEvalKit for the family.

    Raises:
        ValueError: If the name or an option is unknown, or the checkpoint is of another kind.
        FileNotFoundError: If the checkpoint is not there.
    """
    entry = _entry(name)
    if num_frames is not None and num_frames < 1:
        raise ValueError(f"model.num_frames must be 1 or larger, got {num_frames}")
    _raise_unless_one_of("model.dtype", dtype, ("auto", "float32", "float16", "bfloat16"))
    _raise_unless_one_of("model.device", device, ("auto", "cpu", "cuda"))
    _raise_unless_one_of("model.pooling", pooling, (None, "average", "bilinear"))
    _raise_unless_one_of("model.time_instruction", time_instruction, (None, *TIME_INSTRUCTIONS))
    _raise_unless_one_of("model.sampling", sampling, (None, *SAMPLINGS))
    _raise_unless_one_of("model.position_rule", position_rule, (None, "hf450", "hf5"))
    if seconds_per_grid is not None and not 0 < seconds_per_grid < math.inf:
        raise ValueError(
            f"model.seconds_per_grid must be a positive number, got {seconds_per_grid}"
        )
    family = _family(entry)
    choices = {
        "pooling": pooling,
        "time_instruction": time_instruction,
        "max_pixels": max_pixels,
        "position_rule": position_rule,
        "seconds_per_grid": seconds_per_grid,
    }
    request = ModelRequest(
        name=name,
        path=path or entry.path or _embedded_checkpoint(),
        num_frames=num_frames or entry.num_frames,
        dtype=dtype,
        device=device,
        decoder=decoder,
        revision=revision,
        saliency_from=saliency_from,
    )
    spec: ModelSpec = family.describe(request, **_choices_of(name, family, choices))
    if sampling is not None:
        spec = replace(spec, frames=replace(spec.frames, sampling=sampling))
    return spec if sinks is None else replace(spec, sinks=_sinks_for(spec, sinks))


def harness_settings(name: str, protocol: str) -> Mapping[str, Any]:
    """What a protocol's harness sets for a model otherwise than VLMEvalKit does.

    VLMEvalKit's settings are the defaults of `describe_model`.

    Args:
        name: Entry of `MODELS`.
        protocol: Name of a benchmark's protocol, e.g. `"lmms_eval"`.

    Returns:
        Arguments of `describe_model`: which frames the model is shown, and whose sentence about
        them it reads.

    Raises:
        ValueError: If there is no such model.
    """
    family = _family(_entry(name))
    settings: Mapping[str, Any] = family.LMMS_EVAL if protocol.startswith("lmms_eval") else {}
    return settings


def load_encoder(model: ModelSpec | str, path: str | None = None, **options: Any) -> VisionEncoder:
    """Load tower, projector and pooling; no weight of the language model is read.

    Args:
        model: A description, or a name with the arguments of `describe_model`.
        path: As in `describe_model`.
        options: As in `describe_model`.
    """
    spec = _spec(model, path, options)
    encoder: VisionEncoder = _family(_entry(spec.name)).load_encoder(spec)
    return encoder


def load_language_model(
    model: ModelSpec | str, path: str | None = None, **options: Any
) -> LanguageModel:
    """Load embedding, decoder and output projection; no weight of the vision tower is read.

    Args:
        model: A description, or a name with the arguments of `describe_model`.
        path: As in `describe_model`.
        options: As in `describe_model`.
    """
    spec = _spec(model, path, options)
    language_model: LanguageModel = _family(_entry(spec.name)).load_language_model(spec)
    return language_model


def _spec(model: ModelSpec | str, path: str | None, options: dict[str, Any]) -> ModelSpec:
    """Turn a name into a description; a description only takes a new `device`.

    With the device `meta` the checkpoint is compared with its configuration and no value is read.
    """
    if isinstance(model, str):
        return describe_model(model, path, **options)
    if path is not None or set(options) - {"device"}:
        raise TypeError("a ModelSpec is complete: pass a model's name to choose path and options")
    return replace(model, **options)


def _sinks_for(spec: ModelSpec, path: str) -> SinkList:
    """Sinks from a file, checked against the model's grid where that is known by now."""
    sinks = read_sinks(path)
    if spec.grid is not None:
        sinks.on(spec.grid, spec.name)
    if sinks.digest and sinks.digest != spec.digest:
        logger.warning("model.sinks %s was made with another checkpoint than %s", path, spec.path)
    return sinks


def _entry(name: str) -> ModelEntry:
    """Look a model up by name."""
    if name not in MODELS:
        raise ValueError(f"unknown model.name {name!r}; choose one of: {', '.join(MODELS)}")
    return MODELS[name]


def _family(entry: ModelEntry) -> ModuleType:
    """Import the module of an architecture, and with it torch and transformers."""
    return import_module(f"tango_core.models.{entry.family}")


def _embedded_checkpoint() -> str:
    """Directory of the embedded model."""
    from tango_core.models.tiny import embedded_checkpoint

    return str(embedded_checkpoint())


def _choices_of(name: str, family: ModuleType, choices: Mapping[str, Any]) -> dict[str, Any]:
    """The choices that were made, after checking that the family offers them."""
    made = {setting: value for setting, value in choices.items() if value is not None}
    for setting in made:
        if setting not in signature(family.describe).parameters:
            raise ValueError(f"model.{setting} is no setting of model {name}; leave it out")
    return made


def _raise_unless_one_of(setting: str, value: str | None, allowed: tuple[str | None, ...]) -> None:
    """Refuse a value that is not in the list."""
    if value not in allowed:
        listed = ", ".join(one for one in allowed if one is not None)
        raise ValueError(f"{setting} must be one of {listed}, got {value!r}")
