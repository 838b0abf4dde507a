"""Interface of the decoders: frame times, and frames at given positions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]
Indices = NDArray[np.int64]
Picture = NDArray[np.uint8]


class FrameReader(ABC):
    """An open video.

    Readers hold native memory: open late, close early, never keep one in a long-lived object.

    Attributes:
        path: The file or folder.
        name: Library and version, e.g. `"pyav 18.1.0"`.
        times: (n,) seconds from the start of the file of every frame in display order, not
            descending.
        damage: Why fetched frames may differ from the original video: packets that could not be
            decoded, pictures with concealed errors. Complete once `fetch` is exhausted.
        problems: Non-fatal problems; complete once `fetch` is exhausted.
    """

    times: Times

    def __init__(self, path: str, name: str):
        self.path = path
        self.name = name
        self.damage: list[str] = []
        self.problems: list[str] = []

    @abstractmethod
    def fetch(self, indices: Indices) -> Iterator[tuple[int, Picture]]:
        """Yield (index, (h, w, 3) uint8 RGB upright picture) one at a time.

        Args:
            indices: (m,) positions in `times`, ascending and unique.

        Raises:
            ReaderError: If a frame listed in `times` cannot be decoded.
        """

    def close(self) -> None:  # noqa: B027 - most readers hold nothing between calls
        """Free the native resources; safe to call twice."""


def first_line(error: Exception) -> str:
    """First line of an error's message, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
