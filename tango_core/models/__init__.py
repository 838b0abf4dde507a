"""The table of models; describe an entry, load its encoder, load its language model.

A model has two halves that load separately; describing it loads neither. README.md explains how to
add a model, here or in another package.

Packages and modules, each importing only from those before it:

    options, base, family                interfaces: no family, no transformers
    placement, memory_faults, kernels    devices and kernels
    checkpoints/                         directories, tensors, tokenizers
    language/                            prompts, chat text, the engine
    towers/, language_half               shared parts of all families' halves
    internvl/, llava/, qwen*_vl/         a package per family; none imports another
    tiny                                 the built-in model
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from tango_core.errors import InputError
from tango_core.extensions import load_extension
from tango_core.models.base import LanguageModel, ModelSpec, VisionEncoder
from tango_core.models.family import ModelEntry, ModelFamily, ModelRequest
from tango_core.models.options import (
    EncodeBatch,
    EngineName,
    FamilyOptions,
    checked_options,
    option_names,
    raise_unless_one_of,
    read_sinks,
)
from tango_core.video import DecoderName
from tango_core.video.sampling import SAMPLINGS, Sampling

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "MODELS",
    "FamilyOptions",
    "LanguageModel",
    "ModelEntry",
    "ModelFamily",
    "ModelSpec",
    "VisionEncoder",
    "describe_model",
    "harness_settings",
    "load_encoder",
    "load_language_model",
    "model_entry",
    "model_options",
    "names_of_options",
]

Dtype = Literal["auto", "float32", "float16", "bfloat16"]
Device = Literal["auto", "cpu", "cuda"]

_INTERNVL = "tango_core.models.internvl"
_LLAVA = "tango_core.models.llava"
_QWEN = "tango_core.models.qwen2_5_vl"
_QWEN3 = "tango_core.models.qwen3_vl"
MODELS: Mapping[str, ModelEntry] = MappingProxyType(
    {
        "tiny": ModelEntry(f"{_LLAVA}.onevision", None, 8, embedded=True),
        "llava-onevision-7b": ModelEntry(
            f"{_LLAVA}.onevision", "llava-hf/llava-onevision-qwen2-7b-ov-hf", 32
        ),
        "llava-video-7b": ModelEntry(f"{_LLAVA}.video", "lmms-lab/LLaVA-Video-7B-Qwen2", 64),
        "qwen2.5-vl-7b": ModelEntry(f"{_QWEN}.family", "Qwen/Qwen2.5-VL-7B-Instruct", 32),
        "qwen3-vl-8b": ModelEntry(f"{_QWEN3}.family", "Qwen/Qwen3-VL-8B-Instruct", 32),
        "qwen3.5-9b": ModelEntry(f"{_QWEN3}.qwen3_5", "Qwen/Qwen3.5-9B", 32),
        "internvl3.5-8b": ModelEntry(f"{_INTERNVL}.family", "OpenGVLab/InternVL3_5-8B-HF", 32),
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
    sinks: str | None = None,
    sampling: Sampling | None = None,
    encode_batch: EncodeBatch = "auto",
    engine: EngineName = "native",
    **options: Any,
) -> ModelSpec:
    """Describe a model from its configuration files; no weights are loaded.

    Args:
        name: Entry of `MODELS`, entry point of the group `tango_video.models`, or
            `my_package.my_module:my_entry`, a `ModelEntry`.
        path: Local directory or hub id of a checkpoint of the same architecture, of any size;
            `None` for the entry's default.
        num_frames: Frames per clip; `None` for the entry's default.
        dtype: `"auto"` is bfloat16 where CUDA is available to this process and float32 elsewhere.
            It is resolved here, because it is the type of cached tokens.
        device: `"auto"` is resolved in the process that loads the model.
        decoder: Library that decodes videos, see `FrameSpec`.
        revision: Branch, tag or commit of a hub checkpoint; `None` for its main branch.
        saliency_from: SigLIP checkpoint (hub id or directory) whose pooling head ranks tokens, for
            towers that were published without one.
        sinks: File of attention sinks written by `tango analyze sinks`; `None` for the
            checkpoint's sinks, or the published ones on their grid.
        sampling: Rule of `sampling.frame_indices` that selects the frames; `None` for
            VLMEvalKit's rule for the family.
        encode_batch: Frames that go through the tower together; `"auto"` is what fits into the
            free memory of its device. It limits memory and changes tokens only by rounding.
        engine: What generates replies: this package's `"native"`, or `"vllm"`, for families whose
            tokens have one position each and methods before the language model; vLLM must be
            installed where the language model is loaded.
        **options: Options that only the family has: `pooling_step` of the LLaVA models
            (`LlavaOptions`), `pooling` and `time_instruction` of LLaVA-Video (`LlavaVideoOptions`);
            `max_pixels`, `frame_area`, `position_rule` and `seconds_per_grid` of Qwen2.5-VL
            (`QwenOptions`); `max_pixels`, `min_pixels`, `frame_area`, `empty_blocks`,
            `outer_marks`, `system_turn`, `companions` and `frame_times` of Qwen3-VL
            (`Qwen3Options`), the same but `companions` of Qwen3.5 (`StampedOptions`);
            `frame_label` and `empty_blocks` of InternVL (`InternVLOptions`).
            `None` is the family's default.

    Raises:
        ValueError: If the name or an option is unknown, or the checkpoint is of another kind.
        FileNotFoundError: If the checkpoint does not exist.
    """
    entry = model_entry(name)
    if num_frames is not None and num_frames < 1:
        raise InputError(f"model.num_frames must be 1 or larger, got {num_frames}")
    for setting, value, allowed in (
        ("model.dtype", dtype, get_args(Dtype)),
        ("model.device", device, get_args(Device)),
        ("model.sampling", sampling, (None, *SAMPLINGS)),
        ("engine", engine, get_args(EngineName)),
    ):
        raise_unless_one_of(setting, value, allowed)
    if encode_batch != "auto" and (not isinstance(encode_batch, int) or encode_batch < 1):
        raise InputError(f"model.encode_batch must be auto, 1 or larger, got {encode_batch!r}")
    family = entry.load_family()
    if engine not in family.engines:
        raise InputError(f"engine {engine} does not serve model {name}; set engine to native")
    if not path and entry.embedded:
        from tango_core.models.tiny import embedded_checkpoint

        path = str(embedded_checkpoint())
    path = path or entry.path
    if path is None:
        raise InputError(f"model {name} has no checkpoint of its own; set model.path")
    request = ModelRequest(
        name=name,
        path=path,
        num_frames=num_frames or entry.num_frames,
        dtype=dtype,
        device=device,
        decoder=decoder,
        revision=revision,
        saliency_from=saliency_from,
    )
    spec = family.describe(request, checked_options(family.options, name, options))
    own_sinks = None if sinks is None else read_sinks(sinks)
    if own_sinks is not None and spec.grid is not None:
        own_sinks.on(spec.grid, name)
    return replace(
        spec,
        frames=replace(spec.frames, sampling=sampling or spec.frames.sampling),
        encode_batch=encode_batch,
        source_digest=entry.digest_of_sources(),
        engine=engine,
        sinks=own_sinks,
    )


def model_entry(name: str) -> ModelEntry:
    """Find a model in `MODELS`, among entry points, or as `my_package.my_module:my_entry`.

    Raises:
        ValueError: If there is no such model.
    """
    if name in MODELS:
        return MODELS[name]
    return load_extension("model", "model.name", name, MODELS)  # type: ignore[no-any-return]


def model_options(name: str, options: Mapping[str, Any]) -> FamilyOptions:
    """Check the family-specific options of a model, without heavy imports.

    Args:
        name: As in `describe_model`.
        options: As in `describe_model`.

    Raises:
        ValueError: If the model or an option is unknown, or a value is wrong.
    """
    return checked_options(model_entry(name).load_family().options, name, options)


def names_of_options() -> tuple[str, ...]:
    """Names of the options of all families in `MODELS`."""
    families = [entry.load_family() for entry in MODELS.values()]
    return tuple(dict.fromkeys(name for one in families for name in option_names(one.options)))


def harness_settings(name: str, protocol: str) -> Mapping[str, Any]:
    """Settings of a protocol's harness for a model that differ from VLMEvalKit's.

    VLMEvalKit's settings are the defaults of `describe_model`.

    Args:
        name: As in `describe_model`.
        protocol: Name of a benchmark's protocol, e.g. `"lmms_eval"`.

    Returns:
        Arguments of `describe_model`: frame sampling, and the text about frames and time.

    Raises:
        ValueError: If there is no such model.
    """
    return model_entry(name).load_family().harness_settings(protocol)


def load_encoder(model: ModelSpec | str, path: str | None = None, **options: Any) -> VisionEncoder:
    """Load tower, projector and pooling; no weight of the language model is read.

    Args:
        model: A description, or a name with the arguments of `describe_model`.
        path: As in `describe_model`.
        options: As in `describe_model`.

    Raises:
        ValueError: If the GPU does not compute in the model's dtype.
    """
    spec = _placed(model, path, options)
    return model_entry(spec.name).load_family().load_encoder(spec)


def load_language_model(
    model: ModelSpec | str, path: str | None = None, **options: Any
) -> LanguageModel:
    """Load embedding, layers and output projection; no weight of the tower is read.

    Args:
        model: A description, or a name with the arguments of `describe_model`.
        path: As in `describe_model`.
        options: As in `describe_model`.

    Raises:
        ValueError: If the GPU does not compute in the model's dtype.
    """
    spec = _placed(model, path, options)
    return model_entry(spec.name).load_family().load_language_model(spec)


def load_question_embedder(model: ModelSpec) -> Callable[[str], Tensor]:
    """Load what turns a question into (M, D) input embeddings; no layer is loaded.

    Args:
        model: From `describe_model`.

    Raises:
        ValueError: If the family does not support it.
    """
    return model_entry(model.name).load_family().load_question_embedder(model)


def _placed(model: ModelSpec | str, path: str | None, options: dict[str, Any]) -> ModelSpec:
    """Describe the model to load, and check that its device supports its dtype.

    Of a given description only `device` can be changed. With the device `meta`, the checkpoint is
    checked against its configuration without reading weights.
    """
    from tango_core.models.placement import raise_if_not_computed  # imports torch

    if isinstance(model, str):
        spec = describe_model(model, path, **options)
    else:
        spec = replace(model, **options)
    raise_if_not_computed(spec.dtype, spec.device)
    return spec
