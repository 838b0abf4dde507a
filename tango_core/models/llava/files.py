"""Reads LLaVA checkpoints in the layout of llava-hf or of LLaVA's authors.

The authors' architecture is `LlavaQwenForCausalLM`. Their `model_type` is `llava_qwen` or `llava`;
transformers uses the second for another architecture, so `architectures` decides.

Their config.json mixes the fields of Qwen2 and LLaVA, and only names the vision tower. The tower's
configuration is taken from the first of these:

1. `vision_config` in config.json, an object with the fields of `SiglipVisionConfig`, for the tower
   as it is stored. The published checkpoints do not have it.
2. `mm_vision_tower`, if it is a directory (its path may be relative to the checkpoint): the SigLIP
   described by its config.json, without its last block and its pooling head, which LLaVA removes.
3. SigLIP so400m/14 at 384 pixels without these, if `mm_vision_tower` ends in its name (the hub id,
   or a path on the authors' disk) or is absent. Nothing is downloaded for this.
4. Any other hub id, treated like a directory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from transformers import LlavaOnevisionConfig, Qwen2Config, SiglipVisionConfig

from tango_core.errors import InputError
from tango_core.models.checkpoints.directory import Checkpoint, resolve_checkpoint, weights_digest
from tango_core.models.family import ModelRequest
from tango_core.models.files import FamilyFiles
from tango_core.models.language.chat import QWEN_1_5
from tango_core.models.llava.family import LlavaOptions
from tango_core.ops.saliency import pooled_grid
from tango_core.video import FrameSpec

SIGLIP_OF_LLAVA = "google/siglip-so400m-patch14-384"
# AOT ranks by the attention of this block (from 0) and of the second-last one that is run.
SHALLOW_BLOCK = 5
BLOCK_SIGNALS = frozenset({"shallow_attention", "deep_attention"})
ORIGINAL_ARCHITECTURE = "LlavaQwenForCausalLM"
_ORIGINAL_MODEL_TYPE = "llava_qwen"
# Settings of the original code, with the only supported value, which is also the default.
_KNOWN = {"mm_projector_type": "mlp2x_gelu", "mm_resampler_type": None}

_SO400M = SiglipVisionConfig(
    hidden_size=1152,
    intermediate_size=4304,
    num_hidden_layers=27,
    num_attention_heads=16,
    image_size=384,
    patch_size=14,
)
# Field names that `Qwen2Config` reads but no longer writes.
_OLD_SPELLINGS = ("rope_theta", "rope_scaling", "torch_dtype")


def is_original(content: Mapping[str, Any]) -> bool:
    """Whether a config.json is one of LLaVA's authors with a Qwen2 language model."""
    return content.get("model_type") == _ORIGINAL_MODEL_TYPE or ORIGINAL_ARCHITECTURE in (
        content.get("architectures") or ()
    )


