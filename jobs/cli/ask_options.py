"""What `tango ask` is told as text: bounds of a clip, options of a method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.config.bounded_yaml import YamlError, load_yaml
from jobs.config.errors import RecipeError, shortened

# Arguments of `VideoChat.ask` that are flags of the command, not options of a method.
_FLAGS = ("video", "question", "choices", "method", "retention", "clip", "max_new_tokens")


def parse_bounds(text: str) -> tuple[float, float]:
    """Parse the value of `--clip`: `"12.5-30"`, in seconds.

    Raises:
        RecipeError: If it is not of that form.
    """
    start, dash, end = text.partition("-")
    try:
        bounds = float(start), float(end)
    except ValueError:
        bounds = (0.0, -1.0)
    if not dash or not 0 <= bounds[0] <= bounds[1]:
        raise RecipeError(f"--clip {text!r} is not START-END in seconds, e.g. 12.5-30")
    return bounds


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Parse the values of `--option`: `"alpha=2"`, with a YAML value each.

    Raises:
        RecipeError: If one is not of that form, or has a flag of its own.
    """
    return dict(map(_option, texts))


def _option(text: str) -> tuple[str, Any]:
    """Parse `"alpha=2"`."""
    name, equals, value = text.partition("=")
    if not equals or not name or name in _FLAGS:
        raise RecipeError(
            f"--option {text!r} is not OPTION=VALUE of the method, e.g. alpha=2; "
            "what the reply may choose from is given with --choices"
        )
    try:
        return name, load_yaml(value)
    except YamlError as error:
        raise RecipeError(f"--option {shortened(text)!r}: {shortened(value)!r} {error}") from error
