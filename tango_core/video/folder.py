"""A directory of images as a video, as in MVBench's TVQA clips (`00001.jpg`, ...; 3 per second)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tango_core.local_files import open_regular
from tango_core.printable import printable
from tango_core.video.reader import FrameReader, Indices, Picture, VideoDecodeError, first_line

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp"})


def list_images(path: Path) -> list[Path]:
    """List a directory's images in natural order: `frame_2.jpg` before `frame_10.jpg`."""
    images = (
        entry
        for entry in path.iterdir()
        if entry.suffix.lower() in IMAGE_SUFFIXES and not entry.name.startswith(".")
    )
    return sorted(images, key=_natural_key)


def _natural_key(image: Path) -> tuple[list[tuple[int, int, str]], str]:
    """Sort key with ASCII digits as numbers and the rest (also "²") as text."""
    parts = re.split(r"(\d+)", image.name)
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts if p], image.name


class FolderReader(FrameReader):
    """Reads images by position; image i is shown at i / fps seconds, i counted from 0."""

    def __init__(self, path: str, fps: float):
        super().__init__(path, "images")
        self._images = list_images(Path(path))
        if not self._images:
            kinds = ", ".join(sorted(IMAGE_SUFFIXES))
            raise VideoDecodeError(f"{path}: the directory holds no frames ({kinds})")
        self.times = np.arange(len(self._images)) / fps

    def fetch(self, indices: Indices) -> Iterator[tuple[int, Picture]]:
        """Yield the images at `indices`; see `FrameReader`."""
        from PIL import Image

        for index in indices:
            image_path = self._images[int(index)]
            try:
                with open_regular(image_path) as file, Image.open(file) as image:
                    yield int(index), np.asarray(image.convert("RGB"))
            except (Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
                raise VideoDecodeError(
                    f"{printable(str(image_path))}: not a readable image ({first_line(error)})"
                ) from error
