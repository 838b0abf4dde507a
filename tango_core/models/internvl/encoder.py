"""Vision encoder of InternVL: tower, pixel shuffle, projector and signals.

The modules of transformers are called in an explicit loop, which gives access to the last block's
input, so its attention can be recomputed besides the fused kernel. The tower's input is a frame
(one tile): a CLS token, then its patches in raster order.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn
from transformers import InternVLConfig, InternVLVisionModel
from transformers.models.internvl.modeling_internvl import InternVLMultiModalProjector

from tango_core.models.internvl.family import MERGE, tower_grid
from tango_core.models.towers.encoder import FrameEncoder, FrameTowerOutput, Grid
from tango_core.models.towers.trace import Observer, unobserved


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

    class_tokens = 1

    def build(self) -> nn.Module:
        """Tower and projector."""
        return VisionHalf(self.config)

    def blocks(self) -> Iterable[nn.Module]:
        """Blocks of the tower."""
        return self.model.vision_tower.encoder.layer  # type: ignore[no-any-return]

    def patch_grid(self, grid: Grid) -> Grid:
        """See `TowerEncoder.patch_grid`."""
        return tower_grid(self.config)

    def run(
        self, pixels: Tensor, observe: Observer = unobserved, needs: frozenset[str] = frozenset()
    ) -> FrameTowerOutput:
        """Run all blocks; `observe` gets every layer's output, (F, 1 + P, Dv), CLS first."""
        stock = self.model.vision_tower
        hidden = stock.embeddings(pixels)
        observe(0, hidden)
        for index, block in enumerate(stock.encoder.layer):
            block_input = hidden
            hidden = block(hidden)
            observe(index + 1, hidden)
        patches = stock.layernorm(hidden)[:, 1:]
        norm = block.layernorm_before
        return FrameTowerOutput(patches, hidden, block_input, block.attention, norm)

    def signal(self, name: str, output: FrameTowerOutput) -> Tensor:
        """See `FrameEncoder.signal`.

        Saliency is the attention of CLS to each token's patches in the last block, the score by
        which VisionZip and FlashVID rank the tokens of towers with CLS; attention is what all rows
        pay to them, CLS included. Both are sums over the patches of a token: a frame sums to 1
        minus the attention that CLS receives.
        """
        if name == "frame_embeddings":
            return output.hidden[:, 0].float()
        if name == "keys":
            return self._squares(output.mean_keys()[:, 1:]).mean(dim=(2, 4)).flatten(1, 2)
        if name == "saliency":
            states = output.norm(output.block_input)
            scores = output.paid(states[:, :1], states)
        else:
            scores = output.received()
        return self._squares(scores[:, 1:]).sum(dim=(2, 4)).flatten(1)

    def project(self, output: FrameTowerOutput) -> Tensor:
        """Pixel shuffle and projector: the channels of a token are its patches', row by row."""
        squares = self._squares(output.features).transpose(2, 3)
        return self.model.multi_modal_projector(squares.flatten(3).flatten(1, 2))  # type: ignore[no-any-return]

    def _squares(self, maps: Tensor) -> Tensor:
        """(F, P, C) or (F, P) of patches -> (F, H / m, m, W / m, m, C)."""
        height, width = tower_grid(self.config)
        return maps.reshape(len(maps), height // MERGE, MERGE, width // MERGE, MERGE, -1)
