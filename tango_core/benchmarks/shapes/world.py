"""Clips of the embedded world: what they consist of, and how one is drawn at random.

A clip has one to three scenes with sprites in them, recorded by a camera. What a question may ask
for (kinds, colours, numbers, directions) is drawn first and uniformly; positions are then searched
for it, so that what is hard to place is not a rare answer.

Time runs in moments, half a second apart; a clip file holds one frame per moment. Space is a square
canvas per scene, larger than the frame, over which the camera is still, pans, zooms or shakes.
Coordinates are (x, y) with x to the right and y down, in canvas pixels unless a name says screen.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.random import Generator

FRAME = 128
"""Side of a frame in pixels: patches of 8 give 16 x 16, pooled 2 x 2 they give 8 x 8 tokens."""
MARGIN = 40
"""Canvas pixels around the frame on every side, for the camera to move into."""
CANVAS = FRAME + 2 * MARGIN
NUM_MOMENTS = 16
SECONDS_PER_MOMENT = 0.5

SHAPES = ("circle", "square", "triangle", "cross", "ring", "diamond")
SCENES = ("forest", "desert", "sea", "city", "night", "snow")
COLORS: dict[str, tuple[int, int, int]] = {
    "red": (230, 40, 40),
    "green": (50, 190, 60),
    "blue": (50, 90, 235),
    "yellow": (240, 220, 50),
    "purple": (150, 60, 200),
    "orange": (245, 140, 30),
    "cyan": (60, 215, 225),
    "pink": (250, 130, 190),
}

Kind = Literal["icon", "plate", "flash"]

PADDING = 3.0
"""Canvas pixels of dark tile around an icon's shape or a flash."""
PLATE = (16.0, 20.0)
"""Width and height of a digit's plate in canvas pixels."""


WORLD_VERSION = 1
"""Counts changes that move a pixel or a question."""

DIRECTIONS = {"left": (-1.0, 0.0), "right": (1.0, 0.0), "up": (0.0, -1.0), "down": (0.0, 1.0)}

_NUM_SCENES = (0.25, 0.45, 0.30)
_ICONS_PER_SCENE = {1: (2, 5), 2: (1, 3), 3: (1, 2)}
_EDGE = 2.0  # screen pixels that everything keeps from the frame's edge
_GAP = 2.0  # canvas pixels between two sprites
_TRIES = 96


@dataclass(frozen=True)
class Sprite:
    """One object in a scene: an icon on its dark tile, a white digit on its plate, or a flash.

    Attributes:
        kind: `"icon"`, `"plate"` or `"flash"`.
        name: The icon's shape, the plate's digit, or `"flash"`; copies of an icon share it.
        color: A key of `COLORS`; `"white"` for a plate.
        scene: Index of its scene in the clip.
        start: First moment it is shown.
        stop: First moment it is no longer shown.
        position: Centre at `start`.
        velocity: Canvas pixels per moment; (0, 0) unless it moves on its own.
        size: Side of the shape in canvas pixels, tile not included; unused for plates.
    """

    kind: Kind
    name: str
    color: str
    scene: int
    start: int
    stop: int
    position: tuple[float, float]
    velocity: tuple[float, float] = (0.0, 0.0)
    size: float = 16.0

    @property
    def moves(self) -> bool:
        """Whether it moves on its own, camera aside."""
        return self.velocity != (0.0, 0.0)

    @property
    def extent(self) -> tuple[float, float]:
        """Width and height with its tile or plate, in canvas pixels."""
        if self.kind == "plate":
            return PLATE
        return (self.size + 2 * PADDING, self.size + 2 * PADDING)


@dataclass(frozen=True)
class Scene:
    """A stretch of a clip between hard cuts.

    Attributes:
        kind: One of `SCENES`; the scenes of a clip are of different kinds.
        start: First moment.
        stop: First moment of the next scene.
        views: Per moment (left, top, zoom): it shows `FRAME / zoom` canvas pixels from there.
    """

    kind: str
    start: int
    stop: int
    views: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class Box:
    """Where a sprite is in one frame.

    Attributes:
        sprite: Index into `ClipDescription.sprites`.
        left: Screen pixels, as all four edges, tile included, inside [0, FRAME].
        top: Upper edge.
        right: Right edge, exclusive.
        bottom: Lower edge, exclusive.
    """

    sprite: int
    left: float
    top: float
    right: float
    bottom: float

    @property
    def center(self) -> tuple[float, float]:
        """Screen (x, y) of the middle."""
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2


