"""What a visual token should say, as a mixture of words.

The decoder's first lessons are made of such tokens, and the projector starts by producing them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from jobs.training.frames import COLOR_NAMES, KINDS, PATCH, SIDE
from tango_core.benchmarks.shapes.benchmark import SCENES, SHAPES, ClipDescription

DIGIT_WORDS = tuple("0123456789")
PLACES = ("top", "bottom", "left", "right")
MEANINGS = (*SHAPES, "icon", "flash", "digit", *COLOR_NAMES, *DIGIT_WORDS, *SCENES, *PLACES)
"""The words that tokens are mixed from."""

TOKEN_SIDE = SIDE // 2
TOKENS = TOKEN_SIDE * TOKEN_SIDE
MAX_COUNT = 4

_AT = {word: index for index, word in enumerate(MEANINGS)}
_ICON, _COPIES, _SCENE, _PLACE = 0.5, 0.5, 0.5, 0.4
_EDGES = np.arange(SIDE + 1, dtype=np.float32) * PATCH
_LINE = (2 * np.arange(TOKEN_SIDE, dtype=np.float32) + 1) / TOKEN_SIDE - 1


def meanings(clip: ClipDescription, moments: Iterable[int]) -> npt.NDArray[np.float32]:
    """Mix the words for every pooled token of some moments.

    A thing counts fully in a patch that it covers by half or more. Icons say their shape, their
    colour and how many of them there are; every token says its scene and its place.

    Returns:
        (T * TOKENS, len(MEANINGS)) float32.
    """
    return np.concatenate([_frame_meanings(clip, moment) for moment in moments])


def _frame_meanings(clip: ClipDescription, moment: int) -> npt.NDArray[np.float32]:
    """(TOKENS, len(MEANINGS)) of one frame."""
    grid = np.zeros((TOKEN_SIDE, TOKEN_SIDE, len(MEANINGS)), dtype=np.float32)
    boxes = clip.boxes(moment)
    shown = [clip.sprites[box.sprite] for box in boxes]
    for box, sprite in zip(boxes, shown, strict=True):
        across, down = (
            np.clip(np.minimum(_EDGES[1:], high) - np.maximum(_EDGES[:-1], low), 0, None) / PATCH
            for low, high in ((box.left, box.right), (box.top, box.bottom))
        )
        patches = np.minimum(1, 2 * down[:, None] * across[None, :])
        share = patches.reshape(TOKEN_SIDE, 2, TOKEN_SIDE, 2).mean(axis=(1, 3))
        for word, weight in _words_of(sprite.kind, sprite.name, sprite.color):
            grid[..., _AT[word]] += weight * share
        if sprite.kind == "icon":
            copies = sum(one.kind == "icon" and one.name == sprite.name for one in shown)
            grid[..., _AT[str(min(copies, MAX_COUNT))]] += _COPIES * share
    grid[..., _AT[clip.scene_at(moment).kind]] = _SCENE
    for word, values in (
        ("top", -_LINE[:, None]),
        ("bottom", _LINE[:, None]),
        ("left", -_LINE[None, :]),
        ("right", _LINE[None, :]),
    ):
        grid[..., _AT[word]] = _PLACE * np.clip(1 + 1.5 * values, 0, 2)
    return grid.reshape(TOKENS, -1)


def _words_of(kind: str, name: str, color: str) -> tuple[tuple[str, float], ...]:
    """Words of a thing and their weights."""
    if kind == "icon":
        return (name, 1.0), (color, 1.0), ("icon", _ICON)
    if kind == "flash":
        return ("flash", 1.0), (color, 1.0)
    return ("digit", 1.0), (name, 1.0)


assert set(KINDS) == {*SHAPES, "flash", "plate"}
