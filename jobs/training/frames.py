"""Labelled frames: rendered single frames with the right output for every patch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tango_core.benchmarks.shapes.render import render
from tango_core.benchmarks.shapes.world import (
    COLORS,
    FRAME,
    PLATE,
    SCENES,
    SHAPES,
    Box,
    ClipDescription,
    clip_at,
    dense_clip_at,
    rng_of,
)

PATCH = 8
SIDE = FRAME // PATCH
NUM_PATCHES = SIDE * SIDE
MAX_COUNT = 4

KINDS = (*SHAPES, "flash", "plate")
COLOR_NAMES = tuple(COLORS)
HEADS = {"kind": 9, "color": 9, "digit": 11, "count": 4, "scene": 6, "place": 2}
"""Number of outputs of every linear head per patch; class 0 of the first three is "nothing"."""
PHRASES = len(SHAPES) * len(COLORS) + 10 + len(COLORS) + len(SCENES)
"""Labels of a whole frame: coloured icons, digits, coloured flashes, and the scene."""

# A patch has the label of an object that covers at least the first share of it, and the label
# "nothing" below the second share; in between it has no label.
_COVERED, _FREE = 0.5, 0.12
_IGNORE = -100
_EDGES = np.arange(SIDE + 1, dtype=np.float32) * PATCH


@dataclass(frozen=True, eq=False)
class PatchLabels:
    """Labels of every patch of a frame (row-major), and of the whole frame.

    Attributes:
        kind: (N,) 0 for background, else 1 + index in `KINDS`; -100 where unclear.
        color: (N,) 0 for none, else 1 + index in `COLOR_NAMES`; -100 where unclear.
        digit: (N,) 0 for none, else 1 + digit; -100 where unclear.
        count: (N,) copies of the icon's shape in this frame, minus 1; -100 off icons.
        scene: Index in `SCENES`.
        phrases: (PHRASES,) 1 where the label applies to the frame.
    """

    kind: npt.NDArray[np.int64]
    color: npt.NDArray[np.int64]
    digit: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    scene: int
    phrases: npt.NDArray[np.float32]


def coverage(box: Box) -> npt.NDArray[np.float32]:
    """(SIDE, SIDE) share of every patch that a box covers."""
    across, down = (
        np.clip(np.minimum(_EDGES[1:], high) - np.maximum(_EDGES[:-1], low), 0, None) / PATCH
        for low, high in ((box.left, box.right), (box.top, box.bottom))
    )
    share: npt.NDArray[np.float32] = down[:, None] * across[None, :]
    return share


def label_patches(clip: ClipDescription, moment: int) -> PatchLabels:
    """Label the patches of one frame from the clip's description."""
    boxes = clip.boxes(moment)
    kind, color, digit = (np.zeros((SIDE, SIDE), dtype=np.int64) for _ in range(3))
    count = np.full((SIDE, SIDE), _IGNORE, dtype=np.int64)
    best = np.zeros((SIDE, SIDE), dtype=np.float32)
    scene = SCENES.index(clip.scene_at(moment).kind)
    phrases = np.zeros(PHRASES, dtype=np.float32)
    phrases[-len(SCENES) + scene] = 1
    shown = [clip.sprites[box.sprite] for box in boxes]
    for box, sprite in zip(boxes, shown, strict=True):
        share = coverage(box)
        largest = share > best
        best = np.maximum(best, share)
        tint = COLOR_NAMES.index(sprite.color) if sprite.kind != "plate" else -1
        kind[largest] = 1 + KINDS.index("plate" if sprite.kind == "plate" else sprite.name)
        color[largest] = 1 + tint
        digit[largest] = 1 + int(sprite.name) if sprite.kind == "plate" else 0
        count[largest] = _IGNORE
        if sprite.kind == "icon":
            copies = sum(one.kind == "icon" and one.name == sprite.name for one in shown)
            count[largest] = min(copies, MAX_COUNT) - 1
            phrases[SHAPES.index(sprite.name) * len(COLOR_NAMES) + tint] = 1
        elif sprite.kind == "plate":
            phrases[len(SHAPES) * len(COLOR_NAMES) + int(sprite.name)] = 1
        else:
            phrases[len(SHAPES) * len(COLOR_NAMES) + 10 + tint] = 1
    for values, nothing in ((kind, 0), (color, 0), (digit, 0), (count, _IGNORE)):
        values[best < _COVERED] = _IGNORE
        values[best < _FREE] = nothing
    return PatchLabels(
        kind=kind.reshape(-1),
        color=color.reshape(-1),
        digit=digit.reshape(-1),
        count=count.reshape(-1),
        scene=scene,
        phrases=phrases,
    )


def labelled_frame(
    seed: int, index: int, plates: float = 0.0
) -> tuple[npt.NDArray[np.uint8], PatchLabels]:
    """Return one training frame; dense frames and frames of ordinary clips alternate.

    Args:
        seed: Seed of the frames.
        index: Number of the frame.
        plates: Share of the icons of dense frames that are replaced by digits on plates.

    Returns:
        (FRAME, FRAME, 3) uint8 pixels and their labels.
    """
    if index % 2:
        clip = clip_at("train", seed, index, num_moments=1)
    else:
        clip = _with_plates(dense_clip_at("train", seed, index), plates)
    return render(clip, (0,))[0], label_patches(clip, 0)


def _with_plates(clip: ClipDescription, share: float) -> ClipDescription:
    """Replace some icons by digits on plates, which are smaller, so that no objects overlap."""
    rng = rng_of(clip.split, clip.seed, clip.index, "plates")
    sprites = tuple(
        replace(one, kind="plate", name=str(rng.integers(10)), color="white", size=PLATE[0])
        if one.kind == "icon" and rng.random() < share
        else one
        for one in clip.sprites
    )
    return replace(clip, sprites=sprites)


Batch = dict[str, Tensor]


class FrameBatches(Dataset[Batch]):
    """Batches of labelled frames by step; the same step always gives the same batch."""

    def __init__(self, seed: int, size: int, plates: float) -> None:
        self.seed, self.size, self.plates = seed, size, plates

    def __getitem__(self, step: int) -> Batch:
        first = step * self.size
        indices = range(first, first + self.size)
        return frame_batch([labelled_frame(self.seed, index, self.plates) for index in indices])


def frame_batch(frames: Sequence[tuple[npt.NDArray[np.uint8], PatchLabels]]) -> Batch:
    """Stack labelled frames: `pixels` (B, H, W, 3) uint8, and one (B, ...) entry per label."""
    batch = {"pixels": torch.from_numpy(np.stack([pixels for pixels, _ in frames]))}
    for name in ("kind", "color", "digit", "count", "phrases"):
        batch[name] = torch.from_numpy(np.stack([getattr(label, name) for _, label in frames]))
    batch["scene"] = torch.tensor([label.scene for _, label in frames])
    return batch
