"""The tokens that the projector should produce, as weighted sums of word embeddings.

The language model is first trained on such tokens; then the projector is fitted to produce them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from jobs.training.data.frames import COLOR_NAMES, KINDS, MAX_COUNT, SIDE, coverage
from tango_core.benchmarks.shapes.benchmark import SCENES, SHAPES, ClipDescription

DIGIT_WORDS = tuple("0123456789")
PLACES = ("top", "bottom", "left", "right")
TARGET_WORDS = (*SHAPES, "icon", "flash", "digit", *COLOR_NAMES, *DIGIT_WORDS, *SCENES, *PLACES)
"""The words whose embeddings are added up."""

TOKEN_SIDE = SIDE // 2
TOKENS_PER_FRAME = TOKEN_SIDE * TOKEN_SIDE

_INDEX = {word: index for index, word in enumerate(TARGET_WORDS)}
_ICON, _COPIES, _SCENE, _PLACE = 0.5, 0.5, 0.5, 0.4
_LINE = (2 * np.arange(TOKEN_SIDE, dtype=np.float32) + 1) / TOKEN_SIDE - 1


def token_targets(clip: ClipDescription, moments: Iterable[int]) -> npt.NDArray[np.float32]:
    """Weights of the words for every pooled token of some moments.

    An object has its full weight in a patch that it covers by half or more. The words of an icon
    are its shape, its colour and the number of its copies; every token also has its scene and its
    place in the frame.

    Returns:
        (T * TOKENS_PER_FRAME, len(TARGET_WORDS)) float32.
    """
    return np.concatenate([_frame_targets(clip, moment) for moment in moments])


def _frame_targets(clip: ClipDescription, moment: int) -> npt.NDArray[np.float32]:
    """(TOKENS_PER_FRAME, len(TARGET_WORDS)) weights of one frame."""
    grid = np.zeros((TOKEN_SIDE, TOKEN_SIDE, len(TARGET_WORDS)), dtype=np.float32)
    boxes = clip.boxes(moment)
    shown = [clip.sprites[box.sprite] for box in boxes]
    for box, sprite in zip(boxes, shown, strict=True):
        patches = np.minimum(1, 2 * coverage(box))
        share = patches.reshape(TOKEN_SIDE, 2, TOKEN_SIDE, 2).mean(axis=(1, 3))
        for word, weight in _words_of(sprite.kind, sprite.name, sprite.color):
            grid[..., _INDEX[word]] += weight * share
        if sprite.kind == "icon":
            copies = sum(one.kind == "icon" and one.name == sprite.name for one in shown)
            grid[..., _INDEX[str(min(copies, MAX_COUNT))]] += _COPIES * share
    grid[..., _INDEX[clip.scene_at(moment).kind]] = _SCENE
    for word, values in (
        ("top", -_LINE[:, None]),
        ("bottom", _LINE[:, None]),
        ("left", -_LINE[None, :]),
        ("right", _LINE[None, :]),
    ):
        grid[..., _INDEX[word]] = _PLACE * np.clip(1 + 1.5 * values, 0, 2)
    return grid.reshape(TOKENS_PER_FRAME, -1)


def _words_of(kind: str, name: str, color: str) -> tuple[tuple[str, float], ...]:
    """Words of an object and their weights."""
    if kind == "icon":
        return (name, 1.0), (color, 1.0), ("icon", _ICON)
    if kind == "flash":
        return ("flash", 1.0), (color, 1.0)
    return ("digit", 1.0), (name, 1.0)


assert set(KINDS) == {*SHAPES, "flash", "plate"}
