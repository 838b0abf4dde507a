"""The promises of every `Compressor`: one function per promise, which raises if it is broken.

Every function takes `make`, which builds the compressor, and one clip.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from tango_core.compressors.base import Compressor
from tango_core.compressors.contract.inputs import ContractError, require
from tango_core.types import ClipSource, CompressedVideo, VisualFeatures

Make = Callable[[], Compressor]

_SCRIPT = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
import torch
torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(12345)
pairs = pickle.load(sys.stdin.buffer)
results = [compressor.compress(features) for compressor, features in pairs]
sys.stdout.buffer.write(pickle.dumps(results))
"""

SIGNALS = (
    "saliency",
    "attention",
    "keys",
    "frame_embeddings",
    "tower_tokens",
    "unpooled_tokens",
    "shallow_attention",
    "deep_attention",
)


def returns_a_valid_video(make: Make, features: VisualFeatures) -> None:
    """Positions ascend, are unique and in range; each has a finite token of the right width."""
    kept = make().compress(features)
    name = type(kept).__name__
    require(isinstance(kept, CompressedVideo), f"compress returns {name}, not CompressedVideo")
    indices = kept.indices.tolist()
    require(kept.indices.dtype == torch.int64, f"indices are {kept.indices.dtype}, not int64")
    require(len(indices) > 0, "no token is kept")
    require(indices == sorted(set(indices)), "indices are not ascending and unique")
    in_range = 0 <= indices[0] <= indices[-1] < kept.num_total
    require(in_range, f"indices are outside [0, {kept.num_total})")
    shape = (kept.num_kept, features.tokens.shape[-1])
    require(kept.tokens.shape == shape, f"tokens are {(*kept.tokens.shape,)}, not {shape}")
    grid = (len(features.tokens), *features.grid)
    require(kept.grid == grid, f"grid is {kept.grid}, not {grid}")
    require(bool(kept.tokens.isfinite().all()), "tokens hold NaN or infinite values")


def keeps_no_more_than_promised(make: Make, features: VisualFeatures) -> None:
    """At least one token is kept, and at most the promised share plus rounding per frame."""
    compressor = make()
    num_frames, tokens_per_frame, _ = features.tokens.shape
    promised = compressor.outer_retention * num_frames * tokens_per_frame
    most = promised + compressor.most_rounding(num_frames, features.grid)
    kept = compressor.compress(features).num_kept
    require(1 <= kept <= most, f"{kept} tokens are kept, {promised:g} promised")


def keeps_no_less_than_promised(make: Make, features: VisualFeatures) -> None:
    """At least the promised share is kept, minus rounding per frame.

    Methods that merge repeated tokens promise this only for clips without repetition.
    """
    compressor = make()
    num_frames, tokens_per_frame, _ = features.tokens.shape
    promised = compressor.outer_retention * num_frames * tokens_per_frame
    least = promised - compressor.most_rounding(num_frames, features.grid)
    kept = compressor.compress(features).num_kept
    require(kept >= least, f"{kept} tokens are kept, {promised:g} promised")


def retention_one_keeps_all(make: Make, features: VisualFeatures) -> None:
    """With retention 1 all tokens are unchanged."""
    kept = make().compress(features)
    require(kept.num_kept == kept.num_total, f"{kept.num_kept} of {kept.num_total} tokens are kept")
    require(torch.equal(kept.tokens, features.tokens.flatten(0, 1)), "tokens are changed")


def same_input_gives_the_same_bytes(make: Make, features: VisualFeatures) -> None:
    """Two compressors with equal options agree to the last bit."""
    _require_same(make().compress(features), make().compress(features), "two calls")


def does_not_change_its_input(make: Make, features: VisualFeatures) -> None:
    """Neither `compress` nor a write to its result changes the features."""
    names = ("tokens", "timestamps", *SIGNALS)
    untouched = {name: getattr(features, name).clone() for name in names}
    kept = make().compress(features)
    for name in names:
        require(torch.equal(getattr(features, name), untouched[name]), f"features.{name} changes")
    kept.tokens.zero_()
    kept.indices.zero_()
    for name in names:
        same = torch.equal(getattr(features, name), untouched[name])
        require(same, f"the result shares memory with features.{name}; return a copy")


def keeps_dtype_and_device(make: Make, features: VisualFeatures) -> None:
    """The result has the dtype and device of the input."""
    kept, tokens = make().compress(features), features.tokens
    require(kept.tokens.dtype == tokens.dtype, f"{tokens.dtype} becomes {kept.tokens.dtype}")
    devices = {kept.tokens.device, kept.indices.device}
    require(devices == {tokens.device}, f"{tokens.device} becomes {devices}")


