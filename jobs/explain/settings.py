"""What two runs say about themselves and differ in, and which cause a difference belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from jobs.config.dotted import dotted
from jobs.config.identity import computed_part
from jobs.explain.sides import Side
from tango_core.benchmarks.protocols.versions import harness_of
from tango_core.models import MODELS

Factor = Literal["prompts", "frames", "tokens", "model"]
"""What may be another thing in the input of a question."""

# Keys of the recipe's `model` section, by what they change.
_MODEL_KEYS: Mapping[str, Factor] = {
    "position_rule": "model",
    "seconds_per_grid": "model",
    "num_frames": "frames",
    "sampling": "frames",
    "pooling": "tokens",
    "pooling_step": "tokens",
    "max_pixels": "tokens",
    "min_pixels": "tokens",
    "frame_area": "tokens",
    "companions": "tokens",
    "saliency_from": "tokens",
    "sinks": "tokens",
}
# Of facts: they may change a reply by rounding alone.
_ENVIRONMENT = ("dtype", "device", "mode", "git_commit", "float32_products")
_LIBRARIES = ("tango-video", "torch", "transformers", "av", "decord", "torchcodec", "numpy")


@dataclass(frozen=True)
class Difference:
    """One setting that differs.

    Attributes:
        key: Dotted name.
        first: Its value in A, as text.
        second: Its value in B.
        factor: What it changes in the input; `None` for what changes a reply by rounding at most,
            or only says which questions were asked.
    """

    key: str
    first: str
    second: str
    factor: Factor | None = None


def differences(first: Side, second: Side) -> list[Difference]:
    """Settings that are known in both results and differ, the important ones first."""
    found = [*_of_facts(first, second), *_of_recipes(first, second), *_of_machines(first, second)]
    return list({one.key: one for one in reversed(found)}.values())[::-1]


def changes(found: list[Difference], factor: Factor) -> bool:
    """Whether a setting differs that changes one part of the input."""
    return any(one.factor == factor for one in found)


def same_weights(first: Side, second: Side) -> bool | None:
    """Whether both read the same weights; `None` where that was not recorded."""
    ours, theirs = first.facts, second.facts
    if first.cell.cache and first.cell.cache == second.cell.cache:
        return True  # the name ends in the hash of all settings, the weights' digest among them
    if ours.checkpoint and theirs.checkpoint:
        return ours.checkpoint == theirs.checkpoint
    return None


def same_cache(first: Side, second: Side) -> bool:
    """Whether both read the token sets of one cache: same model, frames, compressor, options."""
    return bool(first.cell.cache) and first.cell.cache == second.cell.cache


def _of_facts(first: Side, second: Side) -> Iterator[Difference]:
    """What decides prompts, frames, tokens and model, as `facts.json` has it."""
    a, b = first.facts, second.facts
    if _known_model(first) and _known_model(second):
        yield from _differing("model.name", (a.model, b.model), "model")
    yield from _differing("model.checkpoint", (a.checkpoint, b.checkpoint), "model")
    if a.llm is not None and b.llm is not None:
        yield from _differing("model.llm", (asdict(a.llm), asdict(b.llm)), "model")
    protocols = [harness_of(side.cell.protocol) for side in (first, second)]
    yield from _differing("benchmark.protocol", protocols, "prompts")
    yield from _differing("model.num_frames", (a.num_frames, b.num_frames), "frames")
    if not (first.is_import or second.is_import):
        sizes = [facts.input_size or "-" for facts in (a, b)]
        yield from _differing("model.input_size", sizes, "tokens")
    if _known_method(first) and _known_method(second):
        one, two = first.cell, second.cell
        yield from _differing("method.name", (one.method, two.method), "tokens")
        yield from _differing("method.retention", (one.retention, two.retention), "tokens")
        if not (first.is_import or second.is_import):
            for key in dict.fromkeys([*one.options, *two.options]):
                if one.method == two.method:
                    values = [_text(cell.options.get(key, "-")) for cell in (one, two)]
                    yield from _differing(f"method.{key}", values, "tokens")
            shares = [_text(cell.layer_shares or "-") for cell in (one, two)]
            yield from _differing("method.layer_shares", shares, "tokens")


def _of_recipes(first: Side, second: Side) -> Iterator[Difference]:
    """What else the resolved recipes say; keys that a recipe does not have are not compared."""
    if not first.job or not second.job:
        return
    a, b = (dict(dotted(computed_part(side.job))) for side in (first, second))
    for key in sorted(a.keys() & b.keys()):
        section, _, name = key.partition(".")
        if section in ("method", "methods", "mode"):
            continue
        factor = _MODEL_KEYS.get(name) if section == "model" else None
        if key in ("model.path", "model.revision") and same_weights(first, second) is None:
            factor = "model"
        if a[key] != b[key]:
            yield Difference(key, _text(a[key]), _text(b[key]), factor)


def _of_machines(first: Side, second: Side) -> Iterator[Difference]:
    """What may change a reply by rounding."""
    for key in _ENVIRONMENT:
        yield from _differing(key, [getattr(side.facts, key) for side in (first, second)], None)
    for name in _LIBRARIES:
        values = [side.facts.versions.get(name, "") for side in (first, second)]
        yield from _differing(f"versions.{name}", values, None)


def _differing(key: str, values: Sequence[Any], factor: Factor | None) -> Iterator[Difference]:
    """A setting that both know and that is not the same."""
    first, second = values
    known = all(value is not None and value != "" and value != {} for value in values)
    if known and first != second:
        yield Difference(key, _text(first), _text(second), factor)


def _known_model(side: Side) -> bool:
    """Whether the model's name is one of ours; a harness's file names models in its own way."""
    return not side.is_import or side.facts.model in MODELS


def _known_method(side: Side) -> bool:
    """Whether method and retention are known; of a file only where the user has named them."""
    return not side.is_import or side.cell.name != side.facts.model


def _text(value: object) -> str:
    """A value for people; long ones, such as digests, are cut."""
    text = str(value)
    return text if len(text) < 40 else f"{text[:16]}…{text[-8:]}"
