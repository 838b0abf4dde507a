"""Settings of models: options that only a family has, and lists of attention sinks.

SigLIP attends to a few positions at the border of the grid; they rank above real content in every
frame, so Tango does not pick them for their score (Tango, Section 3 and its Figure 3). Which
positions these are depends on the encoder and its grid. The publication lists them for the two
LLaVA models; `tango analyze sinks` finds them for any other and writes the file that `read_sinks`
reads.

The options of a family are a frozen dataclass, whose values are checked here.

A recipe writes them under `model`, `describe_model` takes them as keywords, and
`ModelSpec.options` holds them. Importing this module, and the module of a family's options, loads
neither torch nor transformers: so recipes are checked before heavy imports.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

from tango_core.errors import InputError
from tango_core.local_files import parse_json, read_text

# Frames that go through a vision tower together, 1 or larger; "auto" for what fits.
EncodeBatch = int | Literal["auto"]

# What generates the replies (`language/`).
EngineName = Literal["native", "vllm"]

# Whether the text around a temporal position without kept tokens stays (`language/prompt.py`).
EmptyBlocks = Literal["keep", "drop"]

_KINDS = {bool: "true or false", float: "a number", int: "a whole number", str: "a string"}


@dataclass(frozen=True)
class FamilyOptions:
    """Base class of a family's options.

    Every field is an option with a default, `bool`, `int`, `float`, `str` or a `Literal`, alone or
    with `None`. `__post_init__` checks ranges; its errors name `model.<option>`. A field with
    `init=False` is a constant of the family.
    """

    def identity(self) -> dict[str, Any]:
        """The options that affect a clip's tokens, by name, for cache keys."""
        return {}

    def input_size(self) -> str:
        """The setting that changes the number of tokens from the published one, as in a recipe.

        "" for the published number. Runs with different values have different inputs; one with
        fewer tokens is a control for the others.
        """
        return ""


@dataclass(frozen=True)
class FrameAreaOptions(FamilyOptions):
    """Options of families whose frames keep their shape; the area is part of `ModelSpec.frames`.

    Attributes:
        published_pixels: The `max_pixels` of the publications, if it is not the family's default.
        max_pixels: Largest area of a frame in pixels; `None` for the family's default.
        frame_area: Instead of `max_pixels`: area in pixels to which every frame is scaled at its
            aspect ratio, as in VLMEvalKit on Video-MME-v2 (448 x 448).
    """

    published_pixels: ClassVar[int | None] = None
    max_pixels: int | None = None
    frame_area: int | None = None

    def __post_init__(self) -> None:
        """Check the ranges of all areas and times, and that only one option sets the area."""
        for option in fields(self):
            value = getattr(self, option.name)
            setting = f"model.{option.name}"
            if type(value) is int and value < 1:
                raise InputError(f"{setting} must be 1 or larger, got {value}")
            if type(value) is float and not 0 < value < math.inf:
                raise InputError(f"{setting} must be a positive number, got {value:g}")
        # Not `min_pixels`, which a protocol may set.
        if self.frame_area is not None and self.max_pixels is not None:
            raise InputError("model.frame_area takes the place of model.max_pixels; leave one out")

    def input_size(self) -> str:
        """The frame area, if it is not the published one."""
        if self.frame_area is not None:
            return f"frame_area={self.frame_area}"
        usual = self.max_pixels in (None, self.published_pixels)
        return "" if usual else f"max_pixels={self.max_pixels}"


OptionsT = TypeVar("OptionsT", bound=FamilyOptions)


def option_names(cls: type[FamilyOptions]) -> tuple[str, ...]:
    """Names of the options, in the order of the fields."""
    return tuple(option.name for option in fields(cls) if option.init)


def checked_options(cls: type[OptionsT], model: str, options: Mapping[str, Any]) -> OptionsT:
    """Build the options of a family from a recipe's values.

    Args:
        cls: The options of the family.
        model: Name of the model, for messages.
        options: Values by name; `None` is the family's default.

    Raises:
        ValueError: For an unknown option or a wrong value, in one line that names
            `model.<option>`.
    """
    made = {name: value for name, value in options.items() if value is not None}
    allowed = option_names(cls)
    for name in made:
        if name not in allowed:
            close = get_close_matches(name, allowed, n=1)
            hint = f", or did you mean model.{close[0]}?" if close else ""
            raise InputError(f"model.{name} is no setting of model {model}; leave it out{hint}")
    hints = get_type_hints(cls)
    return cls(
        **{name: _checked(f"model.{name}", value, hints[name]) for name, value in made.items()}
    )


def raise_unless_one_of(setting: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise for a value that is not allowed; `None` is not listed in the message."""
    if value not in allowed:
        listed = ", ".join(str(one) for one in allowed if one is not None)
        raise InputError(f"{setting} must be one of {listed}, got {value!r}")


def _checked(setting: str, value: Any, kind: Any) -> Any:
    """Check a value against a type or Literal; integers are converted to float if needed."""
    if get_origin(kind) is not Literal and NoneType in get_args(kind):
        (kind,) = (part for part in get_args(kind) if part is not NoneType)
    if get_origin(kind) is Literal:
        raise_unless_one_of(setting, value, get_args(kind))
        return value
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise InputError(f"{setting} must be {_KINDS[kind]}, got {value!r}")
    return value


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
