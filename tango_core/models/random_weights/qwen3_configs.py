"""What config.json of the dense Qwen3-VL checkpoints says: Qwen/Qwen3-VL-*-Instruct."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def _config(
    text: Mapping[str, Any], vision: Mapping[str, Any], deepstack: list[int], tied: bool
) -> dict[str, Any]:
    """One of them; it is nested, and says twice whether the output is tied."""
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "image_token_id": 151655,
        "model_type": "qwen3_vl",
        "text_config": {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 151643,
            "eos_token_id": 151645,
            "head_dim": 128,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "max_position_embeddings": 262144,
            "model_type": "qwen3_vl_text",
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-6,
            "rope_scaling": {
                "mrope_interleaved": True,
                "mrope_section": [24, 20, 20],
                "rope_type": "default",
            },
            "rope_theta": 5000000,
            "tie_word_embeddings": tied,
            "use_cache": True,
            "vocab_size": 151936,
            **text,
        },
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "video_token_id": 151656,
        "vision_config": {
            "deepstack_visual_indexes": deepstack,
            "hidden_act": "gelu_pytorch_tanh",
            "in_channels": 3,
            "initializer_range": 0.02,
            "model_type": "qwen3_vl",
            "num_heads": 16,
            "num_position_embeddings": 2304,
            "out_hidden_size": text["hidden_size"],
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            **vision,
        },
        "vision_end_token_id": 151653,
        "vision_start_token_id": 151652,
    }


_QWEN3_SMALL_TOWER: Mapping[str, Any] = {
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
}
_QWEN3_LARGE_TOWER: Mapping[str, Any] = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
}
_QWEN3_2B: Mapping[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
}
_QWEN3_4B: Mapping[str, Any] = {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
}
_QWEN3_8B: Mapping[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
}

QWEN3_CONFIGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "qwen3-vl-2b": _config(_QWEN3_2B, _QWEN3_SMALL_TOWER, [5, 11, 17], tied=True),
        "qwen3-vl-4b": _config(_QWEN3_4B, _QWEN3_SMALL_TOWER, [5, 11, 17], tied=True),
        "qwen3-vl-8b": _config(_QWEN3_8B, _QWEN3_LARGE_TOWER, [8, 16, 24], tied=False),
    }
)
