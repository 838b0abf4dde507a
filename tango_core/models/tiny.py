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

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import LlavaOnevisionConfig, PreTrainedTokenizerFast

from tango_core.models.language.chat import ChatFormat

if TYPE_CHECKING:
    from transformers import LlavaOnevisionForConditionalGeneration

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
    """Architecture of the built-in model, for `num_words` words besides the special tokens.

    The tower keeps its pooling head, so that saliency needs no second checkpoint. The vocabulary is
    padded to a multiple of 64.
    """
    config = LlavaOnevisionConfig.from_pretrained(embedded_checkpoint())
    config.dtype = torch.float32
    config.text_config.vocab_size = -(-(num_words + len(_SPECIAL) + len(_ROLES)) // 64) * 64
    return config


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
    model: LlavaOnevisionForConditionalGeneration, words: Sequence[str], directory: Path
) -> None:
    """Write a checkpoint that `load_encoder` and `load_language_model` read, weights in float16.

    Args:
        model: Built from `tiny_config(len(words))`.
        words: The words of its tokenizer, in order.
        directory: Created if needed.
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
    for name in ("generation_config.json", "preprocessor_config.json"):
        content = (embedded_checkpoint() / name).read_text(encoding="utf-8")
        (directory / name).write_text(content, encoding="utf-8")
    text = json.dumps({"chat": asdict(TINY_CHAT), "note": ""}, indent=2) + "\n"
    (directory / "tango.json").write_text(text, encoding="utf-8")
