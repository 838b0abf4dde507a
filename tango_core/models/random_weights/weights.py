"""Tensors of a geometry as its files store them, and the files, written piece by piece.

`safetensors.torch.save_file` wants all tensors of a file at once, which for published shards is 5
GB. The format is a length, a JSON header with the place of every tensor, and their bytes, so the
memory of the writer does not grow with the files.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tango_core.models import model_entry
from tango_core.models.checkpoints.directory import resolve_checkpoint
from tango_core.models.family import CheckpointFamily
from tango_core.models.random_weights.geometry import GEOMETRIES, Layout

# Numbers drawn at once: 16 MB of float32.
_PIECE = 2**22
_BYTES = 2  # of a bfloat16 number

# Names in the modules of transformers 5 -> names in the published files, applied in this order.
_RENAMES: dict[Layout, tuple[tuple[str, str], ...]] = {
    "llava-hf": (
        (r"^model\.vision_tower\.", "vision_tower.vision_model."),
        (r"^model\.language_model\.", "language_model.model."),
        (r"^model\.", ""),
        (r"^lm_head\.", "language_model.lm_head."),
    ),
    "lmms-lab": (
        (r"^model\.vision_tower\.", "model.vision_tower.vision_tower.vision_model."),
        (r"^model\.language_model\.", "model."),
        (r"^model\.multi_modal_projector\.linear_1\.", "model.mm_projector.0."),
        (r"^model\.multi_modal_projector\.linear_2\.", "model.mm_projector.2."),
    ),
    "qwen": (
        (r"^model\.visual\.", "visual."),
        (r"^model\.language_model\.", "model."),
    ),
    "qwen3": (),
    "internvl-hf": (),
    "internvl-chat": (
        (r"^model\.vision_tower\.", "vision_model."),
        (r"\.cls_token$", ".class_embedding"),
        (r"\.position_embeddings$", ".position_embedding"),
        (r"\.patch_embeddings\.projection\.", ".patch_embedding."),
        (r"^(vision_model\.encoder)\.layer\.", r"\1.layers."),
        (r"\.attention\.projection_layer\.", ".attn.proj."),
        (r"\.attention\.q_proj\.", ".attn.qkv."),  # with the rows of the other two
        (r"\.layernorm_before\.", ".norm1."),
        (r"\.layernorm_after\.", ".norm2."),
        (r"\.lambda_([12])$", r".ls\1"),
        (r"^model\.multi_modal_projector\.layer_norm\.", "mlp1.0."),
        (r"^model\.multi_modal_projector\.linear_1\.", "mlp1.1."),
        (r"^model\.multi_modal_projector\.linear_2\.", "mlp1.3."),
        (r"^model\.language_model\.", "language_model.model."),
        (r"^lm_head\.", "language_model.lm_head."),
    ),
}
_STOCK: dict[Layout, str] = {
    "llava-hf": "LlavaOnevisionForConditionalGeneration",
    "lmms-lab": "LlavaOnevisionForConditionalGeneration",
    "qwen": "Qwen2_5_VLForConditionalGeneration",
    "qwen3": "Qwen3VLForConditionalGeneration",
    "internvl-hf": "InternVLForConditionalGeneration",
    "internvl-chat": "InternVLForConditionalGeneration",
}
# Of a tower's layers: stored together with the queries.
_WITH_QUERIES = re.compile(r"vision_tower\..*\.attention\.[kv]_proj\.")


@dataclass(frozen=True)
class TensorPlan:
    """One tensor of a checkpoint.

    Attributes:
        name: In the files.
        shape: Its shape.
        mean: Of its values.
        std: Of its values.
    """

    name: str
    shape: tuple[int, ...]
    mean: float
    std: float

    @property
    def count(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)


def plan_tensors(directory: Path, layout: Layout) -> Iterator[TensorPlan]:
    """All tensors of the model that a directory's config.json describes, in the modules' order.

    Values are spread so that a layer keeps the size of its input: 1 / sqrt(fan-in) for matrices, a
    tenth for biases, ones for the factors of normalisations.

    Args:
        directory: Holds config.json.
        layout: How files name tensors.
    """
    model = _empty_model(directory, layout)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    normalisations = {
        f"{place}.weight" for place, part in model.named_modules() if "Norm" in type(part).__name__
    }
    fused = layout == "internvl-chat"
    for name, value in model.state_dict().items():
        if name in tied or (fused and _WITH_QUERIES.search(name)):
            continue
        shape = tuple(value.shape)
        if fused and "vision_tower" in name and ".q_proj." in name:
            shape = (3 * shape[0], *shape[1:])
        # Of a convolution all but the first dimension are summed over.
        std = 0.1 if value.ndim == 1 else 1 / math.sqrt(math.prod(shape[1:]))
        if name in normalisations:
            yield TensorPlan(_stored_name(name, layout), shape, mean=1.0, std=0.0)
        else:
            yield TensorPlan(_stored_name(name, layout), shape, mean=0.0, std=std)


def _empty_model(directory: Path, layout: Layout) -> Any:
    """The stock model without memory."""
    name = next(one.model for one in GEOMETRIES.values() if one.layout == layout)
    family = model_entry(name).load_family()
    assert isinstance(family, CheckpointFamily)
    config = family.files().read_config(resolve_checkpoint(str(directory)))
    with torch.device("meta"):
        return getattr(transformers, _STOCK[layout])(config)


def _stored_name(name: str, layout: Layout) -> str:
    """Name of a module's tensor in the files."""
    for pattern, replacement in _RENAMES[layout]:
        name = re.sub(pattern, replacement, name)
    return name


