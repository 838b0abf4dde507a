"""The tokenizer of a checkpoint, and the tokens that end a reply."""

from __future__ import annotations

import logging
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, AutoTokenizer

from tango_core.errors import InputError, MissingFileError
from tango_core.models.checkpoints.directory import Checkpoint

logger = logging.getLogger(__name__)

# Settings of generation_config.json that change replies, and their values for greedy decoding.
_GREEDY = {"do_sample": False, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0}


def load_tokenizer(checkpoint: Checkpoint, text_config: Any = None) -> Any:
    """Load the tokenizer of a checkpoint without running code from it.

    Args:
        checkpoint: The checkpoint.
        text_config: Configuration of the language model, for a checkpoint whose config.json
            transformers does not know.

    Raises:
        FileNotFoundError: If the checkpoint has no tokenizer.
        ValueError: If its files cannot be read, or require custom code.
    """
    if not any(
        (checkpoint.directory / name).is_file() for name in ("tokenizer.json", "vocab.json")
    ):
        raise MissingFileError(
            f"{checkpoint.setting} {checkpoint.source} holds no tokenizer.json; "
            "save the tokenizer into the checkpoint's directory"
        )
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
    except ValueError as error:
        reason = str(error).strip().splitlines()[0].rstrip(" :.")
        raise InputError(
            f"{checkpoint.setting} {checkpoint.source}: its tokenizer cannot be read ({reason}); "
            "give a checkpoint with a stock tokenizer.json"
        ) from error


def read_eos_ids(checkpoint: Checkpoint, config: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens that end a reply: the generation config's, else the model's, else the tokenizer's."""
    generation = checkpoint.read_json("generation_config.json") or {}
    ignored = [name for name in _GREEDY if generation.get(name, _GREEDY[name]) != _GREEDY[name]]
    if ignored:
        logger.info("%s: replies are greedy; %s unused", checkpoint.source, " and ".join(ignored))
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
