"""The four clips that compression is timed on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tango_core.types import VisualFeatures

NUM_FRAMES, GRID, DIM = 32, (14, 14), 3584


@dataclass(frozen=True)
class Case:
    """A kind of clip and the share to keep of it.

    Attributes:
        kind: `"scenes"` has 8 scenes of 4 frames in which half of the cells move; `"noise"` has
            nothing in common between frames; `"half-frozen"` keeps half of the cells for the whole
            clip and changes the others.
        retention: In (0, 1].
    """

    kind: str
    retention: float

    @property
    def name(self) -> str:
        """E.g. `scenes r=0.10`."""
        return f"{self.kind} r={self.retention:.2f}"


CASES = (
    Case("scenes", 0.10),
    Case("scenes", 0.20),
    Case("noise", 0.10),
    Case("half-frozen", 0.10),
)


def make_features(
    kind: str, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> VisualFeatures:
    """Seeded features of 32 frames x 196 tokens x 3584 channels."""
    generator = torch.Generator().manual_seed(0)
    num_cells = GRID[0] * GRID[1]

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, DIM, generator=generator)

    tokens = normal(NUM_FRAMES, num_cells)
    if kind != "noise":
        scenes = NUM_FRAMES // 4 if kind == "scenes" else 1
        still = normal(scenes, num_cells // 2).repeat_interleave(NUM_FRAMES // scenes, dim=0)
        tokens[:, : num_cells // 2] = still + 0.1 * tokens[:, : num_cells // 2]
    saliency = torch.randn(NUM_FRAMES, num_cells, generator=generator).softmax(dim=-1)
    return VisualFeatures(
        tokens=tokens.to(dtype).to(device),
        grid=GRID,
        timestamps=torch.arange(NUM_FRAMES, dtype=torch.float64) * 2,
        saliency=saliency.to(device),
        sinks=(28, 27, 41, 169, 11, 12),
    )
