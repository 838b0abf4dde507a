"""Attention sinks: grid positions that an encoder attends to in every clip.

SigLIP attends to a few positions at the border of the grid; they rank above real content in every
frame, so Tango does not pick them for their score (Tango, Section 3 and its Figure 3). Which
positions these are depends on the encoder and its grid. The publication lists them for the two
LLaVA models; `tango analyze sinks` finds them for any other and writes the file that `read_sinks`
reads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tango_core.errors import InputError
from tango_core.local_files import parse_json, read_text

# Grid -> positions, from the run scripts of the official Tango release: 14 x 14 is
# LLaVA-OneVision's grid, 13 x 13 LLaVA-Video's.
PUBLISHED_SINKS: Mapping[tuple[int, int], tuple[int, ...]] = MappingProxyType(
    {(14, 14): (28, 27, 41, 169, 11, 12), (13, 13): (26, 157, 11)}
)


@dataclass(frozen=True)
class SinkList:
    """The sinks of one encoder.

    Attributes:
        grid: (H, W) of the tokens of a frame.
        positions: Flat positions h * W + w on that grid, distinct.
        source: Origin, for error messages.
    """

    grid: tuple[int, int]
    positions: tuple[int, ...]
    source: str = ""

    def __post_init__(self) -> None:
        """Raise for positions that are not on the grid."""
        total = self.grid[0] * self.grid[1]
        whole = all(type(one) is int and 0 <= one < total for one in self.positions)
        if not whole or len(set(self.positions)) < len(self.positions):
            raise InputError(
                f"{self.source or 'sinks'}: sinks must be distinct positions in [0, {total}) of a "
                f"{self.grid[0]} x {self.grid[1]} grid, got {list(self.positions)}"
            )

    def on(self, grid: tuple[int, int], model: str) -> tuple[int, ...]:
        """The positions, for frames of this grid.

        Raises:
            ValueError: If the sinks belong to another grid.
        """
        if grid != self.grid:
            raise InputError(
                f"model.sinks {self.source} is for a grid of {self.grid}, model {model} has {grid}"
            )
        return self.positions


def read_sinks(path: str) -> SinkList:
    """Read a file that `tango analyze sinks` wrote, or one with its keys `grid` and `sinks`.

    Raises:
        ValueError: If it is not a sink file.
    """
    try:
        content = parse_json(read_text(Path(os.path.expanduser(path))), path)
        height, width = (int(side) for side in content["grid"])
        return SinkList((height, width), tuple(content["sinks"]), path)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"model.sinks {path} is not a sink file ({type(error).__name__}: {error}); write one "
            "with `tango analyze sinks`"
        ) from error