def write_shards(
    directory: Path, tensors: Iterable[TensorPlan], seed: int | None, shard_bytes: int
) -> int:
    """Write random tensors in bfloat16, in as many files as needed, and their index.

    Every tensor is drawn from its name and the seed, so it does not depend on the others.

    Args:
        directory: Exists.
        tensors: In the order of the files.
        seed: 0 or larger; `None` for zeros, which take no room on a disk.
        shard_bytes: Largest file; a larger tensor has a file of its own.

    Returns:
        Bytes of all tensors.
    """
    shards = _split(tensors, shard_bytes)
    total = len(shards)
    names = [f"model-{index + 1:05d}-of-{total:05d}.safetensors" for index in range(total)]
    for name, shard in zip(names, shards, strict=True):
        _write(directory / name, shard, seed)
    num_bytes = sum(tensor.count * _BYTES for shard in shards for tensor in shard)
    index = {
        "metadata": {"total_size": num_bytes},
        "weight_map": {
            tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard
        },
    }
    text = json.dumps(index, indent=2, sort_keys=True) + "\n"
    (directory / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    return num_bytes


def _split(tensors: Iterable[TensorPlan], shard_bytes: int) -> list[list[TensorPlan]]:
    """Fill one file after the other."""
    shards: list[list[TensorPlan]] = [[]]
    room = shard_bytes
    for tensor in tensors:
        size = tensor.count * _BYTES
        if size > room and shards[-1]:
            shards.append([])
            room = shard_bytes
        shards[-1].append(tensor)
        room -= size
    return shards


def _write(path: Path, tensors: Sequence[TensorPlan], seed: int | None) -> None:
    """One file."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.count * _BYTES
        header[tensor.name] = {
            "dtype": "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        if seed is None:
            file.truncate(file.tell() + end)
            return
        for tensor in tensors:
            digest = hashlib.sha256(f"{seed} {tensor.name}".encode()).digest()
            source = np.random.Generator(np.random.SFC64(int.from_bytes(digest[:8], "little")))
            for start in range(0, tensor.count, _PIECE):
                count = min(_PIECE, tensor.count - start)
                file.write(_draw(source, tensor, count))


def _draw(source: np.random.Generator, tensor: TensorPlan, count: int) -> bytes:
    """The bytes of some numbers."""
    if tensor.std == 0:
        numbers = np.full(count, tensor.mean, np.float32)
    else:
        numbers = source.standard_normal(count, np.float32)
        numbers *= np.float32(tensor.std)
        numbers += np.float32(tensor.mean)
    return torch.from_numpy(numbers).bfloat16().view(torch.int16).numpy().tobytes()
