"""Names, shapes and spread of the tensors of a geometry, as its files store them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    InternVLForConditionalGeneration,
    LlavaOnevisionForConditionalGeneration,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLForConditionalGeneration,
)

from tango_core.models.checkpoints.directory import resolve_checkpoint
from tango_core.models.internvl.checkpoint import read_internvl_config
from tango_core.models.llava.checkpoint import read_config
from tango_core.models.qwen2_5_vl.checkpoint import read_qwen_config
from tango_core.models.qwen3_vl.checkpoint import read_qwen3_config
from tango_core.models.random_weights.geometry import Layout

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
    checkpoint = resolve_checkpoint(str(directory))
    build: type[nn.Module]
    config: Any
    if layout == "qwen":
        build, config = Qwen2_5_VLForConditionalGeneration, read_qwen_config(checkpoint)
    elif layout == "qwen3":
        build, config = Qwen3VLForConditionalGeneration, read_qwen3_config(checkpoint)
    elif layout.startswith("internvl"):
        build, config = InternVLForConditionalGeneration, read_internvl_config(checkpoint)
    else:
        build, config = LlavaOnevisionForConditionalGeneration, read_config(checkpoint)
    with torch.device("meta"):
        return build(config)


def _stored_name(name: str, layout: Layout) -> str:
    """Name of a module's tensor in the files."""
    for pattern, replacement in _RENAMES[layout]:
        name = re.sub(pattern, replacement, name)
    return name
