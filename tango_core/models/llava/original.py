"""Configuration of LLaVA checkpoints as their authors publish them (`LlavaQwenForCausalLM`).

Their `model_type` is `llava_qwen` (LLaVA-Video) or `llava` (`lmms-lab/llava-onevision-qwen2-*-ov`).
transformers uses the second for another architecture, so `architectures` decides.

Their config.json holds the fields of Qwen2 side by side with LLaVA's own, and names the vision
tower instead of describing it. What the tower looks like is taken from the first of these:

1. `vision_config` in config.json, an object with the fields of `SiglipVisionConfig`, for the tower
   as it is stored. The published checkpoints do not have it.
2. `mm_vision_tower`, if it is a directory (its path may be relative to the checkpoint): the SigLIP
   described by its config.json, without its last block and its pooling head, which LLaVA removes.
3. SigLIP so400m/14 at 384 pixels without these, if `mm_vision_tower` ends in its name (the hub id,
   or where it was on the authors' disk) or is absent. Nothing is downloaded for this.
4. Any other hub id, treated like a directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import LlavaOnevisionConfig, Qwen2Config, SiglipVisionConfig

from tango_core.models.checkpoints.directory import Checkpoint, resolve_checkpoint
from tango_core.models.llava.siglip_config import SIGLIP_OF_LLAVA, siglip_config

ORIGINAL_ARCHITECTURE = "LlavaQwenForCausalLM"
_ORIGINAL_MODEL_TYPE = "llava_qwen"

_SO400M = SiglipVisionConfig(
    hidden_size=1152,
    intermediate_size=4304,
    num_hidden_layers=27,
    num_attention_heads=16,
    image_size=384,
    patch_size=14,
)
# Read by `Qwen2Config`, but written by it under newer names.
_OLD_SPELLINGS = ("rope_theta", "rope_scaling", "torch_dtype")


def is_original(content: Mapping[str, Any]) -> bool:
    """Whether a config.json is one of LLaVA's authors with a Qwen2 language model."""
    return content.get("model_type") == _ORIGINAL_MODEL_TYPE or ORIGINAL_ARCHITECTURE in (
        content.get("architectures") or ()
    )


def original_config(checkpoint: Checkpoint) -> LlavaOnevisionConfig:
    """Configuration of an original checkpoint, as that of the architecture in transformers.

    Raises:
        ValueError: If projector or vision tower are of a kind that this project does not compute.
        FileNotFoundError: If the vision tower is described by a checkpoint that is not there.
    """
    content = checkpoint.config()
    for key, known in (("mm_projector_type", "mlp2x_gelu"), ("mm_resampler_type", None)):
        if content.get(key, known) != known:
            raise ValueError(
                f"{checkpoint.setting} {checkpoint.source}: {key} of config.json is "
                f"{content[key]!r}, but only {known!r} is supported; use another checkpoint"
            )
    names = set(Qwen2Config().to_dict()) - {"model_type", "architectures"}
    text = {key: content[key] for key in (*names, *_OLD_SPELLINGS) if key in content}
    return LlavaOnevisionConfig(
        text_config=Qwen2Config.from_dict(text),
        vision_config=_vision_config(checkpoint, content),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=bool(content.get("tie_word_embeddings", False)),
    )


def newline_position(checkpoint: Checkpoint) -> str | None:
    """Where an original checkpoint says that its newlines go; `None` if it does not say."""
    position = checkpoint.config().get("mm_newline_position")
    return None if position is None else str(position)


def _vision_config(checkpoint: Checkpoint, content: dict[str, Any]) -> SiglipVisionConfig:
    """The tower as it is stored."""
    if "vision_config" in content:
        return SiglipVisionConfig.from_dict(dict(content["vision_config"]))
    tower = str(content.get("mm_vision_tower") or SIGLIP_OF_LLAVA)
    inside = checkpoint.directory / tower
    if not inside.is_dir() and tower.endswith(SIGLIP_OF_LLAVA.partition("/")[2]):
        whole = _SO400M
    else:
        setting = f"{checkpoint.setting} {checkpoint.source}: mm_vision_tower"
        source = str(inside) if inside.is_dir() else tower
        whole = siglip_config(resolve_checkpoint(source, setting=setting))
    return SiglipVisionConfig.from_dict(
        {
            **whole.to_dict(),
            "num_hidden_layers": whole.num_hidden_layers - 1,
            "vision_use_head": False,
        }
    )
