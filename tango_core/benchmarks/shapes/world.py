"""What the embedded world consists of: clips, scenes, cameras and sprites.

A clip has one to three scenes with sprites in them, recorded by a camera.

Time runs in moments, half a second apart; a clip file holds one frame per moment. Space is a square
canvas per scene, larger than the frame, over which the camera is still, pans, zooms or shakes.
Coordinates are (x, y) with x to the right and y down, in canvas pixels unless a name says screen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

FRAME = 128
"""Side of a frame in pixels: patches of 8 give 16 x 16, pooled 2 x 2 they give 8 x 8 tokens."""
MARGIN = 40
"""Canvas pixels around the frame on every side, for the camera to move into."""
CANVAS = FRAME + 2 * MARGIN
NUM_MOMENTS = 16
SECONDS_PER_MOMENT = 0.5

SHAPES = ("circle", "square", "triangle", "cross", "ring", "diamond")
SCENES = ("forest", "desert", "sea", "city", "night", "snow")
CAMERAS = ("static", "pan", "zoom", "shake")
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
        camera: One of `CAMERAS`, for all scenes.
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
