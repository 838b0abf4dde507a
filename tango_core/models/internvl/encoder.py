"""The vision half of InternVL: stock tower, pixel shuffle, projector and signals.

Stock modules are called in an explicit loop, which gives access to the last block's input, so its
attention can be recomputed besides the fused kernel. The tower's input is a frame (one tile): a CLS
token, then its patches in raster order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import InternVLConfig, InternVLVisionModel
from transformers.models.internvl.modeling_internvl import InternVLMultiModalProjector

from tango_core.models.internvl.files import merge_of, tower_grid
from tango_core.models.towers.encoder import FrameEncoder, Grid
from tango_core.models.towers.trace import Observer

# Attention probabilities of this many frames are in memory at once: 16 heads x 1025 x 1025 in
# float32 are 67 MB per frame.
_FRAMES_AT_ONCE = 2


@dataclass(frozen=True, eq=False)
class InternTowerOutput:
    """Outputs of one pass through the tower.

    Attributes:
        patches: (F, P, Dv) output of the tower without CLS, raster order.
        cls: (F, Dv) output of the last block at CLS.
        block_input: (F, 1 + P, Dv) input of the last block, CLS first.
        block: The last block.
        grid: (H, W) patches of a frame.
        merge: Number of patches per token along each axis.
    """

    patches: Tensor
    cls: Tensor
    block_input: Tensor
    block: nn.Module
    grid: tuple[int, int]
    merge: int


def pixel_shuffle(output: InternTowerOutput) -> Tensor:
    """Join the patches of a token: (F, L, merge^2 * Dv), tokens in raster order.

    The channels of a token are those of its patches row by row.
    """
    num_frames, _, width = output.patches.shape
    squares = _squares(output.patches, output)
    joined = squares.permute(0, 1, 3, 2, 4, 5)
    return joined.reshape(num_frames, -1, output.merge**2 * width)


def cls_saliency(output: InternTowerOutput) -> Tensor:
    """Attention of CLS to each token's patches in the last block ("p-attn").

    Softmax in float32 over CLS and all patches, mean over heads, sum over the patches of a token:
    the score by which VisionZip and FlashVID rank the tokens of towers with CLS.

    Returns:
        (F, L) float32; a row sums to 1 minus the attention of CLS to itself.
    """
    normed = _normed(output)
    queries, keys = _heads(output, "q", normed[:, :1]), _heads(output, "k", normed)
    paid = _probabilities(output, queries, keys).mean(dim=(1, 2))
    return _summed(paid[:, 1:], output)


def received_patch_attention(output: InternTowerOutput) -> Tensor:
    """Mean self-attention that each token's patches receive together in the last block ("attn").

    Softmax in float32, mean over heads and over all queries, CLS included, sum over the patches of
    a token.

    Returns:
        (F, L) float32; a row sums to 1 minus what CLS receives.
    """
    return _summed(received_by_patches(output), output)


def received_by_patches(output: InternTowerOutput) -> Tensor:
    """Mean self-attention that each patch receives in the last block.

    Returns:
        (F, P) float32; a row sums to 1 minus what CLS receives.
    """
    received = []
    for normed in torch.split(_normed(output), _FRAMES_AT_ONCE):
        queries, keys = (_heads(output, kind, normed) for kind in "qk")
        received.append(_probabilities(output, queries, keys).mean(dim=(1, 2)))
    return torch.cat(received)[:, 1:]


def mean_patch_keys(output: InternTowerOutput) -> Tensor:
    """Keys of the last block, averaged over heads and over the patches of a token.

    Returns:
        (F, L, head_dim) float32.
    """
    keys = _heads(output, "k", _normed(output))[:, :, 1:].float().mean(dim=1)
    return _squares(keys, output).mean(dim=(2, 4)).flatten(1, 2)


def _squares(maps: Tensor, output: InternTowerOutput) -> Tensor:
    """(F, P, C) of patches -> (F, H / m, m, W / m, m, C)."""
    (height, width), merge = output.grid, output.merge
    return maps.reshape(len(maps), height // merge, merge, width // merge, merge, -1)


def _summed(scores: Tensor, output: InternTowerOutput) -> Tensor:
    """(F, P) scores of patches -> (F, L) of tokens."""
    return _squares(scores, output).sum(dim=(2, 4)).flatten(1)


def _normed(output: InternTowerOutput) -> Tensor:
    """Input of the last block's attention."""
    block: Any = output.block
    return block.layernorm_before(output.block_input)  # type: ignore[no-any-return]


