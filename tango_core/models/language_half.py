"""The language half of every family: layers of transformers, output projection, layout and engine.

Also loads the input embeddings of the tokens of a question alone, which need no layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from torch import nn
from transformers import CONFIG_MAPPING, AutoModel, AutoTokenizer

from tango_core.errors import InputError
from tango_core.models.base import ModelSpec
from tango_core.models.checkpoints.directory import Checkpoint, resolve_checkpoint
from tango_core.models.checkpoints.weights import Rename, load_module, read_tensors
from tango_core.models.family import CheckpointFamily
from tango_core.models.language.engine import Engine, LayoutAndEngine, NativeEngine
from tango_core.models.language.prompt import PromptLayout
from tango_core.models.placement import resolve_devices

_EMBEDDING = "language_model.embed_tokens.weight"


class LanguageHalf(nn.Module):
    """Layers, output projection and newline token, named as in the checkpoint.

    Args:
        text: Configuration of the language model.
        has_newline: Whether there is a newline token.
    """

    image_newline: nn.Parameter

    def __init__(self, text: Any, has_newline: bool) -> None:
        super().__init__()
        self.language_model = AutoModel.from_config(text, attn_implementation="sdpa")
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        if has_newline:
            self.image_newline = nn.Parameter(torch.empty(text.hidden_size))


def load_language_half(
    spec: ModelSpec, family: CheckpointFamily, layout_class: type[PromptLayout]
) -> LayoutAndEngine:
    """Load embedding, layers and output projection; no weight of the tower is read.

    Args:
        spec: From `describe_model`.
        family: Of the model.
        layout_class: Prompt layout of the family.

    Raises:
        FileNotFoundError: If weights or tokenizer are missing.
        ValueError: If weights and configuration do not fit.
    """
    checkpoint = resolve_checkpoint(spec.path, spec.revision)
    config = family.read_config(checkpoint)
    rename, dtype = family.rename("language"), getattr(torch, spec.dtype)
    tied = {"lm_head.weight": _EMBEDDING}
    on_vllm = spec.engine == "vllm" and spec.device != "meta"
    half: nn.Module = load_module(
        lambda: LanguageHalf(config.text_config, family.has_newline),
        checkpoint,
        rename,
        dtype=dtype,
        device=torch.device("meta") if on_vllm else resolve_devices(spec.device),
        tied=tied if config.tie_word_embeddings else None,
    )
    if on_vllm and family.has_newline:
        (newline,) = _read(checkpoint, rename, {"image_newline"})
        half.image_newline = nn.Parameter(newline.to(dtype), requires_grad=False)
    tokenizer = load_tokenizer(checkpoint, config.text_config)
    layout = layout_class(spec, tokenizer, family.extras(checkpoint).chat, config, half)
    eos_ids = read_eos_ids(checkpoint, config, tokenizer)
    engine: Engine
    if on_vllm:
        from tango_core.models.language.vllm_engine import LanguageWeights, VllmEngine

        tensors = partial(read_tensors, checkpoint, rename)
        stored = bool(_read(checkpoint, rename, {"lm_head.weight"}))
        weights = LanguageWeights(config, config.tie_word_embeddings and not stored, tensors)
        engine = VllmEngine(spec, weights, layout.decode, eos_ids)
    else:
        engine = NativeEngine(half, layout.decode, eos_ids)
    return LayoutAndEngine(spec, layout, engine)


def load_question_embedder(
    spec: ModelSpec, family: CheckpointFamily
) -> Callable[[str], torch.Tensor]:
    """Load what reads the embeddings of a text's tokens from the mapped file of a checkpoint.

    Args:
        spec: From `describe_model`.
        family: Of the model.

    Returns:
        Maps a text, not empty, to (M, D) in the model's dtype, on the CPU, without tokens that
        start or end a sequence.

    Raises:
        ValueError: If the tokenizer is missing.
    """
    checkpoint = resolve_checkpoint(spec.path, spec.revision)
    tokenizer = load_tokenizer(checkpoint, family.read_config(checkpoint).text_config)
    (rows,) = _read(checkpoint, family.rename("language"), {_EMBEDDING})

    def embed(text: str) -> torch.Tensor:
        ids = tokenizer.encode(text, add_special_tokens=False)
        return rows[ids].to(getattr(torch, spec.dtype))

    return embed


def _read(checkpoint: Checkpoint, rename: Rename, names: set[str]) -> list[torch.Tensor]:
    """The stored tensors with these names in the language half."""

    def chosen(source: str) -> str | None:
        name = rename(source)
        return name if isinstance(name, str) and name in names else None

    return [value for _, value in read_tensors(checkpoint, chosen)]


def load_tokenizer(checkpoint: Checkpoint, text_config: Any = None) -> Any:
    """Load the tokenizer of a checkpoint without running code from it.

    Args:
        checkpoint: The checkpoint.
        text_config: Configuration of the language model, for a checkpoint whose config.json
            transformers does not know.

    Raises:
        ValueError: If it has no tokenizer, or one that cannot be read without custom code.
    """
    # A configuration overrides the class in the tokenizer's files. The model type alone is not
    # enough: LLaVA's authors combine `llava` with Qwen2's tokenizer.
    content = checkpoint.config()
    known = content.get("model_type") in CONFIG_MAPPING and all(
        hasattr(transformers, name) for name in content.get("architectures") or ()
    )
    try:
        return AutoTokenizer.from_pretrained(
            checkpoint.directory,
            local_files_only=True,
            trust_remote_code=False,
            config=None if known else text_config,
        )
    except (ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(" :.")
        raise InputError(
            f"{checkpoint.name}: its tokenizer cannot be read ({reason}); "
            "give a checkpoint with a stock tokenizer.json"
        ) from error


def read_eos_ids(checkpoint: Checkpoint, config: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens that end a reply: the generation config's, else the model's, else the tokenizer's."""
    generation = checkpoint.read_json("generation_config.json") or {}
    candidates = (
        generation.get("eos_token_id"),
        getattr(config, "eos_token_id", None),
        getattr(config.text_config, "eos_token_id", None),
        tokenizer.eos_token_id,
    )
    found: int | list[int] = next((ids for ids in candidates if ids is not None), [])
    return frozenset([found] if isinstance(found, int) else found)
