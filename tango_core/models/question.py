"""Input embeddings of a question, without loading the language model."""

from __future__ import annotations

from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from tango_core.errors import InputError
from tango_core.models.base import ModelSpec
from tango_core.models.checkpoints.directory import Checkpoint, resolve_checkpoint
from tango_core.models.checkpoints.tokenizer import load_tokenizer
from tango_core.models.checkpoints.weights import file_of_tensor
from tango_core.models.files import FamilyFiles


class QuestionEmbedder:
    """Reads the embeddings of a question's tokens from the checkpoint, row by row.

    Args:
        spec: From `describe_model`.
        files: Files of the family.

    Raises:
        FileNotFoundError: If weights or tokenizer are missing.
        ValueError: If the checkpoint holds no embedding matrix.
    """

    def __init__(self, spec: ModelSpec, files: FamilyFiles) -> None:
        checkpoint = resolve_checkpoint(spec.path, spec.revision)
        config = files.read_config(checkpoint)
        self._tokenizer: Any = load_tokenizer(checkpoint, config.text_config)
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
        self._path, self._name = _embedding(checkpoint, files)

    def __call__(self, text: str) -> Tensor:
        """Embeddings of a text's tokens, without tokens that start or end a sequence.

        Args:
            text: Not empty.

        Returns:
            (M, D) in the model's dtype, on the CPU.
        """
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        with safe_open(self._path, framework="pt") as tensors:
            matrix = tensors.get_slice(self._name)
            rows = [matrix[index : index + 1] for index in ids]
        return torch.cat(rows).to(self._dtype)


def _embedding(checkpoint: Checkpoint, files: FamilyFiles) -> tuple[str, str]:
    """Path and stored name of the embedding matrix."""
    rename = files.rename("language")
    found = file_of_tensor(
        checkpoint, lambda name: rename(name) == "language_model.embed_tokens.weight"
    )
    if found is None:
        raise InputError(
            f"{checkpoint.setting} {checkpoint.source} holds no embedding matrix "
            "(embed_tokens.weight); give a complete checkpoint"
        )
    return found
