"""Geometries of published checkpoints: config.json and tensor names.

`configs/` holds the content of every config.json, written down from public sources: pages and logs
of the hub's models, and the conversion scripts of transformers. LLaVA's authors write
`"model_type": "llava"` beside `"architectures": ["LlavaQwenForCausalLM"]`, as public logs and
notebooks of the OneVision checkpoints show; fields that no source shows are left out.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from tango_core.errors import InputError

Layout = Literal["llava-hf", "lmms-lab", "qwen", "qwen3", "internvl-hf", "internvl-chat"]


def _read(name: str) -> Any:
    """A file of `configs/`."""
    file = Path(__file__).parent / "configs" / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8"))


# Id of the first special token of Qwen2's tokenizer, the same in every model here.
FIRST_SPECIAL = 151643
# Of Qwen3's tokenizer behind those of Qwen2, then InternVL's own, up to id 151677.
_SPECIAL: tuple[str, ...] = tuple(_read("special_tokens"))
_QWEN_VL_SPECIAL = _SPECIAL[: _SPECIAL.index("<|video_pad|>") + 1]
_LLAVA_SPECIAL = (*_SPECIAL[:3], "<image>", "<video>")


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
            raise InputError(f"shrink must be 1 or larger, got {factor}")
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
            config.setdefault("vision_config", dict(_SIGLIP))
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
# Name -> model, layout, special tokens.
_PUBLISHED: Mapping[str, tuple[str, Layout, tuple[str, ...]]] = {
    "llava-onevision-0.5b": ("llava-onevision-7b", "llava-hf", _LLAVA_SPECIAL),
    "llava-onevision-7b": ("llava-onevision-7b", "llava-hf", _LLAVA_SPECIAL),
    "llava-onevision-7b-lmms-lab": ("llava-onevision-7b", "lmms-lab", _LLAVA_SPECIAL),
    "llava-video-7b": ("llava-video-7b", "lmms-lab", _LLAVA_SPECIAL),
    "qwen2.5-vl-3b": ("qwen2.5-vl-7b", "qwen", _QWEN_VL_SPECIAL),
    "qwen2.5-vl-7b": ("qwen2.5-vl-7b", "qwen", _QWEN_VL_SPECIAL),
    "qwen3-vl-2b": ("qwen3-vl-8b", "qwen3", _QWEN_VL_SPECIAL),
    "qwen3-vl-4b": ("qwen3-vl-8b", "qwen3", _QWEN_VL_SPECIAL),
    "qwen3-vl-8b": ("qwen3-vl-8b", "qwen3", _QWEN_VL_SPECIAL),
    "internvl3.5-8b": ("internvl3.5-8b", "internvl-chat", _SPECIAL),
    "internvl3.5-8b-hf": ("internvl3.5-8b", "internvl-hf", _SPECIAL),
}


GEOMETRIES: Mapping[str, Geometry] = MappingProxyType(
    {
        name: Geometry(model, layout, _read(name), special)
        for name, (model, layout, special) in _PUBLISHED.items()
    }
)


def geometry_named(name: str) -> Geometry:
    """Look a geometry up.

    Raises:
        ValueError: If there is none of this name.
    """
    if name not in GEOMETRIES:
        raise InputError(f"unknown geometry {name!r}; choose one of: {', '.join(GEOMETRIES)}")
    return GEOMETRIES[name]
