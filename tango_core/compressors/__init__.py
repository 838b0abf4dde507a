"""Pruning methods: finds them by name and builds them from their options.

What lives here: one file per method that runs before the language model, and `baselines.py`.
`base.py` defines the interfaces, `in_llm/` holds methods that run inside the language model, and
`contract/` checks the guarantees of every method. Arithmetic that several methods share is in
`tango_core/ops`.

May import: `tango_core.ops`, `tango_core.types`, `tango_core.latency`, torch and numpy. A method
does not depend on models, benchmarks or files.

To add a method: see README.md beside this file.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tango_core.code_identity import is_outside, source_digest
from tango_core.compressors import baselines
from tango_core.compressors.aot import AOT
from tango_core.compressors.base import Compressor, LayerPruner
from tango_core.compressors.divprune import DivPrune
from tango_core.compressors.earlytom import EarlyTom
from tango_core.compressors.evs import EVS
from tango_core.compressors.fastvid import FastVID
from tango_core.compressors.flashvid.method import FlashVID
from tango_core.compressors.holitom import HoliTom
from tango_core.compressors.hybrid import DEFAULT_NUM_LAYERS, INNER, checked_inner
from tango_core.compressors.in_llm.dart import DART
from tango_core.compressors.in_llm.fastv import FastV
from tango_core.compressors.in_llm.framefusion import FrameFusion
from tango_core.compressors.in_llm.pyramiddrop import PyramidDrop
from tango_core.compressors.in_llm.sparsevlm import SparseVLM
from tango_core.compressors.options import checked_options, option_names
from tango_core.compressors.prunevid import PruneVid
from tango_core.compressors.query_aware.cdpruner import CDPruner
from tango_core.compressors.query_aware.rediprune import ReDiPrune
from tango_core.compressors.query_aware.semvid import SemVID
from tango_core.compressors.tango.method import Tango
from tango_core.compressors.vcast import VCast
from tango_core.compressors.vidcom2 import VidCom2
from tango_core.compressors.visionzip import VisionZip
from tango_core.errors import InputError
from tango_core.extensions import load_extension, short_name

__all__ = ["CONTROLS", "METHODS", "Method", "build_method", "equivalent_retention", "method_class"]

METHODS: dict[str, type[Compressor] | type[LayerPruner]] = {
    "full": baselines.Full,
    "random": baselines.Random,
    "uniform": baselines.Uniform,
    "topk": baselines.TopK,
    "tango": Tango,
    "visionzip": VisionZip,
    "vidcom2": VidCom2,
    "fastvid": FastVID,
    "holitom": HoliTom,
    "divprune": DivPrune,
    "earlytom": EarlyTom,
    "cdpruner": CDPruner,
    "semvid": SemVID,
    "rediprune": ReDiPrune,
    "prunevid": PruneVid,
    "evs": EVS,
    "flashvid": FlashVID,
    "vcast": VCast,
    "aot": AOT,
    "fewer_frames": baselines.FewerFrames,
    "pool_space": baselines.PoolSpace,
    "pool_time": baselines.PoolTime,
    "block": baselines.Block,
    "fastv": FastV,
    "dart": DART,
    "pyramiddrop": PyramidDrop,
    "sparsevlm": SparseVLM,
    "framefusion": FrameFusion,
}

# Simple reductions that a method must beat; none of them reads the token values.
CONTROLS = ("random", "uniform", "fewer_frames", "pool_space", "pool_time", "block")


@dataclass(frozen=True, eq=False)
class Method:
    """A built pruning method.

    Attributes:
        name: Entry of `METHODS`, or the short name of a method from outside this package.
        compressor: Runs before the language model; its result is cached. `Full` for methods that
            act only inside.
        pruner: Runs inside the language model, or `None`.
        options: All options of the entry with their defaults filled in, JSON-able; `retention` is
            the target, or is derived from the others (`block`).
    """

    name: str
    compressor: Compressor
    pruner: LayerPruner | None
    options: Mapping[str, Any]


def method_class(name: str) -> type[Compressor] | type[LayerPruner]:
    """Find the class of a method by name.

    Args:
        name: Entry of `METHODS`, an entry point of the group `tango_video.methods`, or
            `my_package.my_module:MyMethod`.

    Raises:
        ValueError: If there is no such method, or the named object is not a method.
    """
    if name in METHODS:
        return METHODS[name]
    found = load_extension("method", "method", name, sorted(METHODS))
    missing = _missing_in(found)
    if missing:
        raise InputError(f"method {name!r} {missing}; see tango_core/compressors/README.md")
    cls: type[Compressor] | type[LayerPruner] = found
    if is_outside(cls):
        source_digest(cls)  # now, while the file is still the imported one
    return cls


def _missing_in(found: object) -> str:
    """Why an object is not a method, as the end of a sentence; "" if it is one."""
    if not isinstance(found, type):
        return f"is not a class but {found!r}; name the class itself"
    if not issubclass(found, Compressor | LayerPruner):
        return "is a subclass of neither Compressor nor LayerPruner; make it one"
    if "__dataclass_params__" not in vars(found):
        return f"is not a dataclass; write @dataclass(frozen=True) above class {found.__name__}"
    if inspect.isabstract(found):
        return f"does not define {', '.join(sorted(found.__abstractmethods__))}; define it"
    return ""


def build_method(
    name: str,
    *,
    num_layers: int = DEFAULT_NUM_LAYERS,
    model: str | None = None,
    full_layers: Collection[int] | None = None,
    **options: Any,
) -> Method:
    """Build a method from its name and options.

    Args:
        name: Entry of `METHODS`, or a method from outside (`method_class`).
        num_layers: Layers of the language model, over which `retention` of an in-LLM step is
            averaged.
        model: Name of the model, as in `MODELS`, for options whose published values depend on it
            (`flashvid`); `None` if it is not known.
        full_layers: Layers of the language model with full attention; `None` for all.
        **options: Fields of the entry's class. Where the entry takes `inner`, the share kept before
            the language model is derived so that the average over all layers is `retention` (see
            `hybrid.outer_retention`); the compressor then holds `inner` with `num_layers` filled
            in.

    Raises:
        ValueError: For an unknown name or option, a value out of range, or a retention that cannot
            be reached.
    """
    cls = method_class(name)
    checked = checked_options(name, cls, options)
    if issubclass(cls, Compressor):
        checked = cls.published_options(checked, model, num_layers)
    inner, pruner = checked.get("inner"), None
    if inner is not None:
        steps = getattr(cls, "inner_steps", INNER)
        checked["inner"], pruner = checked_inner(name, inner, num_layers, steps)
    try:
        built = cls(**checked)
    except ValueError as error:
        if not is_outside(cls):
            raise
        raise InputError(str(error)) from error
    # Use the short name unless a method of this package has the same name.
    shown = name if name in METHODS or short_name(name) in METHODS else short_name(name)
    resolved = {option: getattr(built, option) for option in option_names(cls)}
    if isinstance(built, Compressor) and built.retention < 1:
        resolved["retention"] = built.retention  # also for methods whose other options determine it
    if isinstance(built, LayerPruner):
        method = Method(shown, baselines.Full(), built, resolved)
    else:
        method = Method(shown, built, pruner, resolved)
    if method.pruner is not None:
        _raise_if_linear(method.pruner.attention_layers(num_layers), full_layers)
    return method


def _raise_if_linear(read: Collection[int], full_layers: Collection[int] | None) -> None:
    """Refuse a method that reads the attention of a layer which has none."""
    linear = [] if full_layers is None else sorted(set(read) - set(full_layers))
    if full_layers is not None and linear:
        raise InputError(
            f"it reads the attention of layer {linear[0]} of the language model, which is linear "
            "attention without weights or keys; set layer or stages so that it reads one of the "
            f"layers {', '.join(map(str, sorted(full_layers)))}, or use a method that acts before "
            "the language model"
        )


def equivalent_retention(method: Method, num_layers: int = DEFAULT_NUM_LAYERS) -> float:
    """Share of the visual tokens that a layer of the language model sees on average.

    The share the compressor keeps, times the mean of the pruner's `layer_shares`; for a stand-alone
    pruner and for a hybrid that is the configured `retention`. It is computed from the settings,
    not from the tokens that were kept.
    """
    outer = method.compressor.outer_retention
    if method.pruner is None:
        return outer
    # Rounded so that the result equals the target as written in the recipe.
    return round(outer * fmean(method.pruner.layer_shares(num_layers)), 12)
