"""Counts of frames of the controls that act along time."""

from __future__ import annotations

import logging
from typing import ClassVar

from tango_core.compressors.base import Compressor, num_kept

logger = logging.getLogger(__name__)


class FrameControl(Compressor):
    """A control that keeps as many tokens as some whole frames have."""

    added_options: ClassVar[dict[str, str]] = {"budget": "official"}

    budget: str

    def num_frames_kept(self, num_frames: int) -> int:
        """The number of frames nearest to `retention` of them, at least 1.

        A clip of one frame keeps all its tokens, and a warning says so.
        """
        if num_frames == 1:
            logger.warning(
                "%s keeps all tokens of a clip of one frame", self.entry_name or type(self).__name__
            )
        return num_kept(num_frames, self.retention)

    def most_rounding(self, num_frames: int, grid: tuple[int, int]) -> float:
        """A whole frame: one is kept however small the share."""
        return grid[0] * grid[1]
