"""What the published InternVL3.5 checkpoints look like, in both layouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Of Qwen3's tokenizer behind those of Qwen2, then InternVL's own, up to id 151677.
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
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
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<img>",
    "</img>",
    "<IMG_CONTEXT>",
    "<quad>",
    "</quad>",
    "<ref>",
    "</ref>",
    "<box>",
    "</box>",
)

QWEN3_8B: Mapping[str, Any] = {
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
_SIZES: Mapping[str, Any] = {
    "hidden_act": "gelu",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "layer_norm_eps": 1e-6,
    "norm_type": "layer_norm",
    "num_attention_heads": 16,
    "num_channels": 3,
    "num_hidden_layers": 24,
}


def hf_config(text: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of OpenGVLab/InternVL3_5-*-HF."""
    return {
        "architectures": ["InternVLForConditionalGeneration"],
        "downsample_ratio": 0.5,
        "image_seq_length": 256,
        "image_token_id": 151671,
        "model_type": "internvl",
        "projector_hidden_act": "gelu",
        "text_config": dict(text),
        "tie_word_embeddings": text["tie_word_embeddings"],
        "torch_dtype": "bfloat16",
        "vision_config": {
            **_SIZES,
            "attention_bias": True,
            "image_size": [448, 448],
            "model_type": "internvl_vision",
            "patch_size": [14, 14],
            "use_mean_pooling": True,
            "use_qk_norm": False,
        },
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
    }


def chat_config(text: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of OpenGVLab/InternVL3_5-*."""
    return {
        "architectures": ["InternVLChatModel"],
        "downsample_ratio": 0.5,
        "dynamic_image_size": True,
        "force_image_size": 448,
        "llm_config": {"architectures": ["Qwen3ForCausalLM"], **text},
        "max_dynamic_patch": 12,
        "min_dynamic_patch": 1,
        "model_type": "internvl_chat",
        "ps_version": "v2",
        "select_layer": -1,
        "template": "internvl2_5",
        "torch_dtype": "bfloat16",
        "use_thumbnail": True,
        "vision_config": {
            **_SIZES,
            "architectures": ["InternVisionModel"],
            "image_size": 448,
            "model_type": "intern_vit_6b",
            "patch_size": 14,
            "qk_normalization": False,
            "qkv_bias": True,
        },
    }
