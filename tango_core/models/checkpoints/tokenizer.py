"""The tokenizer of a checkpoint, and the tokens that end a reply."""

from __future__ import annotations

from typing import Any

import transformers
from transformers import CONFIG_MAPPING, AutoTokenizer

from tango_core.errors import InputError
from tango_core.models.checkpoints.directory import Checkpoint


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
            f"{checkpoint.setting} {checkpoint.source}: its tokenizer cannot be read ({reason}); "
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
    found = next((ids for ids in candidates if ids is not None), None)
    if found is None:
        raise InputError(
            f"{checkpoint.setting} {checkpoint.source} names no end-of-turn token; "
            "add eos_token_id to its generation_config.json"
        )
    return frozenset([found] if isinstance(found, int) else found)
