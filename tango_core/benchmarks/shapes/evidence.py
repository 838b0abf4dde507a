"""Tokens that show the object of a question in the generated world.

A question about an icon, a digit or the flash is answered by that object; where several icons are
counted, by all of them. Which scene comes first or last is shown by no object, so such questions
have no evidence here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tango_core.benchmarks.shapes import world
from tango_core.errors import InputError
from tango_core.types import Question

# A token shows an object that covers at least this share of it. Each frame's best token counts in
# any case.
LEAST_COVER = 0.25


def clip_of(video_id: str) -> world.ClipDescription:
    """The clip that the benchmark calls so.

    Raises:
        ValueError: If it is no clip of the embedded world.
    """
    split, _, rest = video_id.partition("-")
    seed, _, index = rest.partition("-")
    if not (split and seed.isdecimal() and index.isdecimal()):
        raise InputError(
            f"{video_id!r} is no clip of benchmark shapes; only there it is known which tokens "
            "show what a question is about"
        )
    return world.clip_at(split, int(seed), int(index))


def sprites_asked(clip: world.ClipDescription, question: Question) -> tuple[int, ...]:
    """What answers a question: indices into `clip.sprites`; empty if no object does."""
    kind, text = question.groups["type"], question.text
    named = {name for name in world.SHAPES if f" {name} " in f" {text.replace('?', ' ')} "}
    if kind == "shape":
        color = question.text.removeprefix("What shape is the ").removesuffix(" icon?")
        wanted = [s.kind == "icon" and s.color == color for s in clip.sprites]
    elif kind == "digit":
        wanted = [s.kind == "plate" for s in clip.sprites]
    elif kind == "flash":
        wanted = [s.kind == "flash" for s in clip.sprites]
    elif kind == "object":  # the icon that is the answer
        answer = None if question.answer is None else question.choices[question.answer]
        wanted = [s.kind == "icon" and s.name == answer for s in clip.sprites]
    else:
        wanted = [s.kind == "icon" and s.name in named for s in clip.sprites]
    return tuple(index for index, is_wanted in enumerate(wanted) if is_wanted)


def tokens_of(
    clip: world.ClipDescription,
    sprites: Sequence[int],
    timestamps: Sequence[float],
    grid: tuple[int, int],
    least_cover: float = LEAST_COVER,
) -> npt.NDArray[np.bool_]:
    """The tokens that show some sprites.

    Args:
        clip: The clip.
        sprites: Indices into its sprites.
        timestamps: (T,) seconds of the temporal positions; one between two frames of the file
            shows both.
        grid: (H, W) tokens, which divide the frame evenly.
        least_cover: Share of a token that an object must cover, in (0, 1].

    Returns:
        (T, H * W) bool.
    """
    shown = np.zeros((len(timestamps), grid[0] * grid[1]), dtype=bool)
    for row, seconds in zip(shown, timestamps, strict=True):
        moment = seconds / world.SECONDS_PER_MOMENT
        for seen in {math.floor(moment + 1e-3), math.ceil(moment - 1e-3)}:
            for sprite in sprites:
                box = clip.box(sprite, min(max(seen, 0), clip.num_moments - 1))
                if box is not None:
                    cover = cover_of(box, grid).ravel()
                    row |= (cover >= least_cover) | (cover >= max(cover.max(), 1e-9))
    return shown


def cover_of(box: world.Box, grid: tuple[int, int]) -> npt.NDArray[np.float64]:
    """(H, W) share of every token that a box covers, in [0, 1]."""
    rows, columns = (
        _overlaps(start, stop, number)
        for start, stop, number in (
            (box.top, box.bottom, grid[0]),
            (box.left, box.right, grid[1]),
        )
    )
    return np.asarray(rows[:, None] * columns[None, :])


def _overlaps(start: float, stop: float, number: int) -> npt.NDArray[np.float64]:
    """(number,) share of every equal part of a frame's side that lies between two pixels."""
    edges = np.linspace(0, world.FRAME, number + 1)
    inside = np.minimum(edges[1:], stop) - np.maximum(edges[:-1], start)
    return np.asarray(np.clip(inside, 0, None) * number / world.FRAME)
