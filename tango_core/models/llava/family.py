"""The LLaVA families: options, and checkpoints in the layout of llava-hf or of LLaVA's authors.

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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tango_core.errors import InputError
from tango_core.models.family import CheckpointFamily, ModelRequest
from tango_core.models.language.chat import QWEN_1_5
from tango_core.models.options import EngineName, FamilyOptions
from tango_core.video import FrameSpec

if TYPE_CHECKING:
    from transformers import SiglipVisionConfig

    from tango_core.models.checkpoints.directory import Checkpoint

SIGLIP_OF_LLAVA = "google/siglip-so400m-patch14-384"
# AOT ranks by the attention of this block (from 0) and of the second-last one that is run.
SHALLOW_BLOCK = 5
BLOCK_SIGNALS = frozenset({"shallow_attention", "deep_attention"})
_ORIGINAL_ARCHITECTURE = "LlavaQwenForCausalLM"
# Settings of the original code, with the only supported value, which is also the default.
_KNOWN = (("mm_projector_type", ("mlp2x_gelu",)), ("mm_resampler_type", (None,)))

_SO400M = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 384,
    "patch_size": 14,
}
# Field names that `Qwen2Config` reads but no longer writes.
_OLD_SPELLINGS = ("rope_theta", "rope_scaling", "torch_dtype")
# Published number of tower positions per token along each axis.
PUBLISHED_STEP = 2
# Where newline tokens go among the tokens of a clip, see `layout.lay_out_clip`.
Newlines = Literal["one_token", "grid"]
# Source of the sentence about a clip's length and frames before the question.
TimeInstruction = Literal["none", "correct", "vlmevalkit", "lmms_eval"]


@dataclass(frozen=True)
class LlavaOptions(FamilyOptions):
    """Options of LLaVA-OneVision.

    Attributes:
        newlines: Where newline tokens go among a clip's tokens (`layout.lay_out_clip`).
        pooling: How the grid of the tower shrinks.
        time_instruction: Source of the sentence about a clip's length and frames before the
            question (`layout.time_instruction`). Cached tokens do not depend on it.
        pooling_step: Number of tower positions per token along each axis, 2 as published. A larger
            step gives fewer tokens from the same pixels, as the tower's input size is fixed.
        merge_layers: 0-based blocks of the tower behind which similar frames are merged (EarlyTom,
            `towers/frame_merging.py`), e.g. `"6,21,23"`; `None` for none.
        merge_threshold: Similarity in [-1, 1] below which a group of frames ends.
        merge_momentum: Weight in (0, 1] of the newest frame in the average of similarities.
        merge_window: Most frames of a group, 2 or more.
    """

    newlines: Newlines = field(default="one_token", init=False)
    pooling: Literal["average", "bilinear"] = field(default="bilinear", init=False)
    time_instruction: TimeInstruction = field(default="none", init=False)
    pooling_step: int = PUBLISHED_STEP
    merge_layers: str | None = None
    merge_threshold: float = 0.6
    merge_momentum: float = 0.9
    merge_window: int = 8

    def __post_init__(self) -> None:
        """Check ranges; the grid and the blocks are checked against the checkpoint later."""
        ascending = ",".join(str(block) for block in sorted(set(self.merging_blocks)))
        if self.merge_layers is not None and self.merge_layers != ascending:
            raise InputError(
                f"model.merge_layers must be ascending, as '6,21,23', got {self.merge_layers!r}"
            )
        for name, is_inside, allowed in (
            ("pooling_step", self.pooling_step >= PUBLISHED_STEP, "2 or larger"),
            ("merge_threshold", -1 <= self.merge_threshold <= 1, "in [-1, 1]"),
            ("merge_momentum", 0 < self.merge_momentum <= 1, "in (0, 1]"),
            ("merge_window", self.merge_window >= 2, "2 or larger"),
        ):
            if not is_inside:
                raise InputError(f"model.{name} must be {allowed}, got {getattr(self, name)}")

    @property
    def merging_blocks(self) -> tuple[int, ...]:
        """The blocks of `merge_layers`."""
        return tuple(int(layer) for layer in re.findall(r"\d+", self.merge_layers or ""))

    @property
    def merging(self) -> dict[str, Any]:
        """Arguments of `merge_frames`."""
        return {
            "threshold": self.merge_threshold,
            "momentum": self.merge_momentum,
            "window": self.merge_window,
        }

    def identity(self) -> dict[str, Any]:
        """The pooling, its step unless it is the published one, and the merging if there is any."""
        step = {} if self.pooling_step == PUBLISHED_STEP else {"pooling_step": self.pooling_step}
        blocks = list(self.merging_blocks)
        merged = {"merging": {"blocks": blocks, **self.merging}} if blocks else {}
        return {"pooling": self.pooling, **step, **merged}

    def input_size(self) -> str:
        """The pooling step, if it is not the published one, and the merging of frames."""
        step = self.pooling_step
        sizes = [] if step == PUBLISHED_STEP else [f"pooling_step={step}"]
        if self.merge_layers is not None:
            sizes.append(f"merge_layers={self.merge_layers}")
        return " ".join(sizes)


@dataclass(frozen=True)
class LlavaVideoOptions(LlavaOptions):
    """Options of LLaVA-Video; the defaults are the published ones.

    Attributes:
        newlines: As for LLaVA-OneVision.
        pooling: `"average"`, 27 x 27 to 13 x 13, or `"bilinear"`, to 14 x 14.
        time_instruction: `"none" | "correct" | "vlmevalkit" | "lmms_eval"`.
        pooling_step: As for LLaVA-OneVision.
    """

    newlines: Newlines = field(default="grid", init=False)
    pooling: Literal["average", "bilinear"] = "average"
    time_instruction: TimeInstruction = "vlmevalkit"


@dataclass(frozen=True)
class LlavaFamily(CheckpointFamily):
    """Models with SigLIP, two-layer projector, pooling, newline tokens and Qwen2.

    Tensors are named as in original checkpoints, in older ones of llava-hf, or today's.
    """

    package = "tango_core.models.llava"
    engines: tuple[EngineName, ...] = ("native", "vllm")
    title = "LLaVA-OneVision or LLaVA-Video"
    kinds = f"'llava_onevision' (llava-hf) or {_ORIGINAL_ARCHITECTURE} (lmms-lab)"
    chat = QWEN_1_5
    mean = std = (0.5, 0.5, 0.5)
    language = ("model.language_model.", "model.image_newline", "lm_head.")
    supported = (
        *_KNOWN,
        ("vision_config.model_type", ("siglip_vision_model",)),
        ("vision_feature_select_strategy", ("full",)),
    )
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
        """See `CheckpointFamily.config_of`.

        Raises:
            FileNotFoundError: If the vision tower of an original checkpoint does not exist.
        """
        from transformers import LlavaOnevisionConfig

        authors = _ORIGINAL_ARCHITECTURE in (content.get("architectures") or ())
        if authors or content.get("model_type") == "llava_qwen":
            return LlavaOnevisionConfig(**_original_config(checkpoint, content))
        if content.get("model_type") == "llava_onevision":
            return LlavaOnevisionConfig.from_dict(content)
        return None

    def facts(self, config: Any, request: ModelRequest, options: LlavaOptions) -> dict[str, Any]:
        """Frames of a fixed size, and signals of a pooling head; see `CheckpointFamily.facts`."""
        from tango_core.ops.saliency import pooled_grid  # imports torch

        vision = config.vision_config
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
        if vision.vision_use_head or request.saliency_from is not None:
            provides |= {"saliency", "frame_embeddings"}
        side, step = vision.image_size // vision.patch_size, options.pooling_step
        if step > side:
            raise InputError(
                f"model.pooling_step must be at most the {side} positions of a side of the tower's "
                f"grid, got {step}"
            )
        return {
            "provides": frozenset(provides),
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


def siglip_config(checkpoint: Checkpoint) -> SiglipVisionConfig:
    """The vision configuration of a SigLIP checkpoint, whole or vision only."""
    from transformers import SiglipVisionConfig

    content = checkpoint.config()
    return SiglipVisionConfig.from_dict(dict(content.get("vision_config", content)))


def _original_config(checkpoint: Checkpoint, content: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `LlavaOnevisionConfig` for an original checkpoint."""
    from transformers import Qwen2Config

    names = set(Qwen2Config().to_dict()) - {"model_type", "architectures"}
    text = {key: content[key] for key in (*names, *_OLD_SPELLINGS) if key in content}
    return {
        "text_config": Qwen2Config.from_dict(text),
        "vision_config": _vision_config(checkpoint, content),
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "tie_word_embeddings": bool(content.get("tie_word_embeddings", False)),
        **{name: content[name] for name, _ in _KNOWN if name in content},
    }


def _vision_config(checkpoint: Checkpoint, content: dict[str, Any]) -> SiglipVisionConfig:
    """Configuration of the stored tower."""
    from transformers import SiglipVisionConfig

    from tango_core.models.checkpoints.directory import resolve_checkpoint

    if "vision_config" in content:
        return SiglipVisionConfig.from_dict(dict(content["vision_config"]))
    tower = str(content.get("mm_vision_tower") or SIGLIP_OF_LLAVA)
    inside = checkpoint.directory / tower
    if not inside.is_dir() and tower.endswith(SIGLIP_OF_LLAVA.partition("/")[2]):
        whole = SiglipVisionConfig(**_SO400M)
    else:
        setting = f"{checkpoint.name}: mm_vision_tower"
        source = str(inside) if inside.is_dir() else tower
        whole = siglip_config(resolve_checkpoint(source, setting=setting))
    whole.num_hidden_layers -= 1
    whole.vision_use_head = False
    return whole


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