def makes_its_tokens_by_its_plan(make: Make, features: VisualFeatures) -> None:
    """Applying the plan, also a stored one, gives the bytes of `compress`.

    A method without plans promises nothing here.
    """
    compressor = make()
    if not compressor.has_plan:
        return
    kept, plan = compressor.compress(features), compressor.plan(features)
    stored = replace(
        plan,
        indices=_stored(plan.indices),
        offsets=None if plan.offsets is None else _stored(plan.offsets),
        sources=None if plan.sources is None else _stored(plan.sources),
        weights=None if plan.weights is None else _stored(plan.weights),
    )
    _require_same(kept, plan.apply(features.tokens), "compress and plan")
    _require_same(kept, stored.apply(features.tokens.flatten(0, 1)), "compress and a stored plan")


def plans_validly(make: Make, features: VisualFeatures) -> None:
    """A plan has valid sources, offsets and weights; weights sum to 1 if `averages` is true."""
    compressor = make()
    if not compressor.has_plan:
        return
    plan = compressor.plan(features)
    num_frames, tokens_per_frame, _ = features.tokens.shape
    if plan.offsets is not None and plan.sources is not None and plan.weights is not None:
        counts, num_terms = plan.offsets.diff(), len(plan.sources)
        ends = (int(plan.offsets[0]), int(plan.offsets[-1]))
        require(ends == (0, num_terms), f"offsets go from {ends}, not from 0 to {num_terms}")
        require(bool((counts > 0).all()), "a kept token is made of nothing")
        in_range = bool(((plan.sources >= 0) & (plan.sources < plan.num_total)).all())
        require(in_range, f"sources are outside [0, {plan.num_total})")
        require(bool(plan.weights.isfinite().all()), "weights hold NaN or infinite values")
        sums = torch.segment_reduce(plan.weights, "sum", offsets=plan.offsets)
        is_one = not compressor.averages or bool(((sums - 1).abs() < 1e-4).all())
        require(is_one, "weights of a kept token do not add up to 1; set averages to False")
    drawing = plan.drawing
    if drawing is None:
        return
    in_all = sum(drawing.segments)
    require(in_all in (0, num_frames), f"segments have {in_all} frames, the clip has {num_frames}")
    for name in ("static", "saliency"):
        cells = getattr(drawing, name)
        shape = (num_frames, tokens_per_frame)
        require(cells is None or cells.shape == shape, f"drawing.{name} is not {shape}")


def passes_on_the_source(make: Make, features: VisualFeatures) -> None:
    """The result has the `source` of the features."""
    source = ClipSource(duration_s=2.5, frame_height=360)
    kept = make().compress(replace(features, source=source))
    require(kept.source == source, f"source {source} becomes {kept.source}")


def companions_follow_the_tokens(make: Make, features: VisualFeatures) -> None:
    """Companions are selected and merged like the tokens.

    Here companions are the tokens times powers of two, so all results are exact. Without a plan the
    merged tokens are unknown; every kept token then has the companions of the token at its
    position.
    """
    compressor, tokens = make(), features.tokens
    rows = torch.stack([2 * tokens, -0.5 * tokens], dim=2)
    plain, deep = compressor.compress(features), replace(features, companions=rows)
    _require_same(plain, compressor.compress(deep), "clips with and without companions")
    for anchored in (False, True):
        kept = compressor.compress(replace(deep, anchored=anchored)).companions
        own = rows.flatten(0, 1)[plain.indices]
        merged = torch.stack([2 * plain.tokens, -0.5 * plain.tokens], dim=1)
        planned = compressor.has_plan or compressor.outer_retention >= 1
        expected = merged if planned and not anchored else own
        require(
            kept is not None and torch.equal(kept, expected),
            f"companions differ from the tokens' map (anchored: {anchored})",
        )


def ignores_the_memory_layout(make: Make, features: VisualFeatures) -> None:
    """Non-contiguous tokens give the same result."""
    strided = features.tokens.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    plain = make().compress(features)
    other = make().compress(replace(features, tokens=strided))
    require(torch.equal(plain.indices, other.indices), "other positions are kept if not contiguous")
    close = torch.allclose(plain.tokens, other.tokens, rtol=1.3e-6, atol=1e-5)
    require(close, "tokens differ if the input is not contiguous")


