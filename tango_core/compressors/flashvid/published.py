"""What FlashVID's release sets per model, and what that means for models of other depths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tango_core.errors import InputError

Selection = Literal["v2", "v1", "div", "attention"]


@dataclass(frozen=True)
class PublishedValues:
    """The settings of one family in the release's scripts, equal for every retention.

    Attributes:
        selection: Weights of the diverse selection.
        num_segments: Least number of segments.
        layer: Layer of the step inside the language model.
        num_layers: Of how many layers.
        retention: Share of the visual tokens that step keeps.
    """

    selection: Selection
    num_segments: int
    layer: int
    num_layers: int
    retention: float


_LLAVA = PublishedValues("v2", 8, 20, 28, 0.3)
# Start of a model's name -> its values; every other model has those of LLaVA.
_BY_NAME = {
    "qwen3-vl": PublishedValues("v1", 4, 28, 36, 0.1),
    "qwen2.5-vl": PublishedValues("v1", 4, 20, 28, 0.3),
}


def published_values(model: str | None) -> PublishedValues:
    """The values for a model's name, as in `MODELS`; those of LLaVA if it is another or unknown."""
    name = (model or "").lower().replace("_", "-")
    return next((values for start, values in _BY_NAME.items() if name.startswith(start)), _LLAVA)


def published_inner(
    values: PublishedValues, retention: float, num_layers: int
) -> dict[str, Any] | None:
    """The step inside a language model of `num_layers` layers.

    It stands at the same share of the layers as published. A retention above what all tokens
    average to with that step is met by a step that drops less, and 1 by none.

    Args:
        values: What is published.
        retention: Target, averaged over the layers, in (0, 1].
        num_layers: Layers of the language model.

    Raises:
        ValueError: If there is no such layer.
    """
    if retention == 1:
        return None
    layer = round(values.layer / values.num_layers * num_layers)
    if not 1 <= layer < num_layers:
        raise InputError(
            f"inner 'published' is layer {values.layer} of {values.num_layers}, and a language "
            f"model of {num_layers} layers has none at that share; set inner to null, or to "
            '{"name": "fastv", "layer": ..., "retention": ...}'
        )
    least = (num_layers * retention - layer) / (num_layers - layer)
    share = max(values.retention, round(least, 12))
    return {"name": "fastv", "layer": layer, "retention": share}


def with_published(
    options: Mapping[str, Any], model: str | None, num_layers: int
) -> dict[str, Any]:
    """Checked options with the published values where they say `None` or "published"."""
    values = published_values(model)
    filled = {"inner": "published", **options}
    if filled.get("selection") is None:
        filled["selection"] = values.selection
    if filled.get("num_segments") is None:
        filled["num_segments"] = values.num_segments
    retention = filled["retention"]
    if filled["inner"] == "published":
        # A retention out of range is refused by the class, in its own words.
        is_share = 0 < retention <= 1
        filled["inner"] = published_inner(values, retention, num_layers) if is_share else None
    return filled
