"""The SigLIP tower of the LLaVA models, and the signals that methods rank its tokens by.

Stock modules, called block by block: the input of the last block is then at hand, and its attention
can be computed beside the fused kernel instead of switching the whole tower to the slow one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import SiglipVisionConfig, SiglipVisionModel
from transformers.models.siglip.modeling_siglip import SiglipMultiheadAttentionPoolingHead

from tango_core.errors import InputError
from tango_core.models.checkpoints.directory import Checkpoint, resolve_checkpoint
from tango_core.models.checkpoints.weights import load_module, tensor_names
from tango_core.models.llava.files import SIGLIP_OF_LLAVA, selected_states, siglip_config
from tango_core.models.towers.encoder import FrameTowerOutput
from tango_core.models.towers.trace import Observer
from tango_core.ops.saliency import pooling_head_attention


def run_tower(
    tower: SiglipVisionModel,
    pixels: Tensor,
    feature_layer: int | Sequence[int],
    observe: Observer = lambda layer, hidden: None,
    *,
    earlier: Collection[int] = (),
    start: int = 0,
) -> FrameTowerOutput:
    """Run the tower up to the deepest selected block.

    Args:
        tower: Stock SigLIP vision model.
        pixels: (F, 3, h, w) normalised; with a `start`, (F, N, Dv) input of that block.
        feature_layer: As `vision_feature_layer` of the configuration: index into [embeddings,
            output of block 1, ...], or several. LLaVA removes SigLIP's last block and takes -1: the
            output of block 26 of 27.
        observe: Called with every layer's output.
        earlier: Blocks whose input is returned.
        start: Index of the first block that is run.

    Raises:
        ValueError: If no block is selected.
    """
    blocks = tower.encoder.layers
    states = selected_states(feature_layer, len(blocks))
    hidden = pixels if start else tower.embeddings(pixels)
    observe(start, hidden)
    # All 27 hidden states would be 91 MB a frame in float32; only the selected ones are kept.
    kept = {0: hidden} if 0 in states else {}
    inputs = {}
    for index, block in enumerate(blocks[start : max(states)], start=start + 1):
        block_input = hidden
        if index - 1 in earlier:
            inputs[index - 1] = hidden
        hidden = block(hidden, attention_mask=None)
        observe(index, hidden)
        if index in states:
            kept[index] = hidden
    features = [kept[state] for state in states]
    last: Any = block
    return FrameTowerOutput(
        features[0] if len(features) == 1 else torch.cat(features, dim=-1),
        hidden,
        block_input,
        last.self_attn,
        last.layer_norm1,
        inputs,
    )


class PoolingHead(nn.Module):
    """SigLIP's attention pooling: one learned query, the probe, attends to all tokens of a frame.

    How much the probe attends to a token is the saliency "p-attn" of Tango and FastVID. LLaVA's
    towers lack the head, so it may be loaded from the original SigLIP checkpoint; like the
    official code it is then applied to the features of LLaVA's last block, which is one block
    earlier than where it was trained. All in float32.
    """

    def __init__(self, config: SiglipVisionConfig) -> None:
        super().__init__()
        self.post_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.head = SiglipMultiheadAttentionPoolingHead(config)

    def saliency(self, hidden: Tensor) -> Tensor:
        """Attention of the probe, softmax over the frame's tokens per head, mean over heads.

        Args:
            hidden: (F, N, Dv) output of the last block run, any dtype.

        Returns:
            (F, N) float32; every row sums to 1.
        """
        attention, norm = self.head.attention, self.post_layernorm
        return pooling_head_attention(
            hidden,
            self.head.probe,
            attention.in_proj_weight,
            attention.in_proj_bias,
            attention.num_heads,
            norm.weight,
            norm.bias,
            norm.eps,
        )

    def embed(self, hidden: Tensor) -> Tensor:
        """One vector per frame, the head's full output (FastVID's global feature).

        Args:
            hidden: (F, N, Dv) any dtype.

        Returns:
            (F, Dv) float32.
        """
        embeddings: Tensor = self.head(self.post_layernorm(hidden.float()))
        return embeddings


_HEAD_NAME = re.compile(
    r"(?:model\.)?(?:vision_tower\.)*(?:vision_model\.)?((?:head|post_layernorm)\..+)"
)


def _head_name(name: str) -> str | None:
    """Name inside `PoolingHead` of a tensor of SigLIP or of a LLaVA tower with a head."""
    match = _HEAD_NAME.fullmatch(name)
    return match.group(1) if match else None


def load_pooling_head(
    own: Checkpoint, own_config: SiglipVisionConfig, saliency_from: str | None, device: torch.device
) -> PoolingHead | None:
    """Load the pooling head from a second checkpoint if one is named, else from the tower's own.

    Args:
        own: The LLaVA checkpoint.
        own_config: Its tower's configuration.
        saliency_from: Hub id or directory of a SigLIP checkpoint of the same width.
        device: Where to put the head.

    Returns:
        The head in float32, or `None` if the tower has none and no second checkpoint is named.

    Raises:
        FileNotFoundError: If `saliency_from` does not exist.
        ValueError: If it holds no SigLIP head, or one of another width.
    """
    if saliency_from is None:
        if not own_config.vision_use_head:
            return None
        checkpoint, config = own, own_config
    else:
        checkpoint = resolve_checkpoint(saliency_from, setting="model.saliency_from")
        config = siglip_config(checkpoint)
        if config.hidden_size != own_config.hidden_size:
            raise InputError(
                f"model.saliency_from {saliency_from} has width {config.hidden_size}, but the "
                f"tower has {own_config.hidden_size}; give the SigLIP that the tower was made from "
                f"({SIGLIP_OF_LLAVA})"
            )
        if not any(
            (_head_name(name) or "").startswith("head.") for name in tensor_names(checkpoint)
        ):
            raise InputError(
                f"model.saliency_from {saliency_from} holds no pooling head; give the original "
                f"SigLIP checkpoint ({SIGLIP_OF_LLAVA}), not a tower taken out of a LLaVA model"
            )
    return load_module(
        lambda: PoolingHead(config), checkpoint, _head_name, dtype=torch.float32, device=device
    )
