"""Hybrid methods: a compressor before the language model and one pruning step inside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tango_core.compressors.base import Compressor, LayerPruner
from tango_core.compressors.in_llm.fastv import FastVMerge, HoliTomMerge
from tango_core.compressors.options import checked_options, option_names, suggestion
from tango_core.errors import InputError

DEFAULT_NUM_LAYERS = 28

Steps = Mapping[str, type[LayerPruner]]

INNER: Steps = {
    "fastv-merge": FastVMerge,
    "holitom-merge": HoliTomMerge,
}


def outer_retention(retention: float, inner: Mapping[str, Any] | None) -> float:
    """Share that must enter the language model so that its layers average to `retention`.

    Args:
        retention: Target, averaged over the layers, in (0, 1].
        inner: `None` for no step inside the model (the target itself is returned), or `layer`,
            `retention` and `num_layers` (28 if absent) of that step.

    Returns:
        In (0, 1]; for the published layer 18 of 28 with one half kept, 0.10 gives 0.121739.

    Raises:
        ValueError: If the layer does not exist, or if even with all tokens entering the model the
            average is below `retention`.
    """
    if inner is None:
        return retention
    num_layers = inner.get("num_layers", DEFAULT_NUM_LAYERS)
    layer, inner_retention = inner["layer"], inner["retention"]
    if not 0 <= layer < num_layers:
        raise InputError(f"inner.layer must be in [0, {num_layers}), got {layer}")
    average: float = (layer + (num_layers - layer) * inner_retention) / num_layers
    if retention > average + 1e-9:
        raise InputError(
            f"retention {retention} cannot be reached with inner.layer={layer} and "
            f"inner.retention={inner_retention}: all tokens average to {average:.6g} over "
            f"{num_layers} layers; lower retention or raise inner.retention"
        )
    return min(1.0, retention / average)


class Hybrid(Compressor):
    """A compressor with an optional pruning step inside the language model.

    Attributes:
        inner: Settings of the inner step, with `num_layers`; `None` for no step.
    """

    # Allowed values of `inner.name` and their classes.
    inner_steps: ClassVar[Steps] = INNER

    inner: Any

    def __post_init__(self) -> None:
        """Check the options, and that `retention` can be reached."""
        super().__post_init__()
        _ = self.outer_retention

    @property
    def outer_retention(self) -> float:
        """Share kept before the language model so that the layers average to `retention`."""
        return outer_retention(self.retention, self.inner)

    def _identity_options(self) -> dict[str, Any]:
        """Options without `inner`, which only affects the share kept here."""
        options = super()._identity_options()
        del options["inner"]
        return {**options, "retention": self.outer_retention}


class OuterStep(Hybrid):
    """A compressor with static segments and an optional pruning step inside the language model.

    Attributes:
        tau: Cosine above which a position counts as unchanged; `None` for the published value.
        inner: The step that follows, with `num_layers`; `None` for none.
    """

    tau: float | None
    inner: Mapping[str, Any] | None

    @property
    def resolved_tau(self) -> float:
        """`tau`, or the published value for the target retention."""
        if self.tau is not None:
            return self.tau
        return 0.65 if self.retention <= 0.1 else 0.8  # run scripts of the official releases

    def _identity_options(self) -> dict[str, Any]:
        """Options, with `tau=None` and `inner` replaced by the values derived from them."""
        return {**super()._identity_options(), "tau": self.resolved_tau}


def checked_inner(
    method: str, inner: Mapping[str, Any], num_layers: int, steps: Steps = INNER
) -> tuple[dict[str, Any], LayerPruner]:
    """Check the settings of an inner step and build it.

    Args:
        method: Name of the hybrid method, for error messages.
        inner: `name` (one of `steps`) and the options of that step.
        num_layers: Number of layers of the language model.
        steps: Inner steps that the method supports.

    Returns:
        The settings with defaults and `num_layers` filled in, and the pruner.

    Raises:
        ValueError: For an unknown name or option, or a layer that does not exist.
    """
    name: Any = inner.get("name")
    if name not in steps:
        hint = suggestion(str(name), steps)
        raise InputError(
            f"method {method!r}: unknown inner.name {name!r}{hint}; "
            f"choose one of: {', '.join(steps)}"
        )
    options = {key: value for key, value in inner.items() if key not in ("name", "num_layers")}
    pruner = steps[name](**checked_options(f"{method}.inner", steps[name], options))
    pruner.layers(num_layers)
    filled = {option: getattr(pruner, option) for option in option_names(steps[name])}
    return {"name": name, **filled, "num_layers": num_layers}, pruner
