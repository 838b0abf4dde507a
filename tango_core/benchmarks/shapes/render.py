"""Turn a clip's description into pixels.

Each scene is painted once on its canvas: six kinds of grey-toned, textured landscape, which differ
in texture and tone; brightness, tint, scale and phase vary from scene to scene, and grey rectangles
that no question asks for are added. every frame resamples the part the camera sees, adds what
is shown at that moment, and then uneven light, flicker and sensor noise, which differ from frame to
frame. A moment's pixels do not depend on which other moments are rendered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from tango_core.benchmarks.shapes import world

Plane = npt.NDArray[np.float32]

NOISE = 6.0
"""Standard deviation of the sensor noise, out of 255."""
FLICKER = 0.03
"""Largest relative change of brightness of a whole frame, and of its light from side to side."""

_TILE = (17.0, 17.0, 20.0)
_WHITE = (236.0, 236.0, 236.0)
_AXIS = np.arange(world.FRAME, dtype=np.float32) + np.float32(0.5)
_ACROSS = (2 * _AXIS / world.FRAME - 1).astype(np.float32)

# Digits of 5 x 7 dots, one string of seven rows each.
_FONT = {
    "0": "01110 10001 10011 10101 11001 10001 01110",
    "1": "00100 01100 00100 00100 00100 00100 01110",
    "2": "01110 10001 00001 00110 01000 10000 11111",
    "3": "11111 00010 00100 00010 00001 10001 01110",
    "4": "00010 00110 01010 10010 11111 00010 00010",
    "5": "11111 10000 11110 00001 00001 10001 01110",
    "6": "00110 01000 10000 11110 10001 10001 01110",
    "7": "11111 00001 00010 00100 01000 01000 01000",
    "8": "01110 10001 10001 01110 10001 10001 01110",
    "9": "01110 10001 10001 01111 00001 00010 01100",
}
_DOT = 2.3  # canvas pixels of one dot of the font
_FINE = 4  # stored pixels per dot and direction


def render(
    clip: world.ClipDescription, moments: Iterable[int] | None = None
) -> npt.NDArray[np.uint8]:
    """Render a clip, or only some of its moments.

    Args:
        clip: What to render.
        moments: In any order; `None` for all. `sample_moments` gives those a sampler would see.

    Returns:
        (T, FRAME, FRAME, 3) uint8 RGB.
    """
    wanted = range(clip.num_moments) if moments is None else list(moments)
    canvases: dict[int, Plane] = {}
    frames = np.empty((len(wanted), world.FRAME, world.FRAME, 3), dtype=np.uint8)
    for row, moment in enumerate(wanted):
        number = next(i for i, s in enumerate(clip.scenes) if s.start <= moment < s.stop)
        scene = clip.scenes[number]
        if number not in canvases:
            # The words of the key are part of the generated pixels and must stay.
            rng = world.rng_of(clip.split, clip.seed, clip.index, f"scenery {number}")
            canvases[number] = paint(scene.kind, rng)
        frame = _camera_view(canvases[number], *scene.views[moment - scene.start])
        for box in clip.boxes(moment):
            _draw(frame, clip.sprites[box.sprite], box)
        frames[row] = _expose(frame, clip, moment)
    return frames


def _camera_view(canvas: Plane, left: float, top: float, zoom: float) -> Plane:
    """Return what the camera sees: bilinear, rows first and then columns."""
    view = canvas
    for start, axis in ((top, 0), (left, 1)):
        position = np.clip(start + _AXIS / np.float32(zoom) - 0.5, 0, world.CANVAS - 1.001)
        low = position.astype(int)
        part = (position - low).astype(np.float32).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        first = view.take(low, axis=axis)
        view = first + (view.take(low + 1, axis=axis) - first) * part
    return view


def _draw(frame: Plane, sprite: world.Sprite, box: world.Box) -> None:
    """Draw one sprite into a frame."""
    rows = slice(max(int(box.top), 0), min(int(np.ceil(box.bottom)), world.FRAME))
    columns = slice(max(int(box.left), 0), min(int(np.ceil(box.right)), world.FRAME))
    x, y = box.center
    u, v = _AXIS[columns][None, :] - np.float32(x), _AXIS[rows][:, None] - np.float32(y)
    half_width, half_height = (box.right - box.left) / 2, (box.bottom - box.top) / 2
    zoom = 2 * half_width / sprite.extent[0]
    patch = frame[rows, columns]
    if sprite.kind == "flash":
        tile = np.sqrt(u * u + v * v) - np.float32(half_width)
    else:
        tile = np.maximum(np.abs(u) - np.float32(half_width), np.abs(v) - np.float32(half_height))
    _blend(patch, _inside(tile), _TILE)
    if sprite.kind == "plate":
        dot = np.float32(_DOT * zoom)
        _blend(patch, _digit_at(sprite.name, u / dot, v / dot), _WHITE)
    else:
        radius = np.float32(sprite.size * zoom / 2)
        outline = _outline(sprite.name, u / radius, v / radius) * radius
        _blend(patch, _inside(outline), world.COLORS[sprite.color])


def _blend(patch: Plane, alpha: Plane, color: tuple[float, float, float]) -> None:
    """Paint a patch with a colour where `alpha` is 1, and in part where it is less."""
    patch += alpha[..., None] * (np.array(color, dtype=np.float32) - patch)


def _inside(outline: Plane) -> Plane:
    """Turn a signed distance in pixels into coverage with a smooth edge."""
    return np.asarray(np.clip(0.5 - outline, 0, 1), dtype=np.float32)


def _digit_at(name: str, u: Plane, v: Plane) -> Plane:
    """Return a digit's coverage at positions given in dots from its middle."""
    dots = _digit(name)
    row, column = (v + 3.5) * _FINE, (u + 2.5) * _FINE
    inside = (row >= 0) & (row < dots.shape[0]) & (column >= 0) & (column < dots.shape[1])
    row = np.clip(row, 0, dots.shape[0] - 1).astype(int)
    column = np.clip(column, 0, dots.shape[1] - 1).astype(int)
    return np.where(inside, dots[row, column], np.float32(0))


