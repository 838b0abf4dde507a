"""The built-in model: a LLaVA-OneVision of two million parameters for the built-in benchmark.

With it, everything runs anywhere in seconds without a download, with the same layers, files and
code paths as the large models. Frames of 128 x 128 pixels become 16 x 16 patches
and, after pooling, 8 x 8 tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import (
    LlavaOnevisionConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    SiglipVisionConfig,
)

from tango_core.models.language.chat import ChatFormat

if TYPE_CHECKING:
    from transformers import LlavaOnevisionForConditionalGeneration

IMAGE_SIZE = 128
PATCH_SIZE = 8

_SPECIAL = ("<pad>", "<unk>", "<|im_start|>", "<|im_end|>", "<video>", "<image>")
_PAD, _UNKNOWN, _START, _END, _VIDEO, _IMAGE = _SPECIAL
_ROLES = ("user", "assistant")

# `QWEN_1_5` restricted to this model's vocabulary, without a system turn.
TINY_CHAT = ChatFormat(
    opening=f"{_START} user ", after_clip=" ", closing=f" {_END} {_START} assistant "
)


def embedded_checkpoint() -> Path:
    """Directory of the built-in model, which is part of this package."""
    return Path(__file__).parent.parent / "tiny"


def tiny_config(num_words: int) -> LlavaOnevisionConfig:
    """Architecture for a vocabulary of `num_words` words besides the special tokens.

    The tower keeps its pooling head, so that saliency needs no second checkpoint. The vocabulary is
    padded to a multiple of 64.
    """
    vocab_size = -(-(num_words + len(_SPECIAL) + len(_ROLES)) // 64) * 64
    ids = {token: index for index, token in enumerate(_SPECIAL)}
    return LlavaOnevisionConfig(
        vision_config=SiglipVisionConfig(
            hidden_size=128,
            num_hidden_layers=3,
            num_attention_heads=8,
            intermediate_size=384,
            image_size=IMAGE_SIZE,
            patch_size=PATCH_SIZE,
            vision_use_head=True,
        ),
        text_config=Qwen2Config(
            hidden_size=128,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=8,
            head_dim=32,
            intermediate_size=320,
            vocab_size=vocab_size,
            max_position_embeddings=8192,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
            bos_token_id=ids[_START],
            eos_token_id=ids[_END],
            pad_token_id=ids[_PAD],
        ),
        image_token_index=ids[_IMAGE],
        video_token_index=ids[_VIDEO],
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        image_grid_pinpoints=[[IMAGE_SIZE, IMAGE_SIZE]],
        tie_word_embeddings=True,
    )


def tiny_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """One token per word; the punctuation ? . , and : is dropped, unknown words become `<unk>`.

    Args:
        words: Distinct words without spaces, in the order of their ids.
    """
    tokens = (*_SPECIAL, *_ROLES, *words)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=_UNKNOWN))
    tokenizer.normalizer = normalizers.Replace(Regex("[?.,:]"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=_PAD,
        unk_token=_UNKNOWN,
        bos_token=_START,
        eos_token=_END,
        additional_special_tokens=[_VIDEO, _IMAGE],
    )


def save_tiny(
    model: LlavaOnevisionForConditionalGeneration,
    words: Sequence[str],
    directory: Path,
    note: str = "",
) -> None:
    """Write a checkpoint that `load_encoder` and `load_language_model` read, weights in float16.

    Args:
        model: Built from `tiny_config(len(words))`.
        words: The words of its tokenizer, in order.
        directory: Created if needed.
        note: Shown with every result.
    """
    directory.mkdir(parents=True, exist_ok=True)
    half = {
        name: value.detach().half().contiguous()
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"  # tied to the embedding
    }
    save_file(half, directory / "model.safetensors", metadata={"format": "pt"})
    config = LlavaOnevisionConfig.from_dict({**model.config.to_dict(), "dtype": "float16"})
    config.architectures = [type(model).__name__]
    config.save_pretrained(directory)
    tiny_tokenizer(words).save_pretrained(directory)
    half_range = [0.5] * 3
    for name, content in (
        ("generation_config", {"eos_token_id": config.text_config.eos_token_id}),
        (
            "preprocessor_config",
            {
                "image_mean": half_range,
                "image_std": half_range,
                "rescale_factor": 1 / 255,
                "size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE},
            },
        ),
        ("tango", {"chat": asdict(TINY_CHAT), "note": note}),
    ):
        text = json.dumps(content, indent=2) + "\n"
        (directory / f"{name}.json").write_text(text, encoding="utf-8")
