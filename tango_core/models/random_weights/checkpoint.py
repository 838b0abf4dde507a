"""Write a whole checkpoint: configuration, weights, tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from tango_core.errors import InputError, MissingFileError
from tango_core.models.language.chat import INTERNVL2_5
from tango_core.models.random_weights.geometry import Geometry, Layout, geometry_named
from tango_core.models.random_weights.weights import plan_tensors, write_shards

# As published.
SHARD_BYTES = 5 * 10**9

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
)
_HALF = ([0.5] * 3, [0.5] * 3)
_CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
_IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
_NORMALISATION: dict[Layout, tuple[list[float], list[float]]] = {
    "llava-hf": _HALF,
    "lmms-lab": _HALF,
    "qwen": _CLIP,
    "qwen3": _HALF,
    "internvl-hf": _IMAGENET,
    "internvl-chat": _IMAGENET,
}


# Prompts of video benchmarks have about these words, and so about as many tokens as with the
# published tokenizer; any other text is cut into shorter pieces.
_TEXT = (
    "system\nYou are a helpful assistant.",
    "user\nThese are the frames of a video. Select the best answer to the following "
    "multiple-choice question based on the video. Respond with only the letter (A, B, C, or D) "
    "of the correct option.",
    "Question: What does the person in the video do? Which of the following is true? "
    "How many times, when, where, why and in which order does it happen?",
    "A. The\nB. A\nC. In\nD. It\nAnswer: The best answer is:\nassistant\n",
    "The video lasts for seconds, and frames are uniformly sampled from it. These frames are "
    "located at Please answer the following questions related to this video.",
    "Answer with the option's letter from the given choices directly. Only give the best option.",
)
# What InternVL's prompts have besides.
_INTERNVL = (INTERNVL2_5.opening, "Frame-1: Frame-2: Frame1: Frame2: ")
_LEARNED = 1024


def write_random_checkpoint(
    geometry: str,
    directory: Path,
    *,
    shrink: int = 1,
    seed: int | None = 0,
    tokenizer: Path | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> int:
    """Write a checkpoint of a published geometry with random weights in bfloat16.

    Files, names of tensors and config.json are laid out as on the hub. Needs no more memory for a
    large model than for a small one. Files of weights that are there already are overwritten.

    Args:
        geometry: Name in `GEOMETRIES`.
        directory: Created if needed.
        shrink: Factor by which layers, widths and vocabulary are smaller than published, for
            tests.
        seed: Equal seeds give equal files; `None` for zeros, written at once, for whoever draws
            the weights after they are loaded.
        tokenizer: Directory with the tokenizer's files of the published model; `None` for a
            generated one with about as many tokens per prompt.
        shard_bytes: Largest file of weights.

    Returns:
        Bytes of all weights.

    Raises:
        ValueError: If the geometry is unknown, or a number is out of range.
        FileNotFoundError: If the directory of the tokenizer holds none.
    """
    shape = geometry_named(geometry).shrunk(shrink)
    if seed is not None and seed < 0:
        raise InputError(f"seed must be 0 or larger, got {seed}")
    if shard_bytes < 1:
        raise InputError(f"shard_bytes must be 1 or larger, got {shard_bytes}")
    found = [] if tokenizer is None else _tokenizer_files(tokenizer)
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("model*.safetensors*"):
        old.unlink()
    _write_json(directory / "config.json", dict(shape.config))
    ends = [shape.first_special + 2, shape.first_special]  # <|im_end|>, <|endoftext|>
    _write_json(directory / "generation_config.json", {"eos_token_id": ends})
    mean, std = _NORMALISATION[shape.layout]
    preprocessing = {"image_mean": mean, "image_std": std, "rescale_factor": 1 / 255}
    _write_json(directory / "preprocessor_config.json", preprocessing)
    scale = "" if shrink == 1 else f", {shrink} times smaller"
    note = f"the weights are random ({geometry}{scale}, seed {seed}): the answers mean nothing"
    _write_json(directory / "tango.json", {"note": note})
    if tokenizer is None:
        save_generated_tokenizer(shape, directory)
    for file in found:
        shutil.copy(file, directory / file.name)
    return write_shards(directory, plan_tensors(directory, shape.layout), seed, shard_bytes)


def _tokenizer_files(directory: Path) -> list[Path]:
    """The files of a tokenizer."""
    files = [directory / name for name in _TOKENIZER_FILES if (directory / name).is_file()]
    if not {"tokenizer.json", "vocab.json"} & {file.name for file in files}:
        raise MissingFileError(
            f"tokenizer {directory} holds no tokenizer.json; give the directory of the published "
            "model's tokenizer, or leave it out for a generated one"
        )
    return files


def _write_json(path: Path, content: Any) -> None:
    """Write indented JSON."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def save_generated_tokenizer(geometry: Geometry, directory: Path) -> None:
    """Write a byte-level tokenizer that cuts every text and has a text for every id.

    Args:
        geometry: Whose special tokens it has, at their published ids.
        directory: Where its files go.
    """
    size = geometry.text["vocab_size"]
    trainer = BpeTrainer(
        vocab_size=min(_LEARNED, geometry.first_special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learned = Tokenizer(BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # Every line ten times: the trainer joins only what it sees more than once.
    lines = (*_TEXT, *_INTERNVL) if geometry.layout.startswith("internvl") else _TEXT
    learned.train_from_iterator([line for line in lines for _ in range(10)], trainer)
    vocabulary: dict[str, int] = learned.get_vocab()
    # Ids that no text is cut into, which a model with random weights answers with.
    for index in range(len(vocabulary), geometry.first_special):
        vocabulary[f"Ġ#{index}"] = index
    stop = geometry.first_special + len(geometry.special_tokens)
    for index in range(stop, size):
        vocabulary[f"Ġ#{index}"] = index
    for offset, token in enumerate(geometry.special_tokens):
        vocabulary[token] = geometry.first_special + offset
    tokenizer = Tokenizer(BPE(vocabulary, _merges(learned)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in geometry.special_tokens]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(geometry.special_tokens[3:]),
    ).save_pretrained(directory)


def _merges(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """What the trainer joined, in its order."""
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [(first, second) for first, second in merges]
