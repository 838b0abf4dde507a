"""Paint the backgrounds of the embedded world: six kinds of grey-toned, textured landscape.

A kind differs from the others in texture and tone; brightness, tint, scale and phase vary from
scene to scene, and grey rectangles that no question asks for are added.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from tango_core.benchmarks.shapes.world import CANVAS

Plane = npt.NDArray[np.float32]

_LINE = np.arange(CANVAS, dtype=np.float32)
_X = _LINE[None, :]
_Y = _LINE[:, None]


def paint(kind: str, rng: Generator) -> Plane:
    """Paint the background of a scene.

    Args:
        kind: One of `SCENES`.
        rng: Source of everything that varies.

    Returns:
        (CANVAS, CANVAS, 3) float32 RGB, 0 to 255.
    """
    base, texture = _KINDS[kind]
    relief = texture(rng)
    relief += 7 * _smooth_noise(rng, 3) + 5 * _smooth_noise(rng, 26)
    tint = np.array(base, dtype=np.float32) * rng.uniform(0.88, 1.12) + rng.uniform(-7, 7, 3)
    canvas = tint.astype(np.float32) + relief[..., None] * np.float32(rng.uniform(0.8, 1.15))
    _add_clutter(canvas, rng)
    return np.clip(canvas, 0, 255, out=canvas)


def _smooth_noise(rng: Generator, bumps: int) -> Plane:
    """Return smooth noise in about [-1, 1] with `bumps` bumps along each side."""
    position = _LINE * (bumps / CANVAS)
    low = position.astype(int)
    part = (position - low).astype(np.float32)
    # No matrix product: its last bits may depend on the number of threads.
    knots = rng.uniform(-1, 1, (bumps + 1, bumps + 1)).astype(np.float32)
    rows = knots[low] + part[:, None] * (knots[low + 1] - knots[low])
    return np.asarray(rows[:, low] + part * (rows[:, low + 1] - rows[:, low]), dtype=np.float32)


def _wave(rng: Generator, low: float, high: float) -> tuple[np.float32, np.float32]:
    """Draw a spatial frequency for wavelengths of `low` to `high` pixels, and a phase."""
    return np.float32(2 * np.pi / rng.uniform(low, high)), np.float32(rng.uniform(0, 2 * np.pi))


def _forest(rng: Generator) -> Plane:
    """Upright trunks, crooked and uneven, behind speckled leaves."""
    frequency, phase = _wave(rng, 13, 19)
    trunks = np.sin(_X * frequency + phase + 1.1 * _smooth_noise(rng, 5))
    return np.asarray(-26 * np.clip(2.2 * trunks, -1, 1) + 13 * _smooth_noise(rng, 60))


def _desert(rng: Generator) -> Plane:
    """Slanted dunes, bright on one side of a sharp crest."""
    frequency, phase = _wave(rng, 30, 44)
    lean = np.float32(rng.choice((-1, 1)) * rng.uniform(0.35, 0.6))
    turns = (_Y + lean * _X + 9 * _smooth_noise(rng, 4)) * frequency + phase
    return np.asarray(
        30 * (np.mod(turns / np.float32(2 * np.pi), 1) - 0.5) + 4 * _smooth_noise(rng, 70)
    )


def _sea(rng: Generator) -> Plane:
    """Short level ripples."""
    frequency, phase = _wave(rng, 8, 11)
    slow, slow_phase = _wave(rng, 45, 70)
    bend = 1.2 * np.sin(_X * slow + slow_phase) + 1.3 * _smooth_noise(rng, 6)
    ripples = np.sin(_Y * frequency + phase + bend)
    return np.asarray(17 * ripples * (0.75 + 0.6 * _smooth_noise(rng, 14)))


def _city(rng: Generator) -> Plane:
    """Rows of square windows, lit or dark."""
    pitch = rng.uniform(15, 20)
    shift = rng.uniform(0, pitch, 2)
    across, down = (_LINE + shift[0]) / pitch, (_LINE + shift[1]) / pitch
    inside = (np.mod(across, 1) > 0.38)[None, :] & (np.mod(down, 1) > 0.38)[:, None]
    number = int(CANVAS / pitch) + 3
    lit = rng.choice((-34.0, -16.0, 30.0), (number, number)).astype(np.float32)
    windows = lit[down.astype(int)[:, None], across.astype(int)[None, :]]
    return np.where(inside, windows, np.float32(0)).astype(np.float32)


def _night(rng: Generator) -> Plane:
    """A dark sky full of small stars."""
    sky = 4 * _smooth_noise(rng, 8)
    number = int(rng.integers(330, 480))
    rows, columns = rng.integers(0, CANVAS - 1, (2, number))
    bright = rng.uniform(40, 140, number).astype(np.float32)
    sky[rows, columns] += bright
    sky[rows + 1, columns] += bright * rng.choice((0.0, 0.8), number).astype(np.float32)
    return sky


def _snow(rng: Generator) -> Plane:
    """Soft drifts with grey pits."""
    return np.asarray(
        -30 * np.clip(1.6 * _smooth_noise(rng, 17) - 0.25, 0, 1) + 9 * _smooth_noise(rng, 7)
    )


def _add_clutter(canvas: Plane, rng: Generator) -> None:
    """Blend up to eight grey rectangles into a canvas, as distractors."""
    for _ in range(rng.integers(0, 9)):
        left, top = rng.integers(0, CANVAS - 26, 2)
        width, height = rng.integers(5, 26, 2)
        area = canvas[top : top + height, left : left + width]
        area += np.float32(0.6) * (np.float32(rng.uniform(40, 190)) - area)


_KINDS: dict[str, tuple[tuple[int, int, int], Callable[[Generator], Plane]]] = {
    "forest": ((84, 98, 74), _forest),
    "desert": ((172, 158, 130), _desert),
    "sea": ((98, 120, 136), _sea),
    "city": ((118, 114, 112), _city),
    "night": ((36, 38, 50), _night),
    "snow": ((198, 203, 208), _snow),
}