def refuses_values_that_are_not_finite(make: Make, features: VisualFeatures) -> None:
    """NaN or infinity in the tokens or a needed signal raises an error that names the field."""
    compressor = make()
    for value in (float("nan"), float("inf"), float("-inf")):
        for name in ("tokens", *sorted(compressor.needs)):
            broken = getattr(features, name).clone()
            broken[(-1,) * broken.ndim] = value
            message = _error_of(compressor, _with(features, {name: broken}))
            named = name in message and "NaN or infinite" in message
            require(named, f"{name} with {value} gives {message!r}")


def names_a_missing_signal(make: Make, features: VisualFeatures) -> None:
    """A missing needed signal raises an error that names it."""
    compressor = make()
    for name in compressor.needs:
        require(name in SIGNALS, f"needs has {name!r}; allowed are {', '.join(SIGNALS)}")
        message = _error_of(compressor, _with(features, {name: None}))
        require("needs" in message and name in message, f"without {name}: {message!r}")


def reads_only_what_it_needs(make: Make, features: VisualFeatures) -> None:
    """Signals outside `needs` do not affect the result and may be missing."""
    compressor = make()
    absent = {name: None for name in SIGNALS if name not in compressor.needs}
    try:
        bare = compressor.compress(_with(features, absent))
    except Exception as error:
        raise ContractError(
            f"with {', '.join(sorted(compressor.needs)) or 'no signal'} alone it raises "
            f"{type(error).__name__}: {error}; name what it reads in needs"
        ) from error
    _require_same(compressor.compress(features), bare, "features with and without other signals")


def is_pickled_whole(make: Make, features: VisualFeatures) -> None:
    """A pickled compressor is equal to the original and gives the same bytes."""
    compressor = make()
    loaded = pickle.loads(pickle.dumps(compressor))
    for option in fields(compressor):
        one, other = getattr(compressor, option.name), getattr(loaded, option.name)
        require(one == other, f"option {option.name} is {one} before and {other} after")
    _require_same(compressor.compress(features), loaded.compress(features), "pickling")


def is_the_same_in_another_process(make: Make, features: VisualFeatures) -> None:
    """A new Python process with another hash seed gives the same bytes."""
    compressor = make()
    (other,) = compressed_in_another_process([(compressor, features)])
    _require_same(compressor.compress(features), other, "this process and another")


def compressed_in_another_process(
    pairs: list[tuple[Compressor, VisualFeatures]],
) -> list[CompressedVideo]:
    """Results of compressors on clips, computed in one new Python process."""
    done = subprocess.run(
        # The same number of threads, because it affects the order of sums.
        [sys.executable, "-c", _SCRIPT, str(torch.get_num_threads())],
        input=pickle.dumps(sys.path) + pickle.dumps(pairs),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ContractError(f"another process fails: {''.join(last)}")
    results: list[CompressedVideo] = pickle.loads(done.stdout)
    return results


def identity_tells_retentions_apart(first: Compressor, second: Compressor, whole: Any) -> None:
    """Identities are JSON, differ with the retention, and are that of `full` at retention 1.

    Args:
        first: Compressor with a retention below 1.
        second: Compressor with another retention; equal to `first` if the method has none.
        whole: Compressor with retention 1; `None` if the method cannot reach it.
    """
    identity = first.identity()
    require(json.loads(json.dumps(identity)) == identity, f"{identity} is not plain JSON")
    same, equal = identity == second.identity(), first.retention == second.retention
    require(same == equal, f"retention {first.retention} and {second.retention}: {identity}")
    if whole is not None:
        require(whole.identity() == {"name": "full"}, f"at retention 1: {whole.identity()}")


def _with(features: VisualFeatures, changes: Mapping[str, Any]) -> VisualFeatures:
    """Copy of the features with some fields replaced."""
    return replace(features, **changes)


def _stored(values: torch.Tensor) -> torch.Tensor:
    """Copy a tensor through NumPy, as storage does."""
    array = values.cpu().numpy()
    return torch.from_numpy(np.frombuffer(array.tobytes(), dtype=array.dtype).copy())


def _require_same(one: CompressedVideo, other: CompressedVideo, what: str) -> None:
    """Raise unless positions and token bytes are equal."""
    require(torch.equal(one.indices, other.indices), f"{what}: other positions are kept")
    require(torch.equal(one.tokens, other.tokens), f"{what}: tokens differ")


def _error_of(compressor: Compressor, features: VisualFeatures) -> str:
    """Message of the `ValueError` raised for the features; "no error" if none."""
    try:
        compressor.compress(features)
    except ValueError as error:
        return str(error)
    return "no error"