def _outline(name: str, u: Plane, v: Plane) -> Plane:
    """Return the signed distance to a shape of half-size 1, negative inside."""
    across, down = np.abs(u), np.abs(v)
    radius = np.sqrt(u * u + v * v)
    bars = (np.maximum(across - 0.33, down - 1), np.maximum(down - 0.33, across - 1))
    edge: npt.NDArray[np.floating] = {
        "circle": radius - 0.98,
        "square": np.maximum(across, down) - 0.86,
        "triangle": np.maximum(v - 0.82, (1.82 * across - (v + 1)) / 2.077),
        "cross": np.minimum(*bars),
        "ring": np.abs(radius - 0.73) - 0.25,
        "diamond": (across + down - 1) / np.sqrt(2),
        "flash": radius - (0.62 + 0.38 * np.cos(6 * np.arctan2(v, u))),  # six rays
    }[name]
    return np.asarray(edge, dtype=np.float32)


@lru_cache(maxsize=len(_FONT))
def _digit(name: str) -> Plane:
    """Return a digit's dots, finely sampled and a little blurred so that edges are smooth."""
    dots = np.array([[int(dot) for dot in row] for row in _FONT[name].split()], dtype=np.float32)
    fine = np.pad(np.kron(dots, np.ones((_FINE, _FINE), dtype=np.float32)), 1)
    fine = (fine[:-2] + fine[1:-1] + fine[2:]) / 3
    return np.asarray((fine[:, :-2] + fine[:, 1:-1] + fine[:, 2:]) / 3)


def _expose(frame: Plane, clip: world.ClipDescription, moment: int) -> npt.NDArray[np.uint8]:
    """Add this moment's light and noise, and round to bytes."""
    rng = world.rng_of(clip.split, clip.seed, clip.index, f"light {moment}")
    level, slant_x, slant_y = rng.uniform(-FLICKER, FLICKER, 3).astype(np.float32)
    light = (1 + level) + slant_x * _ACROSS[None, :] + slant_y * _ACROSS[:, None]
    frame *= light[..., None]
    frame += np.float32(NOISE) * rng.standard_normal(frame.shape, dtype=np.float32)
    exposed: npt.NDArray[np.uint8] = np.clip(frame + np.float32(0.5), 0, 255).astype(np.uint8)
    return exposed


_LINE = np.arange(world.CANVAS, dtype=np.float32)
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
    position = _LINE * (bumps / world.CANVAS)
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
    number = int(world.CANVAS / pitch) + 3
    lit = rng.choice((-34.0, -16.0, 30.0), (number, number)).astype(np.float32)
    windows = lit[down.astype(int)[:, None], across.astype(int)[None, :]]
    return np.where(inside, windows, np.float32(0)).astype(np.float32)


def _night(rng: Generator) -> Plane:
    """A dark sky full of small stars."""
    sky = 4 * _smooth_noise(rng, 8)
    number = int(rng.integers(330, 480))
    rows, columns = rng.integers(0, world.CANVAS - 1, (2, number))
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
        left, top = rng.integers(0, world.CANVAS - 26, 2)
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
