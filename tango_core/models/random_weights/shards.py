"""Write safetensors files piece by piece: the memory of the writer does not grow with the files.

`safetensors.torch.save_file` wants all tensors of a file at once, which for published shards is 5
GB. The format is a length, a JSON header with the place of every tensor, and their bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch

from tango_core.models.random_weights.tensors import TensorPlan

# Numbers drawn at once: 16 MB of float32.
_PIECE = 2**22
_BYTES = 2  # of a bfloat16 number


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
