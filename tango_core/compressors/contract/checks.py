"""The promises of every method, each checked on every case: a clip or prompt at a retention."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeVar

import torch

from tango_core.combination import Combination
from tango_core.compressors.base import Compressor, LayerPruner
from tango_core.compressors.contract.inputs import (
    CLIPS,
    NUM_LAYERS,
    PROMPTS,
    ContractError,
    SyntheticPrompt,
    make_clip,
    require,
    run_layers,
)
from tango_core.compressors.options import option_names
from tango_core.types import CompressedVideo, VisualFeatures

T = TypeVar("T")

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WRONG_RETENTIONS = (0.0, -0.1, 1.01, float("nan"))
# Clips and prompts of a quick run.
FEW_CLIPS = ("eight-frames", "not-square", "duplicates")
FEW_PROMPTS = ("plain", "newline-per-row", "text-before-every-frame")
# Fields of `make_clip` that a method reads only if it names them in `needs`.
SIGNALS = (
    *("saliency", "attention", "keys", "frame_embeddings", "tower_tokens", "unpooled_tokens"),
    *("shallow_attention", "deep_attention", "merged_attention", "text_aligned"),
)

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


@dataclass(frozen=True)
class CheckResult:
    """Result of one check.

    Attributes:
        promise: Description of the checked promise.
        failure: One-line reason of the first failure; `None` if the check passed in every case.
    """

    promise: str
    failure: str | None


class Report:
    """Collects the first failure of every promise."""

    def __init__(self) -> None:
        self._failures: dict[str, str | None] = {}

    @contextmanager
    def check(self, promise: str, case: str) -> Iterator[None]:
        """Check a promise in one case: any exception in the block is a failure."""
        failure = self._failures.setdefault(promise, None)
        try:
            yield
        except Exception as error:
            kind = "" if isinstance(error, ContractError) else f"{type(error).__name__}: "
            if failure is None:
                self._failures[promise] = f"{case}: {kind}{' '.join(str(error).split())}"

    def results(self) -> list[CheckResult]:
        """The results, in the order in which the promises were first checked."""
        return [CheckResult(*one) for one in self._failures.items()]


def check_compressor(
    report: Report,
    build: Callable[[float], Compressor],
    retentions: Sequence[float],
    *,
    quick: bool,
) -> None:
    """Check a method that runs before the language model.

    Args:
        report: Receives the results.
        build: Retention -> compressor.
        retentions: Retentions to check.
        quick: Use three clips, and start no other process.
    """
    half_precision = {_nearest(retentions, share) for share in (0.05, 0.5, 1.0)}
    for name in FEW_CLIPS if quick else CLIPS:
        for retention in retentions:
            for dtype in DTYPES if retention in half_precision else DTYPES[:1]:
                features = make_clip(**CLIPS[name], dtype=dtype)
                check_result(report, build(retention), features, f"clip {name}, {dtype}")
    noise = make_clip(grid=(8, 8), kind="noise")
    for retention in retentions:
        promise = "keeps no less than the promised share where nothing repeats"
        with report.check(promise, f"clip noise, retention {retention:g}"):
            compressor = build(retention)
            promised = compressor.outer_retention * 8 * 64
            kept = compressor.compress(noise).num_kept
            enough = kept >= promised - compressor.most_rounding(8, noise.grid)
            require(enough, f"{kept} tokens are kept, {promised:g} promised")
    compressor, features = build(_nearest(retentions, 0.25)), make_clip()
    read = compressor.needs | {compressor.question_field}
    absent: dict[str, Any] = {name: None for name in SIGNALS if name not in read}
    others: dict[str, Callable[[], CompressedVideo]] = {
        "same input, same output": lambda: compressor.compress(_copied(features)),
        "can be pickled": lambda: _pickled(compressor).compress(features),
        "reads only the signals in needs": lambda: compressor.compress(replace(features, **absent)),
        "same output in another process": lambda: compressed_in_another_process(
            [(compressor, features)]
        )[0],
    }
    for promise, other in list(others.items())[: 3 if quick else 4]:
        with report.check(promise, "clip eight-frames"):
            _require_same(compressor.compress(features), other())


def check_result(
    report: Report, compressor: Compressor, features: VisualFeatures, case: str
) -> None:
    """Check results for one clip: number and order of tokens, dtype, purity, and the plan."""
    case, tokens = f"{case}, retention {compressor.retention:g}", features.tokens
    with report.check("indices ascend, are unique and in range", case):
        _require_valid(compressor.compress(features), features)
    with report.check("keeps no more than the promised share", case):
        kept = compressor.compress(features)
        promised = compressor.outer_retention * kept.num_total
        fits = kept.num_kept <= promised + compressor.most_rounding(len(tokens), features.grid)
        require(fits, f"{kept.num_kept} tokens are kept, {promised:g} promised")
    if compressor.retention == 1:
        with report.check("keeps all at retention 1", case):
            kept = compressor.compress(features)
            require(kept.num_kept == kept.num_total, f"{kept.num_kept} of {kept.num_total}")
            require(torch.equal(kept.tokens, tokens.flatten(0, 1)), "tokens are changed")
    with report.check("keeps dtype and device", case):
        kept = compressor.compress(features)
        require(kept.tokens.dtype == tokens.dtype, f"{tokens.dtype} becomes {kept.tokens.dtype}")
        devices = {kept.tokens.device, kept.indices.device}
        require(devices == {tokens.device}, f"{tokens.device} becomes {devices}")
    with report.check("does not change its input", case):
        held = {name: getattr(features, name) for name in ("tokens", "timestamps", *SIGNALS)}
        untouched = {name: value.clone() for name, value in held.items() if value is not None}
        kept = compressor.compress(features)
        for name, value in untouched.items():
            require(torch.equal(held[name], value), f"compress changes features.{name}")
        kept.tokens.zero_()
        kept.indices.zero_()
        for name, value in untouched.items():
            same = torch.equal(held[name], value)
            require(same, f"the result shares memory with features.{name}; return a copy")
    if not compressor.has_plan:
        return
    with report.check("makes its tokens by its plan, also by a stored one", case):
        kept, plan = compressor.compress(features), compressor.plan(features)
        _require_same(kept, plan.apply(tokens))
        _require_same(kept, _copied(plan).apply(tokens.flatten(0, 1)))
    with report.check("plans validly", case):
        _require_valid_plan(compressor, compressor.plan(features), features)


def check_identity(
    report: Report, build: Callable[[float], Compressor], retentions: Sequence[float]
) -> None:
    """Identities are JSON, differ with the retention, and are that of `full` at retention 1."""
    below = [retention for retention in retentions if retention < 1]
    if len(below) < 2:
        return
    with report.check("has an identity for the cache", "identity"):
        first, second = (build(retention) for retention in below[:2])
        identity = first.identity()
        require(json.loads(json.dumps(identity)) == identity, f"{identity} is not plain JSON")
        same, equal = identity == second.identity(), first.retention == second.retention
        require(same == equal, f"retention {first.retention} and {second.retention}: {identity}")
        if 1.0 in retentions:
            whole = build(1.0).identity()
            require(whole == {"name": "full"}, f"at retention 1: {whole}")


def check_wrong_retentions(report: Report, build: Callable[[float], Any]) -> None:
    """A retention outside (0, 1] raises a `ValueError` that names the option."""
    for retention in WRONG_RETENTIONS:
        message = "no error"
        try:
            build(retention)
        except ValueError as error:
            message = str(error)
        with report.check("refuses a retention outside (0, 1]", f"retention {retention}"):
            require("retention" in message, f"{message}; call super().__post_init__()")


def check_pruner_cases(
    report: Report,
    build: Callable[[float], LayerPruner],
    retentions: Sequence[float],
    *,
    quick: bool,
    is_step: bool,
) -> None:
    """Check a method that runs inside the language model.

    Args:
        report: Receives the results.
        build: Retention -> pruner.
        retentions: Retentions to check.
        quick: Use three prompts.
        is_step: Whether it is a step of a hybrid, whose retention is not an average over layers.
    """
    for name in FEW_PROMPTS if quick else PROMPTS:
        for retention in retentions:
            pruner = build(retention)
            for dtype in DTYPES:
                prompt = SyntheticPrompt(**PROMPTS[name], dtype=dtype)
                case = f"prompt {name}, {dtype}, retention {retention:g}"
                promise = "text stays, positions ascend, the input is not changed, dtype stays"
                with report.check(promise, case):
                    _check_calls(report, pruner, prompt, case)
    if is_step:
        return
    for retention in retentions:
        pruner, case = build(retention), f"retention {retention:g}"
        with report.check("layer_shares average to the retention", case):
            shares = pruner.layer_shares(NUM_LAYERS)
            require(len(shares) == NUM_LAYERS, f"layer_shares has {len(shares)} layers")
            inside = all(0 < share <= 1 + 1e-12 for share in shares)
            require(inside, f"layer_shares must be in (0, 1], got {shares}")
            require(
                abs(fmean(shares) - pruner.retention) <= 1e-11,
                f"layer_shares average to {fmean(shares):g}; "
                "see OneStepPruner.local_retention, or override layer_shares",
            )
        with report.check("keeps the promised share", case):
            large = SyntheticPrompt(grid=(8, 8, 8), dim=8)
            kept = fmean(run_layers(pruner, NUM_LAYERS, large)[0]) / 512
            close = abs(kept - pruner.retention) <= 0.02
            require(close, f"layers are given {kept:.3f} of the tokens")


def _check_calls(report: Report, pruner: LayerPruner, prompt: SyntheticPrompt, case: str) -> None:
    """Promises about the calls of a pruner on one prompt; `run_layers` checks every call."""
    calls = run_layers(pruner, NUM_LAYERS, prompt)[1]
    builds: dict[str, Callable[[], LayerPruner]] = {
        "same input, same output": lambda: pruner,
        "can be pickled": lambda: _pickled(pruner),
    }
    for promise, build in builds.items():
        with report.check(promise, case):
            others = run_layers(build(), NUM_LAYERS, prompt)[1]
            require(len(calls) == len(others), "other layers are pruned")
            for (context, one), (_, other) in zip(calls, others, strict=True):
                same = torch.equal(one.keep, other.keep) and torch.equal(one.hidden, other.hidden)
                require(same, f"layer {context.layer}: other positions are kept, or states differ")
    for context, pruned in calls:
        where = f"{case}, layer {context.layer}"
        with report.check("returns states of its own", where):
            own, given = (one.hidden.untyped_storage().data_ptr() for one in (pruned, context))
            require(own != given, "hidden shares memory with context.hidden")
        if pruner.retention == 1:
            with report.check("keeps all at retention 1", where):
                require(len(pruned.keep) == len(context.hidden), "tokens are dropped")
                require(torch.equal(pruned.hidden, context.hidden), "states are changed")


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


def _nearest(retentions: Sequence[float], wanted: float) -> float:
    return min(retentions, key=lambda one: abs(one - wanted))


def _copied(value: T) -> T:
    copy: T = pickle.loads(pickle.dumps(value))
    return copy


def _pickled(method: T) -> T:
    """Copy a method by pickling; all options must be equal."""
    copy, options = _copied(method), option_names(type(method))
    before, after = ({name: getattr(one, name) for name in options} for one in (method, copy))
    require(before == after, f"options are {before} before and {after} after")
    return copy


def _require_valid(kept: CompressedVideo, features: VisualFeatures) -> None:
    """Check what `CompressedVideo` does not: some tokens, width, grid, and finite values."""
    name, grid = type(kept).__name__, (len(features.tokens), *features.grid)
    require(isinstance(kept, CompressedVideo), f"compress returns {name}, not CompressedVideo")
    require(kept.num_kept > 0, "no token is kept")
    shape = (kept.num_kept, features.tokens.shape[-1])
    require(kept.tokens.shape == shape, f"tokens are {(*kept.tokens.shape,)}, not {shape}")
    require(kept.grid == grid, f"grid is {kept.grid}, not {grid}")
    require(bool(kept.tokens.isfinite().all()), "tokens hold NaN or infinite values")


def _require_valid_plan(
    compressor: Compressor, plan: Combination, features: VisualFeatures
) -> None:
    """Valid sources, offsets and weights; weights sum to 1 if `averages` is true."""
    num_frames, tokens_per_frame, _ = features.tokens.shape
    if plan.offsets is not None and plan.sources is not None and plan.weights is not None:
        require(bool((plan.offsets.diff() > 0).all()), "a kept token is made of nothing")
        in_range = bool(((plan.sources >= 0) & (plan.sources < plan.num_total)).all())
        require(in_range, f"sources are outside [0, {plan.num_total})")
        require(bool(plan.weights.isfinite().all()), "weights hold NaN or infinite values")
        sums = torch.segment_reduce(plan.weights, "sum", offsets=plan.offsets)
        is_one = not compressor.averages or bool(((sums - 1).abs() < 1e-4).all())
        require(is_one, "weights of a kept token do not add up to 1; set averages to False")
    if plan.drawing is None:
        return
    in_all = sum(plan.drawing.segments)
    require(in_all in (0, num_frames), f"segments have {in_all} frames, the clip has {num_frames}")
    for name in ("static", "saliency"):
        cells, shape = getattr(plan.drawing, name), (num_frames, tokens_per_frame)
        require(cells is None or cells.shape == shape, f"drawing.{name} is not {shape}")


def _require_same(one: CompressedVideo, other: CompressedVideo) -> None:
    require(torch.equal(one.indices, other.indices), "other positions are kept")
    require(torch.equal(one.tokens, other.tokens), "tokens differ")
