"""All pruning methods by name, and how a name with options becomes something that runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tango_core.compressors.base import Compressor, LayerPruner
from tango_core.compressors.divprune import DivPrune
from tango_core.compressors.evs import EVS
from tango_core.compressors.fastvid import FastVID
from tango_core.compressors.full import Full
from tango_core.compressors.holitom import HoliTom
from tango_core.compressors.hybrid import DEFAULT_NUM_LAYERS, checked_inner
from tango_core.compressors.in_llm.dart import DART
from tango_core.compressors.in_llm.fastv import FastV
from tango_core.compressors.in_llm.framefusion import FrameFusion
from tango_core.compressors.in_llm.pyramiddrop import PyramidDrop
from tango_core.compressors.in_llm.sparsevlm import SparseVLM
from tango_core.compressors.options import checked_options, option_names, suggestion
from tango_core.compressors.prunevid import PruneVid
from tango_core.compressors.random import Random
from tango_core.compressors.tango.method import Tango
from tango_core.compressors.topk import TopK
from tango_core.compressors.uniform import Uniform
from tango_core.compressors.vidcom2 import VidCom2
from tango_core.compressors.visionzip import VisionZip

__all__ = ["METHODS", "Method", "build_method", "equivalent_retention"]

METHODS: dict[str, type[Compressor] | type[LayerPruner]] = {
    "full": Full,
    "random": Random,
    "uniform": Uniform,
    "topk": TopK,
    "tango": Tango,
    "visionzip": VisionZip,
    "vidcom2": VidCom2,
    "fastvid": FastVID,
    "holitom": HoliTom,
    "divprune": DivPrune,
    "prunevid": PruneVid,
    "evs": EVS,
    "fastv": FastV,
    "dart": DART,
    "pyramiddrop": PyramidDrop,
    "sparsevlm": SparseVLM,
    "framefusion": FrameFusion,
}


@dataclass(frozen=True, eq=False)
class Method:
    """What a pruning method consists of.

    Attributes:
        name: Entry of `METHODS`.
        compressor: Runs before the language model; its result is cached. `Full` for methods that
            act only inside.
        pruner: Runs inside the language model, or `None`.
        options: All options of the entry with their defaults filled in, JSON-able; `retention` is
            the target.
    """

    name: str
    compressor: Compressor
    pruner: LayerPruner | None
    options: Mapping[str, Any]


def build_method(name: str, *, num_layers: int = DEFAULT_NUM_LAYERS, **options: Any) -> Method:
    """Build a method from its name and options.

    Args:
        name: Entry of `METHODS`.
        num_layers: Layers of the language model, over which `retention` of an in-LLM step is
            averaged.
        **options: Fields of the entry's class. Where the entry takes `inner`, the share kept before
            the language model is derived so that the average over all layers is `retention` (see
            `hybrid.outer_retention`); the compressor then holds `inner` with `num_layers` filled
            in.

    Raises:
        ValueError: For an unknown name or option, a value out of range, or a retention that cannot
            be reached.
    """
    if name not in METHODS:
        listed = ", ".join(sorted(METHODS))
        raise ValueError(
            f"unknown method {name!r}{suggestion(name, METHODS)}; choose one of: {listed}"
        )
    cls = METHODS[name]
    checked = checked_options(name, cls, options)
    inner, pruner = checked.get("inner"), None
    if inner is not None:
        checked["inner"], pruner = checked_inner(name, inner, num_layers)
    built = cls(**checked)
    resolved = {option: getattr(built, option) for option in option_names(cls)}
    if isinstance(built, LayerPruner):
        built.layers(num_layers)
        return Method(name, Full(), built, resolved)
    return Method(name, built, pruner, resolved)


def equivalent_retention(method: Method, num_layers: int = DEFAULT_NUM_LAYERS) -> float:
    """Share of the visual tokens that a layer of the language model sees on average.

    The share the compressor keeps, times the mean of the pruner's `layer_shares`; for a stand-alone
    pruner and for a hybrid that is the configured `retention`. It follows from the settings, not
    from what a clip really kept.
    """
    outer = method.compressor.outer_retention
    if method.pruner is None:
        return outer
    return outer * fmean(method.pruner.layer_shares(num_layers))