@dataclass(frozen=True)
class ClipDescription:
    """A clip, fully described: pixels and questions follow from it without further chance.

    Attributes:
        split: `"train"`, `"validation"` or `"test"`.
        seed: The benchmark's seed.
        index: Position in its split.
        num_moments: Frames in the file.
        camera: `"static"`, `"pan"`, `"zoom"` or `"shake"`, for all scenes.
        scenes: One to three, in order of time.
        sprites: Everything in them; two that share a moment never overlap.
        counted: The icon that has one to four copies and is asked for by number, if there is one.
    """

    split: str
    seed: int
    index: int
    num_moments: int
    camera: str
    scenes: tuple[Scene, ...]
    sprites: tuple[Sprite, ...]
    counted: str | None = None

    @property
    def name(self) -> str:
        """Unique among all clips of the world, e.g. `"test-0-00017"`."""
        return f"{self.split}-{self.seed}-{self.index:05d}"

    @cached_property
    def icons(self) -> dict[str, tuple[Sprite, ...]]:
        """Icons by shape, with all copies."""
        names = dict.fromkeys(sprite.name for sprite in self.sprites if sprite.kind == "icon")
        return {
            name: tuple(s for s in self.sprites if s.kind == "icon" and s.name == name)
            for name in names
        }

    def scene_at(self, moment: int) -> Scene:
        """Return the scene that is on screen."""
        return next(scene for scene in self.scenes if scene.start <= moment < scene.stop)

    def box(self, sprite: int, moment: int) -> Box | None:
        """Return where a sprite is on screen, `None` while it is not shown."""
        it = self.sprites[sprite]
        if not it.start <= moment < it.stop:
            return None
        scene = self.scenes[it.scene]
        left, top, zoom = scene.views[moment - scene.start]
        age = moment - it.start
        x = (it.position[0] + age * it.velocity[0] - left) * zoom
        y = (it.position[1] + age * it.velocity[1] - top) * zoom
        width, height = (side * zoom / 2 for side in it.extent)
        return Box(sprite, x - width, y - height, x + width, y + height)

    def boxes(self, moment: int) -> tuple[Box, ...]:
        """Return the boxes of everything shown at a moment, e.g. to see what saliency falls on."""
        found = (self.box(sprite, moment) for sprite in range(len(self.sprites)))
        return tuple(box for box in found if box is not None)


def sample_moments(num_moments: int, num_frames: int) -> tuple[int, ...]:
    """Return the moments that uniform sampling sees: `linspace(0, n - 1, k)`, truncated, unique."""
    picked = np.linspace(0, num_moments - 1, num_frames).astype(int)
    return tuple(dict.fromkeys(int(moment) for moment in picked))


def shortest_event(num_moments: int) -> int:
    """Return how many moments an object must last so that sampling 8 or 16 frames cannot miss it.

    Up to 8 moments every one is sampled. Eight frames of sixteen moments are at most three apart.
    """
    return 1 if num_moments <= 8 else -(-(num_moments - 1) // 7)


def rng_of(split: str, seed: int, index: int, purpose: str) -> Generator:
    """Return the stream that everything of one clip and one purpose is drawn from.

    The split's name, the seed and the index are all part of the key, so no clip of one split or
    seed is a clip of another: each holds dozens of continuous values from a stream of its own.
    """
    words = (zlib.crc32(split.encode()), seed, index, zlib.crc32(purpose.encode()))
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence((WORLD_VERSION, *words))))


def clip_at(split: str, seed: int, index: int, num_moments: int = NUM_MOMENTS) -> ClipDescription:
    """Return the clip at a position of a split; the same arguments give the same clip.

    Args:
        split: Any name; the benchmark uses `"train"`, `"validation"` and `"test"`.
        seed: Which draw of the split, >= 0.
        index: Position in the split, >= 0.
        num_moments: Length; shorter clips have fewer scenes and shorter events.
    """
    rng = rng_of(split, seed, index, f"clip of {num_moments}")
    camera = str(rng.choice(("static", "pan", "zoom", "shake"), p=(0.49, 0.17, 0.17, 0.17)))
    scenes = _draw_scenes(rng, camera, num_moments)
    wanted, counted = _draw_sprites(rng, scenes, num_moments)
    while (placed := _find_positions(rng, wanted, scenes)) is None:
        scenes = tuple(replace(s, views=_draw_views(rng, camera, s.stop - s.start)) for s in scenes)
    return ClipDescription(split, seed, index, num_moments, camera, scenes, placed, counted)


