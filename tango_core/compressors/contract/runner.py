"""Run the whole contract on one method, and report every check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch

from tango_core.compressors import Method, build_method, method_class
from tango_core.compressors.base import Compressor
from tango_core.compressors.contract import compressor_checks as before
from tango_core.compressors.contract import pruner_checks as inside
from tango_core.compressors.contract.clips import CLIPS, make_clip
from tango_core.compressors.contract.errors import ContractError, require
from tango_core.compressors.contract.prompts import PROMPTS, SyntheticPrompt
from tango_core.compressors.options import option_names

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
RETENTIONS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.9, 1.0)
WRONG_RETENTIONS = (0.0, -0.1, 1.01, float("nan"))

# One case of a check: its name, and what raises if the promise is broken.
Case = tuple[str, Callable[[], None]]


@dataclass(frozen=True)
class CheckResult:
    """What became of one check.

    Attributes:
        promise: What was checked, in words.
        failure: Why it failed, in one line; `None` if it did not.
    """

    promise: str
    failure: str | None


def check_method(name: str, options: Mapping[str, Any] | None = None) -> Iterator[CheckResult]:
    """Check what every method promises, on seeded synthetic features.

    Args:
        name: As in `build_method`.
        options: Options to build the method with. With `retention` that one alone is checked,
            otherwise several, of which those are skipped that the method says cannot be reached.

    Raises:
        ValueError: At once, if there is no such method, or it cannot be built with the options.
    """
    builder = _Builder(name, dict(options or {}))
    if issubclass(method_class(name), Compressor):
        return _run(_compressor_cases(builder))
    return _run(_pruner_cases(builder))


class _Builder:
    """Builds one method at several retentions.

    Attributes:
        retentions: Those that can be reached.
    """

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self._name, self._options = name, options
        self.takes_retention = "retention" in option_names(method_class(name))
        given = options.pop("retention", None)
        if given is not None or not self.takes_retention:
            # A method without a retention keeps what its options say.
            fixed = self(1.0).compressor.outer_retention if given is None else given
            self.retentions: tuple[float, ...] = (fixed,)
            self(fixed)
        else:
            self.retentions = tuple(filter(self._can_be_reached, RETENTIONS))
            if not self.retentions:
                self(max(RETENTIONS))  # raises, and says why

    def __call__(self, retention: float) -> Method:
        """The method at a retention."""
        chosen: dict[str, Any] = {"retention": retention} if self.takes_retention else {}
        return build_method(self._name, **self._options, **chosen)

    def near(self, *wanted: float) -> list[float]:
        """Of the retentions that can be reached, those nearest to the wanted ones."""
        near = (min(self.retentions, key=lambda one: abs(one - want)) for want in wanted)
        return list(dict.fromkeys(near))

    def _can_be_reached(self, retention: float) -> bool:
        """Whether the method can be built; anything else than a retention must be right."""
        try:
            self(retention)
        except ValueError as error:
            if "cannot be reached" not in str(error):
                raise
            return False
        return True


def _run(checks: Iterable[tuple[str, Iterable[Case]]]) -> Iterator[CheckResult]:
    """Run every check up to its first failing case."""
    for promise, cases in checks:
        yield CheckResult(promise, next(filter(None, map(_failure_of, cases)), None))


def _failure_of(case: Case) -> str | None:
    """Why a case fails; whatever a method raises is a failure."""
    name, check = case
    try:
        check()
    except ContractError as error:
        return f"{name}: {error}"
    except Exception as error:
        return f"{name}: {type(error).__name__}: {' '.join(str(error).split())}"
    return None


def _refuses_wrong_retentions(build: _Builder) -> list[Case]:
    """A share outside (0, 1] is a `ValueError` that names the option."""

    def check(retention: float) -> None:
        message = "no error"
        try:
            build(retention)
        except ValueError as error:
            message = str(error)
        require("retention" in message, f"{message}; call super().__post_init__()")

    wrong = WRONG_RETENTIONS if build.takes_retention else ()
    return [(f"retention {one}", partial(check, one)) for one in wrong]


def _cases(
    noun: str,
    inputs: Mapping[str, Mapping[str, Any]],
    make_input: Callable[..., Any],
    build: Callable[[float], Any],
    check: Callable[[Any, Any], None],
    retentions: Iterable[float],
    names: Iterable[str] | None = None,
    dtypes: Iterable[torch.dtype] = DTYPES[:1],
    **shape: Any,
) -> Iterator[Case]:
    """A check on every named input, in every dtype, at every retention.

    Args:
        noun: What an input is, for messages.
        inputs: Name -> arguments of `make_input`.
        make_input: Makes a clip or a prompt.
        build: Retention -> compressor or pruner.
        check: The promise.
        retentions: Shares to check it at.
        names: Of `inputs`; `None` for all.
        dtypes: Precisions of the input.
        **shape: Arguments of `make_input` that replace those in `inputs`.
    """
    for name, dtype, retention in product(names or inputs, dtypes, retentions):
        value = make_input(**{**inputs[name], "dtype": dtype, **shape})
        case = f"{noun} {name}, {str(dtype).removeprefix('torch.')}, retention {retention:g}"
        yield case, partial(check, partial(build, retention), value)


def _compressor_cases(build: _Builder) -> Iterator[tuple[str, Iterable[Case]]]:
    """Promise -> cases, for a method that runs before the language model."""
    on = partial(_cases, "clip", CLIPS, make_clip, partial(_compressor, build))
    every, some, one = build.retentions, build.near(0.05, 0.5, 1.0), build.near(0.25)
    below_one = [retention for retention in every if retention < 1]
    plain = ("eight-frames",)
    yield "one frame", on(before.returns_a_valid_video, every, ["one-frame"])
    yield "identical frames", on(before.returns_a_valid_video, every, ["static"])
    yield (
        "indices ascend, are unique and in range",
        on(before.returns_a_valid_video, every),
    )
    yield "keeps no more than the promised share", on(before.keeps_no_more_than_promised, every)
    yield (
        "keeps no less than the promised share where nothing repeats",
        on(before.keeps_no_less_than_promised, every, ["noise"], grid=(8, 8)),
    )
    if 1.0 in every:
        yield "keeps all at retention 1", on(before.retention_one_keeps_all, [1.0])
    yield "same input, same output", on(before.same_input_gives_the_same_bytes, one)
    yield "does not change its input", on(before.does_not_change_its_input, some)
    yield "keeps dtype and device", on(before.keeps_dtype_and_device, some, dtypes=DTYPES)
    yield (
        "makes its tokens by its plan, also by a stored one",
        on(before.makes_its_tokens_by_its_plan, some, dtypes=DTYPES),
    )
    yield "plans validly", on(before.plans_validly, below_one)
    yield "companions follow the tokens", on(before.companions_follow_the_tokens, one)
    yield "passes on what is known of the file", on(before.passes_on_the_source, some, plain)
    yield "ignores the memory layout", on(before.ignores_the_memory_layout, one, ["not-square"])
    yield "refuses NaN and infinity", on(before.refuses_values_that_are_not_finite, one, plain)
    yield "names a missing signal", on(before.names_a_missing_signal, one, plain)
    yield "reads only the signals in needs", on(before.reads_only_what_it_needs, one)
    yield "can be pickled", on(before.is_pickled_whole, one, plain)
    yield "same output in another process", on(before.is_the_same_in_another_process, one, plain)
    yield "refuses a retention outside (0, 1]", _refuses_wrong_retentions(build)
    if len(below_one) > 1:
        first, second = (_compressor(build, retention) for retention in below_one[:2])
        whole = _compressor(build, 1.0) if 1.0 in every else None
        check = partial(before.identity_tells_retentions_apart, first, second, whole)
        yield "has an identity for the cache", [("identity", check)]


def _pruner_cases(build: _Builder) -> Iterator[tuple[str, Iterable[Case]]]:
    """Promise -> cases, for a method that runs inside the language model."""
    on = partial(_cases, "prompt", PROMPTS, SyntheticPrompt, partial(_pruner, build))
    every, some = build.retentions, build.near(0.25)
    large: dict[str, Any] = {"grid": (8, 8, 8), "dim": 8}
    yield "one frame", on(inside.prunes_validly, every, ["one-frame", "one-token"])
    yield "identical frames", on(inside.prunes_validly, every, ["static"])
    yield (
        "text stays, positions ascend, the input is not changed, dtype stays",
        on(inside.prunes_validly, every, dtypes=DTYPES),
    )
    if 1.0 in every:
        yield "keeps all at retention 1", on(inside.retention_one_keeps_all, [1.0])
    yield "same input, same output", on(inside.same_input_gives_the_same_bytes, some)
    yield "returns states of its own", on(inside.returns_states_of_its_own, build.near(0.25, 1.0))
    yield "can be pickled", on(inside.is_pickled_whole, some, ["plain"])
    yield (
        "layer_shares average to the retention",
        [
            (
                f"retention {one:g}",
                partial(inside.layer_shares_average_to_the_retention, partial(_pruner, build, one)),
            )
            for one in every
        ],
    )
    yield (
        "keeps the promised share",
        on(inside.counts_average_to_the_retention, every, ["plain"], **large),
    )
    yield "refuses a retention outside (0, 1]", _refuses_wrong_retentions(build)


def _compressor(build: _Builder, retention: float) -> Compressor:
    """What the method runs before the language model."""
    return build(retention).compressor


def _pruner(build: _Builder, retention: float) -> Any:
    """What the method runs inside it."""
    return build(retention).pruner
