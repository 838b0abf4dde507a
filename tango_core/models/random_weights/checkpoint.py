"""Write a whole checkpoint: configuration, weights, tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tango_core.models.random_weights.geometry import Layout, geometry_named
from tango_core.models.random_weights.shards import write_shards
from tango_core.models.random_weights.tensors import plan_tensors
from tango_core.models.random_weights.words import save_generated_tokenizer

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
        raise ValueError(f"seed must be 0 or larger, got {seed}")
    if shard_bytes < 1:
        raise ValueError(f"shard_bytes must be 1 or larger, got {shard_bytes}")
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
        raise FileNotFoundError(
            f"tokenizer {directory} holds no tokenizer.json; give the directory of the published "
            "model's tokenizer, or leave it out for a generated one"
        )
    return files


def _write_json(path: Path, content: Any) -> None:
    """Write indented JSON."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