def dense_clip_at(split: str, seed: int, index: int) -> ClipDescription:
    """Return a clip of one crowded moment, icons of any shape and colour: to teach a vision tower.

    It answers no questions (shapes repeat in different colours) but its boxes label every patch.
    """
    rng = rng_of(split, seed, index, "dense")
    camera = str(rng.choice(("static", "zoom")))
    kind = str(rng.choice(SCENES))
    scenes = (Scene(kind, 0, 1, _draw_views(rng, camera, 1)),)
    icons = [
        Sprite("icon", str(rng.choice(SHAPES)), str(rng.choice(list(COLORS))), 0, 0, 1, (0.0, 0.0))
        for _ in range(rng.integers(4, 10))
    ]
    others = [_plate(rng, 0, 0, 1) for _ in range(rng.integers(0, 3))]
    others += [_flash(rng, str(rng.choice(list(COLORS))), 0, 0, 1)] * int(rng.integers(0, 2))
    wanted = [replace(icon, size=_icon_size(rng)) for icon in icons] + others
    while (placed := _find_positions(rng, wanted, scenes)) is None:
        wanted.pop()
    return ClipDescription(split, seed, index, 1, camera, scenes, placed)


def _draw_scenes(rng: Generator, camera: str, num_moments: int) -> tuple[Scene, ...]:
    """Cut the clip into scenes of different kinds, each at least a quarter of sixteen moments."""
    most = min(3, max(1, num_moments // 2))
    number = min(most, int(rng.choice((1, 2, 3), p=_NUM_SCENES)))
    least = max(1, num_moments // 4)
    spare = num_moments - number * least
    cuts = np.sort(rng.integers(0, spare + 1, number - 1))
    lengths = least + np.diff(np.concatenate(([0], cuts, [spare])))
    kinds = rng.permutation(SCENES)[:number]
    ends = np.cumsum(lengths)
    return tuple(
        Scene(str(kind), int(end - length), int(end), _draw_views(rng, camera, int(length)))
        for kind, length, end in zip(kinds, lengths, ends, strict=True)
    )


def _draw_views(rng: Generator, camera: str, length: int) -> tuple[tuple[float, float, float], ...]:
    """Move the camera through one scene."""
    zoom = np.ones(length)
    path = np.zeros((length, 2))
    progress = np.linspace(0.0, 1.0, length) if length > 1 else rng.random(1)
    if camera == "pan":
        angle = rng.integers(0, 8) * np.pi / 4
        path = progress[:, None] * rng.uniform(20, 36) * np.array([np.cos(angle), np.sin(angle)])
    elif camera == "zoom":
        zoom = rng.uniform(1.2, 1.35) ** (progress if rng.random() < 0.5 else 1 - progress)
        path = np.repeat((FRAME - FRAME / zoom)[:, None] / 2, 2, axis=1)
    elif camera == "shake":
        path = np.clip(rng.normal(0, 2.0, (length, 2)), -4, 4)
    low = -np.minimum(path.min(axis=0), 0)
    high = 2 * MARGIN - np.maximum(path.max(axis=0), 0)
    corner = rng.uniform(low, high)
    if camera == "static":
        corner = 4 * np.round(corner / 4)
    return tuple(
        (float(x), float(y), float(z)) for (x, y), z in zip(corner + path, zoom, strict=True)
    )


def _draw_sprites(
    rng: Generator, scenes: tuple[Scene, ...], num_moments: int
) -> tuple[list[Sprite], str | None]:
    """Decide what is shown and when; positions come later."""
    shapes = [str(shape) for shape in rng.permutation(SHAPES)]
    colors = [str(color) for color in rng.permutation(list(COLORS))]
    low, high = _ICONS_PER_SCENE[len(scenes)]
    icons = [
        _draw_icon(rng, shapes.pop(), colors.pop(), number, scene, num_moments)
        for number, scene in enumerate(scenes)
        for _ in range(rng.integers(low, high + 1))
    ]
    counted = None
    if rng.random() < 0.8:
        chosen = int(rng.integers(len(icons)))
        icon = replace(icons.pop(chosen), velocity=(0.0, 0.0))
        counted = icon.name
        icons = [icon] * int(rng.integers(1, 5)) + icons
    shortest = shortest_event(num_moments)
    if rng.random() < 0.75:
        scene = int(rng.integers(len(scenes)))
        icons.append(_plate(rng, scene, *_interval(rng, scenes[scene], shortest, shortest + 2)))
    if rng.random() < 0.75:
        scene = int(rng.integers(len(scenes)))
        start, stop = _interval(rng, scenes[scene], shortest, shortest)
        icons.append(_flash(rng, colors.pop(), scene, start, stop))
    return icons, counted


def _draw_icon(
    rng: Generator, shape: str, color: str, number: int, scene: Scene, num_moments: int
) -> Sprite:
    """Decide when an icon is shown and whether it moves: half of them do, in any direction."""
    length = scene.stop - scene.start
    shortest = shortest_event(num_moments)
    moves = length > 1 and rng.random() < 0.5
    # A mover is seen at least twice by eight sampled frames if its scene lasts that long.
    least = max(2, 2 * shortest - 1) if moves else shortest
    if rng.random() < 0.45:
        start, stop = scene.start, scene.stop
    else:
        start, stop = _interval(rng, scene, least, max(least, length // 2 + 1))
    velocity = (0.0, 0.0)
    if moves:
        x, y = DIRECTIONS[str(rng.choice(list(DIRECTIONS)))]
        speed = rng.uniform(44, 60) / (stop - start - 1)
        velocity = (x * speed, y * speed)
    return Sprite("icon", shape, color, number, start, stop, (0.0, 0.0), velocity, _icon_size(rng))


def _icon_size(rng: Generator) -> float:
    """Draw the side of a shape."""
    return float(rng.choice((14, 16, 18)))


def _plate(rng: Generator, scene: int, start: int, stop: int) -> Sprite:
    """Draw a digit on its plate."""
    digit = str(rng.integers(10))
    return Sprite("plate", digit, "white", scene, start, stop, (0.0, 0.0), size=PLATE[0])


def _flash(rng: Generator, color: str, scene: int, start: int, stop: int) -> Sprite:
    """Draw a flash."""
    size = float(rng.choice((18, 20)))
    return Sprite("flash", "flash", color, scene, start, stop, (0.0, 0.0), size=size)


def _interval(rng: Generator, scene: Scene, least: int, most: int) -> tuple[int, int]:
    """Draw (start, stop) inside a scene, of `least` to `most` moments if the scene has them."""
    length = scene.stop - scene.start
    lasts = int(rng.integers(min(least, length), min(most, length) + 1))
    start = scene.start + int(rng.integers(length - lasts + 1))
    return start, start + lasts


def _find_positions(
    rng: Generator, wanted: list[Sprite], scenes: tuple[Scene, ...]
) -> tuple[Sprite, ...] | None:
    """Find positions inside the frame without overlap at any moment, or return `None`."""
    placed: list[Sprite] = []
    for sprite in sorted(wanted, key=lambda s: not s.moves):
        low, high = _position_range(sprite, scenes[sprite.scene])
        if (low > high).any():
            return None
        tries = np.clip(4 * np.round(rng.uniform(low, high, (_TRIES, 2)) / 4), low, high)
        free = np.ones(_TRIES, dtype=bool)
        for other in placed:
            free &= _never_overlaps(sprite, tries, other)
        if not free.any():
            return None
        x, y = tries[int(free.argmax())]
        placed.append(replace(sprite, position=(float(x), float(y))))
    return tuple(placed[number] for number in rng.permutation(len(placed)))


def _position_range(sprite: Sprite, scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and highest position that keep a sprite in the frame while it is shown."""
    views = np.array(scene.views[sprite.start - scene.start : sprite.stop - scene.start])
    corner, zoom = views[:, :2], views[:, 2:]
    travelled = np.arange(len(views))[:, None] * np.array(sprite.velocity)
    reach = np.array(sprite.extent) / 2 + _EDGE / zoom - travelled
    back = np.array(sprite.extent) / 2 + _EDGE / zoom + travelled
    return (corner + reach).max(axis=0), (corner + FRAME / zoom - back).min(axis=0)


def _never_overlaps(sprite: Sprite, tries: np.ndarray, other: Sprite) -> np.ndarray:
    """Return which of the tried positions never overlap another sprite."""
    start, stop = max(sprite.start, other.start), min(sprite.stop, other.stop)
    moments = np.arange(start, stop)[:, None]
    mine = (moments - sprite.start) * np.array(sprite.velocity)
    its = np.array(other.position) + (moments - other.start) * np.array(other.velocity)
    distance = np.abs(tries[:, None] + mine - its)
    needed = (np.array(sprite.extent) + np.array(other.extent)) / 2 + _GAP
    return np.asarray((distance >= needed).any(axis=2).all(axis=1))