def _heads(output: InternTowerOutput, kind: str, normed: Tensor) -> Tensor:
    """Queries ("q") or keys ("k") of (F, n, Dv) states: (F, heads, n, head_dim)."""
    block: Any = output.block
    attention = block.attention
    projected = getattr(attention, f"{kind}_norm")(getattr(attention, f"{kind}_proj")(normed))
    return projected.view(*normed.shape[:2], -1, attention.head_dim).transpose(1, 2)  # type: ignore[no-any-return]


def _probabilities(output: InternTowerOutput, queries: Tensor, keys: Tensor) -> Tensor:
    """(F, heads, n, 1 + P) float32."""
    block: Any = output.block
    logits: Tensor = queries.float() @ keys.float().mT * block.attention.scale
    return logits.softmax(dim=-1)


_SIGNALS: dict[str, Callable[[InternTowerOutput], Tensor]] = {
    "attention": received_patch_attention,
    "frame_embeddings": lambda output: output.cls.float(),
    "keys": mean_patch_keys,
    "saliency": cls_saliency,
}


class VisionHalf(nn.Module):
    """Tower and projector, named as in the checkpoint."""

    def __init__(self, config: InternVLConfig) -> None:
        super().__init__()
        self.vision_tower = InternVLVisionModel._from_config(
            config.vision_config, attn_implementation="sdpa"
        )
        self.multi_modal_projector = InternVLMultiModalProjector(config)


class Encoder(FrameEncoder):
    """Tower, pixel shuffle and projector of InternVL; a frame is one tile."""

    def build(self) -> nn.Module:
        """Tower and projector."""
        return VisionHalf(self.config)

    def blocks(self) -> Iterable[nn.Module]:
        """Blocks of the tower."""
        return self.model.vision_tower.encoder.layer  # type: ignore[no-any-return]

    @property
    def num_layers(self) -> int:
        """Blocks of the tower."""
        return len(self.model.vision_tower.encoder.layer)

    def patch_grid(self, grid: Grid) -> Grid:
        """See `TowerEncoder.patch_grid`."""
        return tower_grid(self.config)

    def run(
        self, pixels: Tensor, *observe: Observer, needs: frozenset[str] = frozenset()
    ) -> InternTowerOutput:
        """Run all blocks; observers receive every layer's output, (F, 1 + P, Dv), CLS first."""
        stock = self.model.vision_tower
        hidden = stock.embeddings(pixels)
        for look in observe:
            look(0, hidden)
        for index, block in enumerate(stock.encoder.layer):
            block_input = hidden
            hidden = block(hidden)
            for look in observe:
                look(index + 1, hidden)
        patches = stock.layernorm(hidden)[:, 1:]
        grid, merge = tower_grid(self.config), merge_of(self.config)
        return InternTowerOutput(patches, hidden[:, 0], block_input, block, grid, merge)

    def signal(self, name: str, output: InternTowerOutput) -> Tensor:
        """See `FrameEncoder.signal`."""
        return _SIGNALS[name](output)

    def project(self, output: InternTowerOutput) -> Tensor:
        """Pixel shuffle and projector."""
        return self.model.multi_modal_projector(pixel_shuffle(output))  # type: ignore[no-any-return]

    def received(self, output: InternTowerOutput) -> Tensor:
        """See `FrameEncoder.received`."""
        return received_by_patches(output)

    def of_patches(self, hidden: Tensor) -> Tensor:
        """States without CLS."""
        return hidden[:, 1:]

    def frame_bytes(self, height: int, width: int) -> int:
        """Memory of one frame; see `VisionEncoder.frame_bytes`.

        Residual stream, normalised input, queries, keys, values, their attention and both sides of
        the activation of the MLP.
        """
        config, (rows, columns) = self.config.vision_config, tower_grid(self.config)
        block: int = 8 * config.hidden_size + 2 * config.intermediate_size
        signals: int = 8 * config.hidden_size * 4
        return (1 + rows * columns) * (block * self._dtype.itemsize + signals)
