"""What the published checkpoints look like: their config.json, and the names of their tensors."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from tango_core.models.random_weights import internvl
from tango_core.models.random_weights.qwen3_configs import QWEN3_CONFIGS

Layout = Literal["llava-hf", "lmms-lab", "qwen", "qwen3", "internvl-hf", "internvl-chat"]

# Ids of the special tokens of Qwen2's tokenizer, the same in every model here.
FIRST_SPECIAL = 151643
_QWEN2_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_LLAVA_SPECIAL = (*_QWEN2_SPECIAL, "<image>", "<video>")
_QWEN_VL_SPECIAL = (
    *_QWEN2_SPECIAL,
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)


@dataclass(frozen=True)
class Geometry:
    """A published model without its weights.

    Attributes:
        model: Entry of `MODELS` that reads it.
        layout: How its files name tensors: as llava-hf's, as those of LLaVA's authors
            (`lmms-lab`), as Qwen's of one of two generations, or as either of InternVL's.
        config: Content of its config.json.
        special_tokens: Of its tokenizer, from `first_special` on.
        first_special: Id of the first of them.
    """

    model: str
    layout: Layout
    config: Mapping[str, Any]
    special_tokens: tuple[str, ...]
    first_special: int = FIRST_SPECIAL

    @property
    def text(self) -> Mapping[str, Any]:
        """The part of the configuration that describes the language model."""
        config = self.config
        return config.get("text_config") or config.get("llm_config") or config

    def shrunk(self, factor: int) -> Geometry:
        """The same architecture with about 1 / `factor` of its layers, widths and vocabulary.

        Heads keep their width and frames their size, so a tower still sees 27 x 27 patches.

        Args:
            factor: 1 for the geometry itself.

        Raises:
            ValueError: If the factor is smaller than 1.
        """
        if factor < 1:
            raise ValueError(f"shrink must be 1 or larger, got {factor}")
        if factor == 1:
            return self
        config: dict[str, Any] = copy.deepcopy(dict(self.config))
        text: Any = replace(self, config=config).text
        _shrink(text, _TEXT, factor)
        text["vocab_size"] = -(-text["vocab_size"] // factor // 64) * 64
        first = text["vocab_size"] - 64
        for place in (config, text):
            for name, value in place.items():
                if isinstance(value, int) and value >= FIRST_SPECIAL:
                    place[name] = first + value - FIRST_SPECIAL
        if self.layout in ("qwen", "qwen3"):
            vision = config["vision_config"]
            _shrink(vision, _QWEN_VISION, factor)
            vision["out_hidden_size"] = text["hidden_size"]
            if self.layout == "qwen":
                vision["fullatt_block_indexes"] = [vision["depth"] // 2 - 1, vision["depth"] - 1]
            else:  # at least one block after the last row, as published
                count = min(3, vision["depth"] - 1, text["num_hidden_layers"])
                vision["deepstack_visual_indexes"] = list(range(count))
        else:
            # An original config.json only names its tower, of which there is one size.
            config.setdefault("vision_config", copy.deepcopy(dict(_SIGLIP)))
            _shrink(config["vision_config"], _VISION, factor)
        return Geometry(self.model, self.layout, config, self.special_tokens, first)


@dataclass(frozen=True)
class _Keys:
    """What a part of a configuration calls its sizes; `num_kv_heads` may be missing."""

    layers: str
    heads: str
    kv_heads: str | None = None


_TEXT = _Keys("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
_VISION = _Keys("num_hidden_layers", "num_attention_heads")
_QWEN_VISION = _Keys("depth", "num_heads")


def _shrink(part: dict[str, Any], keys: _Keys, factor: int) -> None:
    """Divide layers, heads and inner width of one half; the width follows from the heads."""
    head_dim = part["hidden_size"] // part[keys.heads]
    part[keys.layers] = max(2, part[keys.layers] // factor)
    groups = 1
    if keys.kv_heads is not None:
        groups = max(1, part[keys.kv_heads] // factor)
        part[keys.kv_heads] = groups
    part[keys.heads] = max(groups, part[keys.heads] // factor // groups * groups)
    part["hidden_size"] = head_dim * part[keys.heads]
    part["intermediate_size"] = max(8, part["intermediate_size"] // factor)


# SigLIP so400m/14 at 384 pixels without its last block and its pooling head, as LLaVA stores it.
_SIGLIP: Mapping[str, Any] = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "image_size": 384,
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "num_hidden_layers": 26,
    "patch_size": 14,
    "vision_use_head": False,
}
_QWEN2: Mapping[str, Any] = {
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "use_sliding_window": False,
}
_QWEN2_7B: Mapping[str, Any] = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
}
_QWEN2_05B: Mapping[str, Any] = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_window_layers": 24,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
}


def _onevision(text: Mapping[str, Any], vocab_size: int, tied: bool) -> Geometry:
    """llava-hf/llava-onevision-qwen2-*-ov-hf; the vocabulary is padded there."""
    sizes = {**_QWEN2, **text, "vocab_size": vocab_size, "tie_word_embeddings": tied}
    config = {
        "architectures": ["LlavaOnevisionForConditionalGeneration"],
        "ignore_index": -100,
        "image_grid_pinpoints": [
            [384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)
        ],
        "image_token_index": 151646,
        "model_type": "llava_onevision",
        "projector_hidden_act": "gelu",
        "text_config": {"model_type": "qwen2", **sizes},
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "use_image_newline_parameter": True,
        "video_token_index": 151647,
        "vision_aspect_ratio": "anyres_max_9",
        "vision_config": dict(_SIGLIP),
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    }
    return Geometry("llava-onevision-7b", "llava-hf", config, _LLAVA_SPECIAL)


def _llava_video() -> Geometry:
    """lmms-lab/LLaVA-Video-7B-Qwen2, whose config.json names its tower without describing it."""
    config = {
        "architectures": ["LlavaQwenForCausalLM"],
        **_QWEN2,
        **_QWEN2_7B,
        "attention_dropout": 0.0,
        "image_aspect_ratio": "anyres_max_9",
        "mm_hidden_size": 1152,
        "mm_newline_position": "grid",
        "mm_patch_merge_type": "spatial_unpad",
        "mm_projector_type": "mlp2x_gelu",
        "mm_resampler_type": None,
        "mm_spatial_pool_mode": "bilinear",
        "mm_spatial_pool_stride": 2,
        "mm_vision_select_feature": "patch",
        "mm_vision_select_layer": -2,
        "mm_vision_tower": "google/siglip-so400m-patch14-384",
        "model_type": "llava",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_mm_proj": True,
        "vocab_size": 152064,
    }
    return Geometry("llava-video-7b", "lmms-lab", config, _LLAVA_SPECIAL)


def _qwen(text: Mapping[str, Any], vocab_size: int, tied: bool) -> Geometry:
    """Qwen/Qwen2.5-VL-*-Instruct, whose config.json is flat."""
    config = {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "attention_dropout": 0.0,
        **_QWEN2,
        **text,
        "image_token_id": 151655,
        "max_position_embeddings": 128000,
        "model_type": "qwen2_5_vl",
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "video_token_id": 151656,
        "vision_config": {
            "depth": 32,
            "fullatt_block_indexes": [7, 15, 23, 31],
            "hidden_act": "silu",
            "hidden_size": 1280,
            "in_chans": 3,
            "intermediate_size": 3420,
            "model_type": "qwen2_5_vl",
            "num_heads": 16,
            "out_hidden_size": text["hidden_size"],
            "patch_size": 14,
            "spatial_merge_size": 2,
            "spatial_patch_size": 14,
            "temporal_patch_size": 2,
            "tokens_per_second": 2,
            "window_size": 112,
        },
        "vision_end_token_id": 151653,
        "vision_start_token_id": 151652,
        "vision_token_id": 151654,
        "vocab_size": vocab_size,
    }
    return Geometry("qwen2.5-vl-7b", "qwen", config, _QWEN_VL_SPECIAL)


_QWEN_3B: Mapping[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "max_window_layers": 70,
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 2,
}


def _internvl(layout: Layout, config: Mapping[str, Any]) -> Geometry:
    """OpenGVLab/InternVL3_5-*."""
    return Geometry("internvl3.5-8b", layout, config, internvl.SPECIAL)


GEOMETRIES: Mapping[str, Geometry] = MappingProxyType(
    {
        "llava-onevision-0.5b": _onevision(_QWEN2_05B, 152000, tied=True),
        "llava-onevision-7b": _onevision(_QWEN2_7B, 152128, tied=False),
        "llava-video-7b": _llava_video(),
        "qwen2.5-vl-3b": _qwen(_QWEN_3B, 151936, tied=True),
        "qwen2.5-vl-7b": _qwen(_QWEN2_7B, 152064, tied=False),
        **{
            name: Geometry("qwen3-vl-8b", "qwen3", config, _QWEN_VL_SPECIAL)
            for name, config in QWEN3_CONFIGS.items()
        },
        "internvl3.5-8b": _internvl("internvl-chat", internvl.chat_config(internvl.QWEN3_8B)),
        "internvl3.5-8b-hf": _internvl("internvl-hf", internvl.hf_config(internvl.QWEN3_8B)),
    }
)


def geometry_named(name: str) -> Geometry:
    """Look a geometry up.

    Raises:
        ValueError: If there is none of this name.
    """
    if name not in GEOMETRIES:
        raise ValueError(f"unknown geometry {name!r}; choose one of: {', '.join(GEOMETRIES)}")
    return GEOMETRIES[name]