class LlavaFiles(FamilyFiles):
    """Names of tensors in original checkpoints, in older ones of llava-hf, and today's."""

    title = "LLaVA-OneVision or LLaVA-Video"
    kinds = f"'llava_onevision' (llava-hf) or {ORIGINAL_ARCHITECTURE} (lmms-lab)"
    chat = QWEN_1_5
    mean = std = (0.5, 0.5, 0.5)
    language = ("model.language_model.", "model.image_newline", "lm_head.")
    has_newline = True
    ranks_itself = False
    renames = (
        (re.compile(r"^model\.vision_tower\.vision_tower\."), "model.vision_tower."),
        (re.compile(r"^model\.mm_projector\.0\."), "model.multi_modal_projector.linear_1."),
        (re.compile(r"^model\.mm_projector\.2\."), "model.multi_modal_projector.linear_2."),
        (re.compile(r"^model\.(embed_tokens|layers|norm)\."), r"model.language_model.\1."),
        (re.compile(r"^language_model\.lm_head\."), "lm_head."),
        (re.compile(r"^language_model\.model\."), "model.language_model."),
        (re.compile(r"^(vision_tower|multi_modal_projector|image_newline)"), r"model.\1"),
        (re.compile(r"^model\.vision_tower\.vision_model\."), "model.vision_tower."),
    )

    def config_of(self, checkpoint: Checkpoint, content: dict[str, Any]) -> Any:
        """See `FamilyFiles.config_of`.

        Raises:
            FileNotFoundError: If the vision tower of an original checkpoint does not exist.
        """
        if is_original(content):
            return _original_config(checkpoint, content)
        if content.get("model_type") == "llava_onevision":
            return LlavaOnevisionConfig.from_dict(content)
        return None

    def limits(self, config: Any) -> tuple[tuple[str, Any, tuple[Any, ...]], ...]:
        """See `FamilyFiles.limits`."""
        tower, strategy = config.vision_config.model_type, config.vision_feature_select_strategy
        original = (
            (name, getattr(config, name, known), (known,)) for name, known in _KNOWN.items()
        )
        return (
            *original,
            ("model_type of vision_config", tower, ("siglip_vision_model",)),
            ("vision_feature_select_strategy", strategy, ("full",)),
        )

    def facts(
        self, checkpoint: Checkpoint, config: Any, request: ModelRequest, options: LlavaOptions
    ) -> dict[str, Any]:
        """Frames of a fixed size, and signals of a pooling head; see `FamilyFiles.facts`."""
        vision, source = config.vision_config, request.saliency_from
        digest = weights_digest(checkpoint)
        provides = {"attention", "keys", "tower_tokens", "unpooled_tokens"}
        if options.merging_blocks:
            provides.add("merged_attention")
            last = used_blocks(config) - 2
            if options.merging_blocks[-1] > last:
                raise InputError(
                    f"model.merge_layers must be blocks of 0 to {last}, got {options.merge_layers}"
                )
        elif vision.num_hidden_layers > SHALLOW_BLOCK + 2:
            provides |= BLOCK_SIGNALS
        if source is not None:
            head = resolve_checkpoint(source, setting="model.saliency_from")
            digest = f"{digest}+{weights_digest(head)}"
        if vision.vision_use_head or source is not None:
            provides |= {"saliency", "frame_embeddings"}
        side, step = vision.image_size // vision.patch_size, options.pooling_step
        if step > side:
            raise InputError(
                f"model.pooling_step must be at most the {side} positions of a side of the tower's "
                f"grid, got {step}"
            )
        return {
            "digest": digest,
            "provides": frozenset(provides),
            "saliency_from": source,
            "saliency_source": SIGLIP_OF_LLAVA,
            "grid": pooled_grid((side, side), options.pooling, step),
            "frames": FrameSpec(
                num_frames=request.num_frames,
                size=(vision.image_size, vision.image_size),
                sampling="truncate",
                decoder=request.decoder,
            ),
        }

    def note(self, checkpoint: Checkpoint, request: ModelRequest, options: LlavaOptions) -> str:
        """Note if an original checkpoint was trained for another family."""
        position = checkpoint.config().get("mm_newline_position")
        if position in (None, options.newlines):
            return ""
        return (
            f"the checkpoint was trained with mm_newline_position {str(position)!r}, but model "
            f"{request.name} uses {options.newlines!r}: check model.name"
        )


FILES = LlavaFiles()


def siglip_config(checkpoint: Checkpoint) -> SiglipVisionConfig:
    """The vision configuration of a SigLIP checkpoint, whole or vision only."""
    content = checkpoint.config()
    return SiglipVisionConfig.from_dict(dict(content.get("vision_config", content)))


def _original_config(checkpoint: Checkpoint, content: dict[str, Any]) -> LlavaOnevisionConfig:
    """Configuration of an original checkpoint, as that of the architecture in transformers."""
    names = set(Qwen2Config().to_dict()) - {"model_type", "architectures"}
    text = {key: content[key] for key in (*names, *_OLD_SPELLINGS) if key in content}
    return LlavaOnevisionConfig(
        text_config=Qwen2Config.from_dict(text),
        vision_config=_vision_config(checkpoint, content),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=bool(content.get("tie_word_embeddings", False)),
        **{name: content[name] for name in _KNOWN if name in content},
    )


def _vision_config(checkpoint: Checkpoint, content: dict[str, Any]) -> SiglipVisionConfig:
    """Configuration of the stored tower."""
    if "vision_config" in content:
        return SiglipVisionConfig.from_dict(dict(content["vision_config"]))
    tower = str(content.get("mm_vision_tower") or SIGLIP_OF_LLAVA)
    inside = checkpoint.directory / tower
    if not inside.is_dir() and tower.endswith(SIGLIP_OF_LLAVA.partition("/")[2]):
        whole = _SO400M
    else:
        setting = f"{checkpoint.name}: mm_vision_tower"
        source = str(inside) if inside.is_dir() else tower
        whole = siglip_config(resolve_checkpoint(source, setting=setting))
    return SiglipVisionConfig.from_dict(
        {
            **whole.to_dict(),
            "num_hidden_layers": whole.num_hidden_layers - 1,
            "vision_use_head": False,
        }
    )


def used_blocks(config: Any) -> int:
    """Number of blocks up to the one whose output the model uses.

    `vision_feature_layer` is an index into [embeddings, output of block 1, ...]. LLaVA removes
    SigLIP's last block and takes -1: the output of block 26 of 27.

    Raises:
        ValueError: If no block is selected.
    """
    layer, total = config.vision_feature_layer, config.vision_config.num_hidden_layers
    used = layer % (total + 1) if isinstance(layer, int) else 0
    if not used:
        raise InputError(
            f"vision_feature_layer {layer} of config.json is none of the {total} blocks"
        )
    return int(used)
