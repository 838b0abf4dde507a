"""The promises of every `LayerPruner`: one function per promise, which raises if it is broken.

Every function takes `make`, which builds the pruner, and one prompt. `run_layers` checks
the promises of every call: text stays, positions ascend, the input is not written to.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import fields
from statistics import fmean

import torch

from tango_core.compressors.base import LayerContext, LayerPruner, Pruned
from tango_core.compressors.contract.inputs import (
    NUM_LAYERS,
    SyntheticPrompt,
    require,
    run_layers,
)

Make = Callable[[], LayerPruner]


def prunes_validly(make: Make, prompt: SyntheticPrompt) -> None:
    """Text is unchanged and positions ascend in every layer."""
    run_layers(make(), NUM_LAYERS, prompt)


def retention_one_keeps_all(make: Make, prompt: SyntheticPrompt) -> None:
    """With retention 1 all tokens are unchanged."""
    for context, pruned in _calls(make(), prompt):
        everything = list(range(len(context.hidden)))
        require(pruned.keep.tolist() == everything, f"layer {context.layer}: tokens are dropped")
        same = torch.equal(pruned.hidden, context.hidden)
        require(same, f"layer {context.layer}: states are changed")


def same_input_gives_the_same_bytes(make: Make, prompt: SyntheticPrompt) -> None:
    """Two pruners with equal options agree to the last bit."""
    _require_same(_calls(make(), prompt), _calls(make(), prompt), "two calls")


def returns_states_of_its_own(make: Make, prompt: SyntheticPrompt) -> None:
    """The result shares no memory with the pruner's input states."""
    for context, pruned in _calls(make(), prompt):
        shared = pruned.hidden.untyped_storage().data_ptr() == (
            context.hidden.untyped_storage().data_ptr()
        )
        require(not shared, f"layer {context.layer}: hidden shares memory with context.hidden")


def layer_shares_average_to_the_retention(make: Make, num_layers: int = NUM_LAYERS) -> None:
    """A stand-alone method's `retention` is the mean of `layer_shares`."""
    pruner = make()
    shares = pruner.layer_shares(num_layers)
    require(len(shares) == num_layers, f"layer_shares has {len(shares)} of {num_layers} layers")
    inside = all(0 < share <= 1 + 1e-12 for share in shares)
    require(inside, f"layer_shares must be in (0, 1], got {shares}")
    require(
        abs(fmean(shares) - pruner.retention) <= 1e-11,
        f"layer_shares average to {fmean(shares):g} at retention {pruner.retention:g}; "
        "see OneStepPruner.local_retention, or override layer_shares",
    )


def counts_average_to_the_retention(make: Make, prompt: SyntheticPrompt) -> None:
    """The mean share of tokens in all layers is within 2 % of `retention`."""
    pruner, total = make(), len(prompt.visual_indices())
    kept = fmean(run_layers(pruner, NUM_LAYERS, prompt)[0]) / total
    close = abs(kept - pruner.retention) <= 0.02
    require(close, f"layers are given {kept:.3f} of the tokens, {pruner.retention:g} promised")


def is_pickled_whole(make: Make, prompt: SyntheticPrompt) -> None:
    """A pickled pruner is equal to the original and gives the same bytes."""
    pruner = make()
    loaded = pickle.loads(pickle.dumps(pruner))
    for option in fields(pruner):
        one, other = getattr(pruner, option.name), getattr(loaded, option.name)
        require(one == other, f"option {option.name} is {one} before and {other} after")
    _require_same(_calls(pruner, prompt), _calls(loaded, prompt), "pickling")


def _calls(pruner: LayerPruner, prompt: SyntheticPrompt) -> list[tuple[LayerContext, Pruned]]:
    """Contexts and results of one prompt."""
    return run_layers(pruner, NUM_LAYERS, prompt)[1]


def _require_same(
    calls: list[tuple[LayerContext, Pruned]],
    others: list[tuple[LayerContext, Pruned]],
    what: str,
) -> None:
    """Raise unless positions and state bytes are equal in every layer."""
    require(len(calls) == len(others), f"{what}: other layers are pruned")
    for (context, one), (_, other) in zip(calls, others, strict=True):
        same = torch.equal(one.keep, other.keep)
        require(same, f"{what}, layer {context.layer}: other positions are kept")
        same = torch.equal(one.hidden, other.hidden)
        require(same, f"{what}, layer {context.layer}: states differ")
